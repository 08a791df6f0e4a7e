"""Results as text and as JSON."""

from __future__ import annotations

from typing import Any

from fastspec.bench.row_budget import comparison_json, comparison_text
from fastspec.bench.sides import Point, Result, first_difference
from fastspec.bench.sparse import sparse_comparison_json, sparse_comparison_text


def roofline_milliseconds(result: Result, rate: float) -> float | None:
    """Milliseconds that reading weights and K/V once a step takes; None where bytes or rate are not known."""
    weights, kv = result.notes.get("weight_bytes"), result.notes.get("kv_bytes")
    if rate <= 0 or not isinstance(weights, float) or not isinstance(kv, float):
        return None
    return 1e3 * (weights + kv) / rate


def point_json(point: Point, results: list[Result], rate: float) -> dict[str, Any]:
    """Everything about a point; `over` is the ratio of the first side's tokens/s, and so on, to each other side's."""
    sides = {}
    for result in results:
        sides[result.side] = {
            "ms_per_step": result.median.milliseconds,
            "ms_per_step_runs": [run.milliseconds for run in result.runs],
            "tokens_per_second": result.median.tokens_per_second,
            "roofline_ms": roofline_milliseconds(result, rate),
            "over": {
                other.side: result.median.tokens_per_second / other.median.tokens_per_second
                for other in results
                if other is not result
            },
            **result.notes,
        }
    return {
        "batch": point.batch,
        "context": point.context,
        "sides": sides,
        "differences": _differences(results),
        **comparison_json(results),
        **sparse_comparison_json(results),
    }


def _differences(results: list[Result]) -> dict[str, tuple[int, int] | None]:
    """Of every side's last tokens from the first side's, where sides decode real prompts."""
    if results[0].runs[-1].token_ids is None:
        return {}
    first = results[0].runs[-1]
    return {result.side: first_difference(first, result.runs[-1]) for result in results[1:]}


def point_text(point: Point, results: list[Result], rate: float) -> str:
    """The lines of a point."""
    lines = [f"\nbatch {point.batch}, context {point.context}"]
    for result in results:
        runs = [run.milliseconds for run in result.runs]
        median = result.median
        line = (
            f"  {result.side:22s} {median.milliseconds:9.3f} ms/step ({min(runs):.3f} to {max(runs):.3f})"
            f" {median.tokens_per_second:10.1f} tokens/s"
        )
        roofline = roofline_milliseconds(result, rate)
        if roofline is not None:
            line += f"  roofline {roofline:.3f} ms: {100 * roofline / median.milliseconds:.1f} %"
        others = [other for other in results if other is not result and other.side in ("plain", "transformers")]
        if result.side != "transformers":
            ratios = [
                f"{median.tokens_per_second / other.median.tokens_per_second:.2f} x {other.side}" for other in others
            ]
            line += "".join(f"  {ratio}" for ratio in ratios)
        lines.append(line)
        lines += _note_lines(result)
    lines += [compared for compared in (comparison_text(results), sparse_comparison_text(results)) if compared]
    for side, difference in _differences(results).items():
        if difference is None:
            lines.append(f"  tokens of {side}: those of {results[0].side}")
        else:
            lines.append(f"  tokens of {side}: {difference[0]} sequences differ, first at token {difference[1]}")
    return "\n".join(lines)


def _note_lines(result: Result) -> list[str]:
    lines = []
    verbs = result.notes.get("ms_per_step_by_verb")
    if isinstance(verbs, dict):
        lines.append("    ms/step:" + "".join(f"  {verb} {value:.3f}" for verb, value in verbs.items()))
        tau = result.notes["acceptance_length"]
        if isinstance(tau, float) and tau != 1:
            lines[-1] += f"  tau {tau:.2f}"
    ways = result.notes.get("ms_per_step_by_way")
    if isinstance(ways, dict):
        lines.append(f"    {result.notes['way']} (ways: " + ", ".join(f"{w} {ms:.2f}" for w, ms in ways.items()) + ")")
    failed = result.notes.get("ways_that_failed")
    if isinstance(failed, dict):
        lines += [f"    {way} does not run: {reason}" for way, reason in failed.items()]
    return lines
