"""What steps cost, as a picture: the object that `fastspec-cli profile --json` prints."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from fastspec import plotting
from fastspec.errors import InvalidFileError, NotFoundError


def add_plot(actions: Any) -> None:
    """Adds `plot` to the actions of `profile`."""
    plot = actions.add_parser(
        "plot", help="draw costs of steps as `fastspec-cli profile --json` measured them ([bench])"
    )
    plot.add_argument("costs", type=Path, help="the file that it wrote")
    plot.add_argument("--output", type=Path, help="the picture; by default beside the file, with its name and .png")
    plot.set_defaults(run=_plot)


def _plot(options: argparse.Namespace) -> int:
    output: Path = options.output or options.costs.with_suffix(".png")
    plotting.check("--output", output)
    draw(read(options.costs), output)
    print(output)
    return 0


def read(path: Path) -> dict[str, Any]:
    """Reads a profile. Raises NotFoundError without a file, InvalidFileError for anything else."""
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file")
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        for table in (profile["linear"], profile["draft"]):
            if not table["counts"] or len(table["counts"]) != len(table["milliseconds"]):
                raise ValueError("a table of costs is empty, or its columns differ in length")
            if not all(math.isfinite(value) and value >= 0 for value in (*table["counts"], *table["milliseconds"])):
                raise ValueError("a count or a time is no finite number of 0 or more")
        for check in profile["checks"]:
            _ = [float(check[f"{kind}_milliseconds"]) for kind in ("measured", "predicted")]
        str(profile["key"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        message = f"no output of `fastspec-cli profile --json`: {type(error).__name__}: {error}"
        raise InvalidFileError(f"{path}: {message}") from None
    result: dict[str, Any] = profile
    return result


def draw(profile: dict[str, Any], path: Path) -> None:
    """Writes a picture of the costs by rows and by drafting sequences, and of predictions beside measured passes."""
    figure, (left, middle, right) = plotting.pyplot().subplots(1, 3, figsize=(14, 4), layout="constrained")
    figure.suptitle(profile["key"], fontsize=7, wrap=True, parse_math=False)
    for axes, table, label in ((left, "linear", "rows of a pass"), (middle, "draft", "sequences that draft")):
        axes.plot(profile[table]["counts"], profile[table]["milliseconds"], marker=".")
        axes.set(xlabel=label, ylabel="ms")
        axes.set_ylim(bottom=0)
    measured = [check["measured_milliseconds"] for check in profile["checks"]]
    predicted = [check["predicted_milliseconds"] for check in profile["checks"]]
    if measured:
        most = max(*measured, *predicted)
        right.plot([0, most], [0, most], color="gray", linewidth=0.8)
        right.plot(measured, predicted, marker="o", linestyle="")
    right.set(xlabel="measured, ms", ylabel="predicted, ms", title="passes that were not fitted")
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    plotting.save(figure, path)
