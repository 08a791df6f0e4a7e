"""What all pictures share. They need matplotlib, of the extra [train] or [bench]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastspec.errors import FastSpecError, InvalidArgumentError

ENDINGS = (".png", ".pdf", ".svg")


def check(option: str, path: Path) -> None:
    """Raises before long work where the picture that `option` names cannot be drawn: InvalidArgumentError for a name
    with another ending, FastSpecError without matplotlib.
    """
    if path.suffix not in ENDINGS:
        raise InvalidArgumentError(f"{option} {path}: expected a name that ends in {', '.join(ENDINGS)}")
    pyplot()


def pyplot() -> Any:
    """matplotlib's, without a display. Raises FastSpecError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise FastSpecError("drawing needs matplotlib: pip install 'fastspec-engine[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path) -> None:
    """Writes the picture in the format of its ending, makes its folder where there is none, and closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
