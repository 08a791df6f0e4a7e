"""What sparse passes are worth: variants on one engine, what their passes read, intervals of their ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastspec._fastspec import SparseStats
from fastspec.bench.row_budget import interval, interval_text
from fastspec.bench.sides import PLAIN, Result, Way
from fastspec.errors import InvalidArgumentError

DENSE = "dense"
# `self` is MagicDec's way: the model drafts for itself, over a few of its keys.
_WAYS = {
    way.name: way
    for way in (
        Way(PLAIN),
        Way(DENSE, speculative=True),
        Way("sparse", speculative=True, sparse=True, guarantee="sparse"),
        Way("exact", speculative=True, sparse=True),
        Way("self", sparse=True),
    )
}


def sparse_ways(text: str, row_budget: str | None = None) -> list[Way]:
    """The ways that "plain,dense,sparse,exact,self" or a part of it names, in its order; those that draft under
    `row_budget`.
    """
    names = text.split(",")
    unknown = [name for name in names if name not in _WAYS]
    if unknown:
        raise InvalidArgumentError(f"--sparse-variants {unknown[0]}: expected some of {', '.join(_WAYS)}")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"--sparse-variants {text}: names a variant twice")
    ways = [_WAYS[name] for name in names]
    return [replace(way, row_budget=row_budget) if way.speculative else way for way in ways]


def sparse_notes(stats: SparseStats, guarantee: str) -> dict[str, object]:
    """What the passes of a run read, and how often dense ones drew what sparse ones had."""
    drawn_again = stats.confirmed_tokens + stats.taken_back_tokens
    return {
        "guarantee": guarantee,
        "sparse_passes": stats.sparse_passes,
        "dense_passes": stats.dense_passes,
        "refreshes": stats.refreshes,
        "kv_bytes_read": stats.kv_bytes_read,
        "kv_bytes_dense": stats.kv_bytes_dense,
        "mean_mass": stats.mean_mass if stats.mass_passes else None,
        "agreement": stats.confirmed_tokens / drawn_again if drawn_again else None,
    }


def sparse_comparison_json(results: Sequence[Result]) -> dict[str, Any]:
    """Of every variant the intervals of its speed over plain decoding's and over dense speculation's."""
    compared = {result.side: result for result in results if "sparse" in result.notes}
    over = {
        name: {
            base: interval(result, compared[base])
            for base in (PLAIN, DENSE)
            if base in compared and name != base and (name, base) != (PLAIN, DENSE)
        }
        for name, result in compared.items()
    }
    return {"sparse_over": {name: ratios for name, ratios in over.items() if ratios}} if compared else {}


def sparse_comparison_text(results: Sequence[Result]) -> str:
    """Lines of sparse_comparison_json() and of what passes read."""
    lines = []
    for result in results:
        notes = result.notes.get("sparse")
        if not isinstance(notes, dict):
            continue
        line = f"  {result.side}: guarantee {notes['guarantee']}; {notes['sparse_passes']} sparse passes, "
        line += f"{notes['dense_passes']} dense; {notes['kv_bytes_read'] / 1e6:.1f} MB of keys and values read, "
        line += f"{notes['kv_bytes_dense'] / 1e6:.1f} if all were dense"
        if notes["mean_mass"] is not None:
            line += f"; {100 * notes['mean_mass']:.1f} % of the attention"
        if notes["agreement"] is not None:
            line += f"; {100 * notes['agreement']:.1f} % confirmed"
        lines.append(line)
    for side, ratios in sparse_comparison_json(results).get("sparse_over", {}).items():
        lines += [f"  {side} over {base}: {interval_text(ratio)}" for base, ratio in ratios.items()]
    return "\n".join(lines)
