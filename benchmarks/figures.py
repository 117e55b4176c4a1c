"""Numbers that were measured several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of the rounds, and their extremes."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Self:
        """One figure of what the rounds gave, with four digits after the point."""
        return cls(*(round(value, 4) for value in (median(rounds), min(rounds), max(rounds))))

    @classmethod
    def ratio(cls, these: Sequence[float], those: Sequence[float]) -> Self:
        """These by those, round by round: what slows a whole round down cancels out."""
        return cls.of([this / that for this, that in zip(these, those, strict=True)])

    def as_json(self) -> dict[str, float]:
        """As it stands in bench.json."""
        return asdict(self)
