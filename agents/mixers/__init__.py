"""Token mixers, one file or folder each, with one contract.

    y, state = mixer(x, state=None)    x (B, N, C) -> y (B, N, C): all tokens in parallel, after those in `state`
    y, state = mixer.step(x, state)    x (B, C)    -> y (B, C):    one token
    state    = mixer.initial_state(batch_size)

The two ways are equal to rounding. The state is a value that is passed in and returned, never kept on the module.
"""

from .aaren import Aaren
from .attention import Attention, AttentionState
from .rsa.mixer import AarenRsa, Encoded, EncodedState, Rsa

__all__ = ["Aaren", "AarenRsa", "Attention", "AttentionState", "Encoded", "EncodedState", "Rsa"]
