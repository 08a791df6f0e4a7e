"""Pictures of a profile and of a quality report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastspec import plotting
from fastspec.sparse.profile import Profile

_ARR = "recovered attention"


def draw_profile(profile: Profile, path: Path) -> None:
    """Writes the map of heads, those of the manifest framed, and recovered attention against m."""
    manifest = profile.manifest
    maps = [("target", profile.heads.target, dict(manifest.target.layers))]
    if profile.heads.drafter is not None:
        chosen = {} if manifest.drafter is None else dict(manifest.drafter.layers)
        maps.append(("drafter", profile.heads.drafter, chosen))
    figure, axes = plotting.pyplot().subplots(1, len(maps) + 1, figsize=(5 * (len(maps) + 1), 5), layout="constrained")
    for place, (name, merits, layers) in zip(axes, maps, strict=False):
        _draw_map(figure, place, name, merits, layers)
    curve = axes[-1]
    for name, points in profile.recovered.items():
        if points:
            curve.plot(*zip(*points, strict=True), marker=".", label=name)
    for name in ("profiled", "history of all heads", "streaming", "oracle"):
        curve.axhline(profile.held_out[name].arr, linewidth=0.8, linestyle=":", color="gray")
        curve.annotate(name, (0, profile.held_out[name].arr), fontsize=7, color="gray")
    curve.set(xlabel=f"m, lookahead slots of {manifest.budget.slots}", ylabel=_ARR, title=f"{_ARR} against m")
    curve.grid(alpha=0.3)
    if profile.search.divisions:
        curve.axvline(manifest.lookahead_slots, color="tab:red", linewidth=0.8)
        curve.legend(fontsize=8)
    plotting.save(figure, path)


def _draw_map(figure: Any, axes: Any, name: str, merits: torch.Tensor, layers: dict[int, tuple[int, ...]]) -> None:
    picture = axes.imshow(merits.numpy(), aspect="auto", cmap="viridis", origin="lower")
    figure.colorbar(picture, ax=axes)
    for layer, heads in layers.items():
        axes.plot(heads, [layer] * len(heads), linestyle="", marker="s", fillstyle="none", color="tab:red")
    axes.set(xlabel="head", ylabel="layer", title=f"heads of the {name}; framed: in the manifest")


def draw_quality(
    entries: Sequence[Mapping[str, Any]],
    triggers: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    path: Path,
) -> None:
    """Writes agreement, divergence and scores against the budget, a line a selector, and ROC curves of triggers."""
    figure, places = plotting.pyplot().subplots(1, 4, figsize=(20, 4.5), layout="constrained")
    left, middle, right, curves = places
    own = [entry for entry in entries if entry["kind"] == "all" and entry["budget"] is not None]
    for axes, measure in ((left, "agreement"), (middle, "kl")):
        for name in dict.fromkeys(entry["selector"] for entry in own):
            _line(axes, name, [(entry["budget"], entry[measure]) for entry in own if entry["selector"] == name])
    middle.set_yscale("log")
    for name in dict.fromkeys(entry["selector"] for entry in answers if entry["budget"] is not None):
        by_budget: dict[int, list[float]] = {}
        for entry in answers:
            if entry["selector"] == name:
                by_budget.setdefault(entry["budget"], []).append(entry["score"]["value"])
        right.plot(list(by_budget), [sum(v) / len(v) for v in by_budget.values()], marker=".", label=name)
    titles = ("agreement with dense", "KL from dense, nats", "mean score of retrieval")
    for axes, title in zip((left, middle, right), titles, strict=True):
        axes.set(xlabel="budget, tokens", title=title)
    _draw_triggers(curves, triggers)
    for axes in places:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    plotting.save(figure, path)


def _draw_triggers(axes: Any, triggers: Sequence[Mapping[str, Any]]) -> None:
    """Of the smallest budget, at which most rows disagree."""
    budget = min((entry["budget"] for entry in triggers), default=None)
    for entry in triggers:
        if entry["budget"] == budget:
            style = "-" if entry["signal"] == "margin" else "--"
            label = f"{entry['selector']}, {entry['signal']} ({entry['area']['value']:.2f})"
            axes.plot(*zip(*entry["curve"], strict=True), style, linewidth=1, label=label)
    axes.set(
        xlabel="agreeing rows below the threshold",
        ylabel="disagreeing rows below it",
        title="triggers" if budget is None else f"triggers, budget {budget}",
    )


def _line(axes: Any, name: str, points: list[tuple[int, Mapping[str, float]]]) -> None:
    budgets = [budget for budget, _ in points]
    line = axes.plot(budgets, [found["value"] for _, found in points], marker=".", label=name)[0]
    low, high = [found["low"] for _, found in points], [found["high"] for _, found in points]
    axes.fill_between(budgets, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
