"""Progress bars of the offline tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")


def counting(total: int | None, what: str, shown: bool | None) -> Any:
    """A bar to update(); use it as a context manager. shown None = where stderr is a terminal."""
    from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

    return tqdm(total=total, desc=what, dynamic_ncols=True, disable=None if shown is None else not shown)


def over(items: Iterable[Item], total: int, what: str, shown: bool | None) -> Iterable[Item]:
    """Items behind a bar."""
    with counting(total, what, shown) as bar:
        for item in items:
            yield item
            bar.update()
