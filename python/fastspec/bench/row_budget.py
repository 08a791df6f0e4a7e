"""What row budgets are worth: variants on one engine, intervals of their ratios, calibration as text and picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastspec import plotting
from fastspec._fastspec import BudgetStats
from fastspec.bench.sides import PLAIN, Result, Way
from fastspec.errors import InvalidArgumentError

FULL = "full"
# Of Student's t distribution, 97.5 %, by degrees of freedom; beyond the table the normal one's is near enough.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def parse_variants(text: str) -> list[str]:
    """ "plain,full,fixed:0.5,auto": plain decoding, every drafted row verified, and row budgets as LLM() takes them."""
    variants = text.split(",")
    if len(set(variants)) < len(variants):
        raise InvalidArgumentError(f"--row-budgets {text}: names a variant twice")
    return variants


def row_budget(variant: str) -> str | None:
    """What Engine.set_row_budget takes for a variant; None for plain decoding."""
    return None if variant == PLAIN else "off" if variant == FULL else variant


def budget_way(variant: str) -> Way:
    """How a model decodes under a variant."""
    return Way(variant, speculative=variant != PLAIN, row_budget=row_budget(variant))


def budget_notes(budget: BudgetStats) -> dict[str, object]:
    """What the row budget did in a run, and how well it knew costs and chances."""
    steps = max(budget.predicted_steps, 1)
    return {
        "steps_by_share": {f"{count.ratio:g}": count.steps for count in budget.ratios},
        "undrafted_steps": budget.steps_undrafted,
        "undrafted_passes": budget.passes_undrafted,
        "probe_steps": budget.probe_steps,
        "full_steps": budget.full_steps,
        "predicted_ms": 1e3 * budget.predicted_seconds / steps,
        "measured_ms": 1e3 * budget.measured_seconds / steps,
        "off_by": budget.error_seconds / budget.measured_seconds if budget.measured_seconds > 0 else 0.0,
    }


def calibration_json(budget: BudgetStats) -> dict[str, Any]:
    """Reliability in bins of equal mass, of chances and of the drafter's confidences, and the expected errors."""

    def bins(found: Sequence[Any]) -> list[dict[str, float]]:
        return [{"predicted": b.predicted, "observed": b.observed, "count": b.count} for b in found]

    return {
        "calibration_error": budget.calibration_error,
        "raw_calibration_error": budget.raw_calibration_error,
        "reliability": bins(budget.reliability),
        "raw_reliability": bins(budget.raw_reliability),
    }


def calibration_text(calibration: dict[str, Any]) -> str:
    """The same for people; says so where too few drafted tokens were verified."""
    if not calibration["reliability"]:
        return "\ncalibration: too few drafted tokens were verified"
    lines = [
        f"\nexpected calibration error {100 * calibration['calibration_error']:.1f} %, of the drafter's confidence "
        f"{100 * calibration['raw_calibration_error']:.1f} % (bins of equal mass, over the latest tokens)",
        "  chance: accepted      confidence: accepted",
    ]
    for fitted, raw in zip(calibration["reliability"], calibration["raw_reliability"], strict=True):
        lines.append(
            f"   {fitted['predicted']:.3f}: {fitted['observed']:.3f}            {raw['predicted']:.3f}: "
            f"{raw['observed']:.3f}"
        )
    return "\n".join(lines)


def draw_calibration(calibration: dict[str, Any], path: Path) -> None:
    """The reliability plot. Its format is the file's ending."""
    figure, axes = plotting.pyplot().subplots(figsize=(5, 5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for name, label, error in (
        ("raw_reliability", "confidence of the drafter", calibration["raw_calibration_error"]),
        ("reliability", "calibrated chance", calibration["calibration_error"]),
    ):
        bins = calibration[name]
        axes.plot(
            [b["predicted"] for b in bins],
            [b["observed"] for b in bins],
            marker="o",
            label=f"{label}, off by {100 * error:.1f} %",
        )
    axes.set(xlabel="predicted", ylabel="accepted", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    plotting.save(figure, path)


def interval(numerator: Result, denominator: Result) -> tuple[float | None, float, float | None]:
    """Ratio of two sides' tokens/s, run against the run that it took turns with, and its 95 % interval (Student's t of
    the logarithms): (low, middle, high). With one run there is none: both ends are None.
    """
    pairs = zip(numerator.runs, denominator.runs, strict=True)
    logs = [math.log(a.tokens_per_second / b.tokens_per_second) for a, b in pairs]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return None, math.exp(mean), None
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    freedom = len(logs) - 1
    half = (_QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else 1.96) * deviation / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean), math.exp(mean + half)


def interval_text(ratio: tuple[float | None, float, float | None]) -> str:
    """What interval() gave, for people."""
    low, middle, high = ratio
    return f"{middle:.3f}" + (" (one run)" if low is None else f" (95 %: {low:.3f} to {high:.3f})")


def comparison_json(results: Sequence[Result]) -> dict[str, Any]:
    """`auto` over every other variant, and which of these is the fastest; empty without auto."""
    auto = next((result for result in results if result.side == "auto"), None)
    others = [result for result in results if result.side != "auto"]
    if auto is None or not others:
        return {}
    best = max(others, key=lambda result: result.median.tokens_per_second)
    return {"best": best.side, "auto_over": {other.side: interval(auto, other) for other in others}}


def comparison_text(results: Sequence[Result]) -> str:
    """Lines of comparison_json() and of what the budgets did."""
    lines = []
    for result in results:
        notes = result.notes.get("row_budget")
        if not isinstance(notes, dict):
            continue
        shares = " ".join(f"{share}: {steps}" for share, steps in notes["steps_by_share"].items()) or "none"
        line = f"  {result.side}: steps by share of rows {shares}; undrafted {notes['undrafted_steps']}"
        if notes["predicted_ms"] > 0:
            line += f"; {notes['predicted_ms']:.3f} ms predicted, {notes['measured_ms']:.3f} measured"
        lines.append(line)
    comparison = comparison_json(results)
    for side, ratio in comparison.get("auto_over", {}).items():
        best = ", the best" if side == comparison["best"] else ""
        lines.append(f"  auto over {side}{best}: {interval_text(ratio)}")
    return "\n".join(lines)
