"""The curves of a run as a picture: loss, and acceptance on validation text. Without matplotlib there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastspec import plotting
from fastspec.errors import FastSpecError

History = Sequence[Mapping[str, Any]]


def draw(path: Path, runs: Mapping[str, History]) -> bool:
    """Writes a PNG with every run's loss and mean tau over the steps. Returns False without matplotlib."""
    try:
        pyplot = plotting.pyplot()
    except FastSpecError:
        return False
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, history in runs.items():
        losses = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
        if losses:
            left.plot(*zip(*losses, strict=True), label=name)
        evaluations = [entry for entry in history if entry.get("tau")]
        for shape in sorted({shape for entry in evaluations for tau in entry["tau"].values() for shape in tau}):
            points = [(e["step"], sum(t[shape] for t in e["tau"].values()) / len(e["tau"])) for e in evaluations]
            right.plot(*zip(*points, strict=True), marker=".", label=f"{name}, {shape}")
    left.set(xlabel="step", ylabel="cross-entropy", title="training loss")
    right.set(xlabel="step", ylabel="τ, bonus included", title="acceptance length on validation text, T = 0")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    plotting.save(figure, path)
    return True
