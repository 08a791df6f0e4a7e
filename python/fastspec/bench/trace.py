"""The record of kernels that is made after the timed runs, where the device is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastspec._fastspec import StepTrace
from fastspec.bench.sides import Point
from fastspec.errors import UnsupportedError

HEADING = "\nKernels, recorded in runs of their own after the timed ones, because recording slows the host:"


def try_trace(make: Callable[[], StepTrace]) -> StepTrace | str:
    """The record, or why there can be none."""
    try:
        return make()
    except UnsupportedError as error:
        return str(error)


def trace_json(traced: StepTrace | str) -> dict[str, Any]:
    """As fastspec-cli bench writes it."""
    if isinstance(traced, str):
        return {"not_traced": traced}
    return {
        "steps": traced.steps,
        "ms_per_step": traced.milliseconds,
        "busy_ms": traced.busy_milliseconds,
        "idle_inside_ms": traced.idle_inside_milliseconds,
        "idle_between_ms": traced.idle_between_milliseconds,
        "kernels": [
            {
                "name": kernel.name,
                "launches_per_step": kernel.launches,
                "ms_per_step": kernel.milliseconds,
                "share": kernel.share,
            }
            for kernel in traced.kernels
        ],
    }


def trace_text(point: Point, side: str, traced: StepTrace | str) -> str:
    """The lines of one side at one point."""
    found = f"not traced: {traced}" if isinstance(traced, str) else str(traced).rstrip()
    return f"\nbatch {point.batch}, context {point.context}, {side}: {found}"
