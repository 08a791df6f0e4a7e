"""Quality figures with bootstrap intervals, as tables, JSON and a picture's data."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = Mapping[str, Any]
Statistic = Callable[[Sequence[Cell]], float]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 3) -> str:
        """For a table."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def bootstrap(cells: Sequence[Cell], statistic: Statistic, samples: int, seed: int) -> Estimate:
    """A statistic of cells (one a document or question), with the percentile interval of its resamples.

    The resamples depend on seed and number of cells only, so that selectors are compared on the same ones.
    """
    generator = random.Random(seed)
    found = sorted(statistic(generator.choices(cells, k=len(cells))) for _ in range(samples))
    return Estimate(statistic(cells), found[int(0.025 * samples)], found[min(samples - 1, int(0.975 * samples))])


def _ratio(numerator: Callable[[Cell], float]) -> Statistic:
    return lambda cells: sum(map(numerator, cells)) / sum(cell["rows"] for cell in cells)


STATISTICS: dict[str, Statistic] = {
    "agreement": _ratio(lambda cell: cell["agreed"]),
    "kl": _ratio(lambda cell: cell["kl"]),
    "perplexity": lambda cells: math.exp(_ratio(lambda cell: cell["nll"])(cells)),
    "perplexity_ratio": lambda cells: math.exp(_ratio(lambda cell: cell["nll"] - cell["dense_nll"])(cells)),
    "agreement_alone": _ratio(lambda cell: cell["alone"]["agreed"]),
    "kl_alone": _ratio(lambda cell: cell["alone"]["kl"]),
}
"""Of continuations; "alone": with dense keys and values kept."""


def drift(cells: Sequence[Cell]) -> list[dict[str, float]]:
    """KL in each part of the run, with the passes' own keys and values and with dense ones."""
    parts = []
    for index in range(len(cells[0]["parts"])):
        own = [cell["parts"][index] for cell in cells]
        alone = [cell["alone"]["parts"][index] for cell in cells]
        rows = max(1, sum(count for count, _ in own))
        parts.append({"kl": sum(kl for _, kl in own) / rows, "kl_alone": sum(kl for _, kl in alone) / rows})
    return parts


def grouped(cells: Sequence[Cell], names: Sequence[str]) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells by the values of some of their fields, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[name] for name in names), []).append(cell)
    return groups


def summarise(cells: Sequence[Cell], samples: int, seed: int) -> list[dict[str, Any]]:
    """Continuations: one entry a selector and budget over all kinds, and one a kind and context."""
    entries = []
    for names in (("selector", "budget"), ("selector", "budget", "kind", "context")):
        for group, own in grouped(cells, names).items():
            masses = [cell["mass"] for cell in own if cell["mass"] is not None]
            entry: dict[str, Any] = {"kind": "all", "context": "all"} | dict(zip(names, group, strict=True))
            entry |= {"documents": len(own), "rows": sum(cell["rows"] for cell in own)}
            entry |= {name: vars(bootstrap(own, of, samples, seed)) for name, of in STATISTICS.items()}
            entries.append(entry | {"mass": sum(masses) / len(masses) if masses else None, "drift": drift(own)})
    return entries


def summarise_answers(cells: Sequence[Cell], samples: int, seed: int) -> list[dict[str, Any]]:
    """Answers: one entry a selector, budget, task and length."""
    names = ("selector", "budget", "task", "length")
    return [
        dict(zip(names, group, strict=True))
        | {"questions": len(own), "score": vars(bootstrap(own, _mean_score, samples, seed))}
        for group, own in grouped(cells, names).items()
    ]


def _mean_score(cells: Sequence[Cell]) -> float:
    return float(sum(cell["score"] for cell in cells) / len(cells))


def continuation_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """All kinds together, as Markdown."""
    lines = [
        "| selector | budget | agreement | KL | perplexity / dense | mass | KL with dense K/V | drift, last quarter |",
        "|---" * 8 + "|",
    ]
    for entry in entries:
        if entry["kind"] == "all":
            last = entry["drift"][-1]
            mass = "" if entry["mass"] is None else f"{entry['mass']:.3f}"
            columns = [
                entry["selector"],
                str(entry["budget"] or ""),
                *(Estimate(**entry[name]).text() for name in ("agreement", "kl", "perplexity_ratio")),
                mass,
                f"{entry['kl_alone']['value']:.3f}",
                f"{last['kl'] - last['kl_alone']:+.3f}",
            ]
            lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def kind_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Agreement by kind of text and context, as Markdown."""
    own = [entry for entry in entries if entry["kind"] != "all"]
    columns = list(dict.fromkeys((entry["kind"], entry["context"]) for entry in own))
    lines = [
        f"| agreement | budget | {' | '.join(f'{kind}, {context}' for kind, context in columns)} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for (name, budget), group in grouped(own, ("selector", "budget")).items():
        by_column = {(entry["kind"], entry["context"]): entry["agreement"] for entry in group}
        texts = [Estimate(**by_column[column]).text() if column in by_column else "" for column in columns]
        lines.append(f"| {name} | {budget or ''} | {' | '.join(texts)} |")
    return "\n".join(lines)


def answer_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Scores by task and length, as Markdown."""
    columns = list(dict.fromkeys((entry["task"], entry["length"]) for entry in entries))
    lines = [
        f"| score | budget | {' | '.join(f'{task}, {length}' if length else task for task, length in columns)} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for (name, budget), group in grouped(entries, ("selector", "budget")).items():
        by_column = {(entry["task"], entry["length"]): entry["score"] for entry in group}
        texts = [Estimate(**by_column[column]).text(2) if column in by_column else "" for column in columns]
        lines.append(f"| {name} | {budget or ''} | {' | '.join(texts)} |")
    return "\n".join(lines)
