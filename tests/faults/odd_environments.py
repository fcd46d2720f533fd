"""Environments that answer what none should, registered as `Odd<Kind>-v0`; `Good-v0` is sound. See `KINDS`."""

from __future__ import annotations

import sys
import time
import warnings
from decimal import Decimal
from typing import Any

import gymnasium as gym
import numpy as np

SIZE, ACTIONS, STEPS = 3, 2, 8


class Good(gym.Env[Any, Any]):
    """A random walk in which small actions are rewarded."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.place = self.np_random.standard_normal(SIZE).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.place += self.np_random.standard_normal(SIZE).astype(np.float32)
        return self.place.copy(), float(1 - np.square(action).sum()), False, False, {}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class _Odd:
    def __float__(self) -> float:
        raise RuntimeError("no number")


def _raise(error: BaseException) -> Any:
    raise error


# What `reset` gives, of a sound observation.
RESETS: dict[str, Any] = {
    "ResetDict": lambda o: ({"observation": o}, {}),
    "ResetMatrix": lambda o: (o[None], {}),
    "ResetShort": lambda o: (o[:-1], {}),
    "ResetNan": lambda o: (o * np.nan, {}),
    "ResetHuge": lambda o: (o.astype(np.float64) * 1e300, {}),
    "ResetObjects": lambda _: (np.array([None, {}, []], object), {}),
    "ResetOdd": lambda _: ([_Odd()] * SIZE, {}),
    "ResetExit": lambda _: sys.exit(0),
    "ResetRaises": lambda _: _raise(ValueError("several\nlines\x1b[2J of \udcff it " + "x" * 5000)),
    "ResetRaisesOdd": lambda _: _raise(Unprintable()),
    "ResetGeneratorExit": lambda _: _raise(GeneratorExit()),
}
# What `step` gives, of a sound answer.
STEPS_OF: dict[str, Any] = {
    "StepOld": lambda o, r, *_: (o, r, False, {}),
    "StepEnds": lambda o, r, *_: (o, r, np.array([True, False]), False, {}),
    "StepRewardComplex": lambda o, *_: (o, 1 + 1j, False, False, {}),
    "StepRewardHugeDecimal": lambda o, *_: (o, Decimal("1e400"), False, False, {}),
    "StepRewardOdd": lambda o, *_: (o, _Odd(), False, False, {}),
    "StepNan": lambda o, r, *_: (np.where([0, 1, 0], np.nan, o), r, False, False, {}),
    "StepLong": lambda o, r, *_: (np.tile(o, 3), r, False, False, {}),
    "StepExit": lambda *_: sys.exit(3),
    "StepStop": lambda *_: _raise(StopIteration()),
    "StepMemory": lambda *_: _raise(MemoryError()),
    "StepKey": lambda *_: _raise(KeyError("état\u202e\n")),
    "StepWarning": lambda *_: _raise(warnings.warn_explicit("w", UserWarning, "f", 1) or UserWarning("w")),
    "StepGroup": lambda *_: _raise(ExceptionGroup("several", [ValueError("a"), KeyError("b")])),
}
# What stands in the constructor's place.
MAKES: dict[str, Any] = {
    "MakeRaises": lambda _: _raise(ValueError("cannot be made")),
    "MakeExit": lambda _: sys.exit(0),
    "MakeOdd": lambda _: _raise(Unprintable()),
    "MakeNoSpaces": lambda env: (delattr(env, "action_space"), delattr(env, "observation_space")),
    "MakeDiscrete": lambda env: setattr(env, "action_space", gym.spaces.Discrete(3)),
    "MakeDict": lambda env: setattr(env, "observation_space", gym.spaces.Dict({"a": gym.spaces.Discrete(2)})),
    "MakeEmpty": lambda env: setattr(env, "observation_space", gym.spaces.Box(-1, 1, (0,))),
    "MakeUnbounded": lambda env: setattr(env, "action_space", gym.spaces.Box(-np.inf, np.inf, (ACTIONS,))),
    "MakeFixed": lambda env: setattr(env, "action_space", gym.spaces.Box(0, 0, (ACTIONS,))),
    "MakeWide": lambda env: setattr(env, "action_space", gym.spaces.Box(-3e38, 3e38, (ACTIONS,))),
    "MakeIntegers": lambda env: setattr(env, "action_space", gym.spaces.Box(-1, 1, (ACTIONS,), np.int64)),
    "MakeMany": lambda env: setattr(env, "observation_space", gym.spaces.Box(-1, 1, (50_000_000,), np.int8)),
}


class Odd(Good):
    """One of the kinds above."""

    def __init__(self, kind: str = "") -> None:
        super().__init__(kind)
        if kind in MAKES:
            MAKES[kind](self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        if self.kind == "HangsInReset":
            time.sleep(3600)
        if self.kind == "Interrupts":
            raise KeyboardInterrupt
        return RESETS[self.kind](observation) if self.kind in RESETS else (observation, info)

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        if self.kind == "HangsInStep":
            time.sleep(3600)
        if self.kind == "SpinsInStep":
            while True:
                pass
        return STEPS_OF[self.kind](*answer) if self.kind in STEPS_OF else answer

    def close(self) -> None:
        if self.kind == "CloseRaises":
            raise RuntimeError("cannot be closed")
        if self.kind == "CloseExits":
            sys.exit(4)


HANGING = ("HangsInReset", "HangsInStep", "SpinsInStep")
CLOSING = ("CloseRaises", "CloseExits")
KINDS = (*RESETS, *STEPS_OF, *MAKES)
RAISING = ("MakeRaises", "MakeExit", "MakeOdd", "ResetRaises", "ResetExit", "ResetRaisesOdd", "ResetGeneratorExit",
           "StepExit", "StepStop", "StepKey", "StepMemory", "StepWarning", "StepGroup", *CLOSING)  # fmt: skip

gym.register("Good-v0", Good, max_episode_steps=STEPS)
for _kind in (*KINDS, *HANGING, *CLOSING, "Interrupts"):
    gym.register(f"Odd{_kind}-v0", Odd, max_episode_steps=STEPS, kwargs={"kind": _kind})
gym.register("Endless-v0", Good)
gym.register("BadEntry-v0", "no_such_module:Robot", max_episode_steps=STEPS)
