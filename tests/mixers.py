"""The mixers by what they can do: tests for each mixer take their lists from here, so that a new one is tested."""

from __future__ import annotations

from aaren_rl.agents import MIXERS

CONSTANT_STATE = [name for name, mixer in MIXERS.items() if mixer.constant_state]
COMPILED = [name for name, mixer in MIXERS.items() if mixer.compiled_step]
EXPORTED = [name for name, mixer in MIXERS.items() if mixer.exported]
GROWING = [name for name in MIXERS if name not in CONSTANT_STATE]
