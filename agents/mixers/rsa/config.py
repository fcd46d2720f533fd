"""Which heads of a layer have a recurrence encoding matrix (REM), and of which kind (Huang et al. 2023, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

from ...ranges import COUNT_FROM_0, LARGE, Range, check_limits, setting


@dataclass(frozen=True)
class RemConfig:
    """How many of a layer's heads have which REM (section 3, "Hyperparameters"), and how they begin.

    Attributes:
        counts: k1 to k6: regular, cosine, sine, dilated regular, dilated cosine, dilated sine.
        dilation: d of the last three, in tokens.
        max_power: K; larger powers are masked. 0: none are. None: the mixer's own choice.
        gate: the gate-control parameter mu before training.
    """

    counts: tuple[int, int, int, int, int, int]
    dilation: int = setting(3, limits=Range(2, LARGE))
    max_power: int | None = setting(None, limits=COUNT_FROM_0)
    gate: float = setting(0.0, limits=Range(-3, 3))

    def __post_init__(self) -> None:
        """Raises ValueError for counts below 0 or all 0, and for what lies outside the paper's range."""
        if len(self.counts) != 6 or min(self.counts) < 0 or sum(self.counts) < 1:
            raise ValueError(f"REM counts must be six numbers from 0 on, not all 0: {self.counts}")
        check_limits(self)

    @property
    def heads(self) -> int:
        """R, heads that have a REM; the layer's others are attention alone."""
        return sum(self.counts)


def parse_counts(text: str, heads: int) -> tuple[int, int, int, int, int, int]:
    """k1 to k6 of a layer with `heads` heads.

    Args:
        text: six numbers with commas between them, or "auto": every head has a REM, half of them a dilated one, and of
            either half all but one or two are pairs of cosine and sine: (2, 1, 1, 2, 1, 1) for 8 heads.
        heads: H of the layer.

    Raises:
        ValueError: not six numbers, or more than there are heads.
    """
    if not isinstance(text, str):  # it comes from a file
        raise ValueError(f"the REMs' counts {text!r} are not text")
    if text == "auto":
        halves = (heads - heads // 2, heads // 2)
        (near, pairs), (far, far_pairs) = ((n - 2 * m, m) for n in halves for m in [max(0, (n - 1) // 2)])
        return near, pairs, pairs, far, far_pairs, far_pairs
    parts = text.split(",")
    if len(parts) != 6 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not auto or six numbers k1,k2,k3,k4,k5,k6")
    k1, k2, k3, k4, k5, k6 = map(int, parts)
    if (total := k1 + k2 + k3 + k4 + k5 + k6) > heads:
        raise ValueError(f"{text!r} has {total} REMs for {heads} heads")
    return k1, k2, k3, k4, k5, k6
