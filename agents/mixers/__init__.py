"""Token mixers with one contract. B is the batch, N tokens, C channels:

    mixer    = MIXERS[name].build(MixerConfig(width, heads, dropout, forget_gate, rems))
    y, state = mixer(x, state=None, starts=, keep=, lengths=)    x (B, N, C) -> y (B, N, C): all tokens in parallel
    y, state = mixer.step(x, state, mask=)                       x (B, C)    -> y (B, C):    one token
    state    = mixer.initial_state(batch_size)

The two ways are equal to rounding. The state is a value, a tensor or a tuple of states with the batch as the first
dimension of all its tensors; it is passed in and returned, never kept on the module, never changed.

* `starts`, bool (B, N): a new sequence begins there, and everything before is forgotten, `state` included.
* `keep`, a slice of the positions whose outputs are wanted: y has no others; the state is that after all N.
* `lengths`, integers (B,): tokens of each row, the rest is padding. `mask`, bool (B,): the rows that have a token.
  `RowModule` does both for every mixer.

**To add a mixer** write a subclass of `Mixer` in a file of its own, with `run` (all tokens), `run_one` (one token) and
`initial_state`, and put it into `MIXERS`. What it does not declare falls back: a step runs in PyTorch's operations. An
agent that is trained from the command line is one more record in `AGENTS` (`aaren_rl/policies/table.py`). Both can be
added from a module of a user's own, `--register MODULE`.
"""

from .aaren import Aaren
from .attention import Attention
from .base import Mixer
from .gru import GRU, MinGRU
from .rsa import RSA, AarenRSA

MIXERS: dict[str, type[Mixer]] = {
    "aaren": Aaren,
    "attention": Attention,
    "aaren-rsa": AarenRSA,
    "rsa": RSA,
    "gru": GRU,
    "mingru": MinGRU,
    "tree": Attention,  # as it is trained; at rollout `policy/policy.py` puts trees in its place
}
