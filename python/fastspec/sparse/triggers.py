"""What could tell, at a sparse pass, that dense attention would have said something else: the trigger of a dense pass.

Two signals are at hand in a step: the share of attention inside the list, by the scores that chose it
(`SparseConfig.min_mass` goes by it), and the margin between the two best logits (`min_margin`). What one is worth its
ROC curve says: of the rows at which dense disagrees, the share that lies below a threshold, against the share of the
others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastspec.sparse.report import Cell, Estimate, bootstrap, grouped


class Row(NamedTuple):
    """One verified row.

    Attributes:
        agrees: dense has the same most likely token.
        margin: between the two best logits of the sparse pass.
        mass: Selector.known_mass of its pass.
    """

    agrees: bool
    margin: float
    mass: float | None


SIGNALS = ("margin", "mass")
ASKED = 0.1  # share of rows that a trigger may ask about, for the table


def roc(values: Sequence[float], agrees: Sequence[bool]) -> list[tuple[float, float]]:
    """The curve of "below a threshold" as a sign of disagreement, from (0, 0) to (1, 1).

    Args:
        values: of the signal, a row each.
        agrees: of the same rows; there are both kinds.

    Returns:
        (share of the agreeing rows below it, share of the disagreeing rows below it) for thresholds between distinct
        values, ascending.
    """
    good = sum(agrees)
    bad = len(agrees) - good
    points, below = [(0.0, 0.0)], [0, 0]
    ordered = sorted(zip(values, agrees, strict=True))
    for index, (value, agreed) in enumerate(ordered):
        below[agreed] += 1
        if index + 1 == len(ordered) or ordered[index + 1][0] != value:
            points.append((below[True] / good, below[False] / bad))
    return points


def area(points: Sequence[tuple[float, float]]) -> float:
    """Under a curve of roc(): the chance that a disagreeing row has less than an agreeing one; 0.5 says nothing."""
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in itertools.pairwise(points))


def caught(values: Sequence[float], agrees: Sequence[bool], asked: float) -> float:
    """Share of the disagreeing rows among the share `asked` of all rows that has least of the signal; equal rows count
    as if drawn by lot.
    """
    count = round(asked * len(values))
    if count == 0:
        return 0.0
    last = sorted(values)[count - 1]
    below = [agreed for value, agreed in zip(values, agrees, strict=True) if value < last]
    equal = [agreed for value, agreed in zip(values, agrees, strict=True) if value == last]
    found = below.count(False) + equal.count(False) * (count - len(below)) / len(equal)
    return found / (len(agrees) - sum(agrees))


def summarise_triggers(cells: Sequence[Cell], samples: int, seed: int) -> list[dict[str, Any]]:
    """One entry a selector, budget and signal that its rows have; none where all rows agree or none does.

    Args:
        cells: of quality.continuations(); those without a budget are left out.
        samples, seed: of the bootstrap.
    """
    entries = []
    for (name, budget), own in grouped(cells, ("selector", "budget")).items():
        for signal in SIGNALS if budget is not None else ():
            values, agrees = _column(own, signal)
            if not any(agrees) or all(agrees):
                continue
            entries.append(
                {
                    "selector": name,
                    "budget": budget,
                    "signal": signal,
                    "rows": len(values),
                    "disagreements": agrees.count(False),
                    "area": vars(bootstrap(own, partial(_area, signal), samples, seed)),
                    "caught": caught(values, agrees, ASKED),
                    "curve": roc(values, agrees),
                }
            )
    return entries


def _column(cells: Sequence[Cell], signal: str) -> tuple[list[float], list[bool]]:
    rows = [row for cell in cells for row in cell["triggers"] if getattr(row, signal) is not None]
    return [getattr(row, signal) for row in rows], [row.agrees for row in rows]


def _area(signal: str, cells: Sequence[Cell]) -> float:
    values, agrees = _column(cells, signal)
    # A resample in which nothing disagrees says as little as a signal that says nothing.
    return area(roc(values, agrees)) if any(agrees) and not all(agrees) else 0.5


def trigger_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        f"| trigger | selector | budget | disagreeing rows | area under ROC | caught, asking at {ASKED:.0%} of rows |",
        "|---" * 6 + "|",
    ]
    for entry in entries:
        columns = [
            entry["signal"],
            entry["selector"],
            str(entry["budget"]),
            f"{entry['disagreements']} of {entry['rows']}",
            Estimate(**entry["area"]).text(),
            f"{entry['caught']:.0%}",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)
