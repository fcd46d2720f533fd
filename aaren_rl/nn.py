"""Sequence modules for any stream of tokens: sensors, events, text. Needs torch and numpy; Numba makes it fast.

Every module has one contract; B is the batch, N tokens, C channels:

    y, state = module(x, state=None)    x (B, N, C) -> y (B, N, C): all tokens in parallel, after those in `state`
    y, state = module.step(x, state)    x (B, C)    -> y (B, C):    one token; equal to the parallel way to rounding
    state    = module.initial_state(batch_size)
    state    = select(state, rows)      the state of some rows of the batch; `join` puts several together

`CrossAttention` gives one output a latent, (B, Q, C), instead of one a token. A state is a value: a tuple of tensors
that goes in and comes out, is never changed, and can be kept, copied and saved (`torch.save`, `torch.load` as it is).

`module(x, lengths=...)` takes the first `lengths` tokens of every row and `module.step(x, state, mask=...)` the rows
where `mask` is True: what lies in the padding changes neither an output nor a state, and outputs in it are zeros.
Sequences of one length run together, in one pass per length. Modules whose state grows take neither. Right padding
reaches no output of a causal module before it, so a training step that reads no state can leave `lengths` out.
"""

from functools import partial

import torch

from .agents.mixers.aaren import Aaren
from .agents.mixers.attention import Attention, AttentionState
from .agents.mixers.cross_attention import CrossAttention, attend
from .agents.mixers.rsa import RSA, AarenRSA, EncodedState, EncodingState, RemConfig
from .agents.mixers.tree import SAMPLERS, TreeAttention, TreeConfig, TreeState
from .agents.model.decision import Trunk
from .agents.scan.prefix import prefix_scan, scan_step
from .agents.scan.rows import join, select, state_bytes
from .agents.scan.state import ScanState, combine
from .export.module_step import export_step

AarenTrunk = partial(Trunk, "aaren")

# So that `torch.load` reads saved states without executing anything.
torch.serialization.add_safe_globals([ScanState, AttentionState, EncodedState, EncodingState, TreeState])

__all__ = [
    "RSA", "SAMPLERS", "Aaren", "AarenRSA", "AarenTrunk", "Attention", "CrossAttention", "RemConfig", "ScanState",
    "TreeAttention", "TreeConfig", "Trunk", "attend", "combine", "export_step", "join", "prefix_scan", "scan_step",
    "select", "state_bytes",
]  # fmt: skip
