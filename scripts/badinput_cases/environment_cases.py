"""Odd environments under the commands that play in them."""

from __future__ import annotations

from collections.abc import Iterator

from .environments import CLOSING, HANGING, KINDS, MAKES
from .world import MODULE, TINY, Case, World, command

REGISTERED = ["--register", MODULE]
# What the policy's own sizes and range rule out, or what is checked only where data of one's own are named.
FINE_TO_PLAY = {"MakeWide", "MakeIntegers", "MakeUnbounded", "MakeFixed", "StepRewardMasked", "MakeTextSpace"}


def cases(world: World) -> Iterator[Case]:
    """evaluate in every kind; train, collect, export and datasets in those that they meet otherwise."""
    run = [str(world.run), *REGISTERED, "--episodes", "2"]
    for kind in KINDS:
        codes = {0, 2, 5} if kind in FINE_TO_PLAY else {2, 4, 5, 7}
        yield command("evaluate", [*run, "--env-id", f"Odd{kind}-v0"], *codes, what=kind)
    for kind in ("ResetExit", "StepExit", "StepNan", "ResetMatrix", "StepKey", "MakeRaises", *CLOSING):
        exported = [str(world.onnx), *REGISTERED, "--episodes", "2", "--env-id", f"Odd{kind}-v0"]
        codes = (0, 5) if kind in CLOSING else (5,)
        yield command("evaluate", exported, *codes, what=f"exported, {kind}")
    for kind in CLOSING:
        yield command("evaluate", [*run, "--env-id", f"Odd{kind}-v0"], 0, 5, what=kind)
    for kind in HANGING:
        yield command("evaluate", [*run, "--env-id", f"Odd{kind}-v0"], 130, what=f"Ctrl-C, {kind}", interrupt=1.5)
    yield command("evaluate", [*run, "--env-id", "Endless-v0"], 130, 2, 5, what="Endless", interrupt=3)
    for env_id in ("BadEntry-v0", "NotAnEnv-v0", "Argument-v0", "Good-v99", "Good", "", "good-v0", "../Good-v0"):
        codes = (0,) if env_id == "Good" else (2, 5)  # Gymnasium takes the newest version
        yield command("evaluate", [*run, "--env-id", env_id], *codes, what=f"environment {env_id!r}")
    own = ["--source", str(world.data), "--out", "runs", "--target-return", "4", *TINY, *REGISTERED]
    for kind in (*MAKES, "ResetShort", "ResetExit", "StepExit", "StepNan", "StepRewardText", "StepOld", "StepRaises"):
        codes = (0, 2, 3, 5) if kind in FINE_TO_PLAY else (2, 3, 5, 7)
        yield command("train", ["--env-id", f"Odd{kind}-v0", *own], *codes, what=kind)
    sac = "--steps 60 --random-steps 10 --checkpoint-every 30 --envs 1 --dataset-steps 20 --out out".split()
    for kind in (*MAKES, "ResetShort", "ResetNan", "ResetExit", "StepExit", "StepNan", "StepRewardText", "StepOld"):
        codes = (0, 2, 3, 5, 6) if kind in FINE_TO_PLAY else (2, 3, 5, 7)
        yield command("collect", ["--env", f"Odd{kind}-v0", *sac, *REGISTERED], *codes, what=kind)
    for kind in ("MakeRaises", "MakeExit", "MakeNoSpaces", "MakeDiscrete", "MakeOdd"):
        given = [str(world.data), "--env-id", f"Odd{kind}-v0", *REGISTERED]
        yield command("datasets", ["info", *given], 2, 3, 5, what=f"info, {kind}")
        own = ["--env-id", f"Odd{kind}-v0", "--source", str(world.data), *REGISTERED, "--seeds", "1", "--out", "c"]
        yield command("compare", [*own, "--jobs", "1", "--", *TINY], 2, 3, 5, what=kind)
