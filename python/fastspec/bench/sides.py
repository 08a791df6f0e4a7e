"""What is measured: points, runs and their medians; the order in which sides take turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PLAIN = "plain"  # the side without speculation


@dataclass(frozen=True)
class Point:
    """Sequences at once, and the tokens of each before decoding begins."""

    batch: int
    context: int


@dataclass(frozen=True)
class Way:
    """One way of decoding with an engine.

    name: of the side that decodes so
    speculative: with the engine's drafter
    sparse: with the engine's sparse passes
    guarantee: "exact" or "sparse"
    row_budget: what Engine.set_row_budget takes; None leaves it as it is
    """

    name: str
    speculative: bool = False
    sparse: bool = False
    guarantee: str = "exact"
    row_budget: str | None = None


@dataclass(frozen=True)
class Run:
    """One timed stretch of decoding.

    milliseconds: a step
    tokens_per_step: of all sequences together
    token_ids: what every sequence decoded, where it means something
    """

    milliseconds: float
    tokens_per_step: float
    token_ids: list[list[int]] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return 1e3 * self.tokens_per_step / self.milliseconds


class Side(Protocol):
    """One program, or one way of running it."""

    name: str

    def prepare(self, point: Point) -> None:
        """Makes ready for the runs of a point; not timed."""

    def run(self) -> Run:
        """One run of the point."""

    def finish(self) -> dict[str, object]:
        """Frees what prepare() took; returns what else is to be said about the point."""


@dataclass
class Result:
    """The runs of one side at one point."""

    side: str
    runs: list[Run] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def median(self) -> Run:
        """By tokens/s; of an even number, the slower of the middle two."""
        speeds = sorted(run.tokens_per_second for run in self.runs)
        middle = statistics.median_low(speeds)
        return next(run for run in self.runs if run.tokens_per_second == middle)


def measure(
    point: Point,
    sides: Sequence[Side],
    repetitions: int,
    advance: Callable[[], object] = lambda: None,
    until: float = math.inf,
) -> list[Result]:
    """All sides at one point, taking turns run by run, so that what disturbs the machine disturbs all of them. No round
    but the first begins after `until`, by time.monotonic().
    """
    results = [Result(side.name) for side in sides]
    for side in sides:
        side.prepare(point)
    for repetition in range(repetitions):
        if repetition > 0 and time.monotonic() > until:
            break
        for side, result in zip(sides, results, strict=True):
            result.runs.append(side.run())
            advance()
    for side, result in zip(sides, results, strict=True):
        result.notes = side.finish()
    return results


def first_difference(left: Run, right: Run) -> tuple[int, int] | None:
    """(sequences that differ, earliest differing token) of two runs on the same prompts; None where they are equal."""
    if left.token_ids is None or right.token_ids is None:
        return None
    places = [
        next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        for ours, theirs in zip(left.token_ids, right.token_ids, strict=True)
    ]
    differing = [place for place in places if place is not None]
    return (len(differing), min(differing)) if differing else None
