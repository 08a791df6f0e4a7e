"""The progress bars of loading and of generate(). They read figures and decide nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fastspec._fastspec import EngineStats

_REFRESH_SECONDS = 0.2
_SHOWN_AFTER_SECONDS = 1.0


class LoadProgress:
    """Bytes of weights placed on the device; appears once a load has taken a second."""

    def __init__(self, *, shown: bool) -> None:
        """With shown=False everything is a no-op."""
        self._shown = shown
        self._bar: Any = None
        self._start = time.monotonic()

    def update(self, done: int, total: int) -> None:
        """Called by the engine while it loads; a model after the first begins at 0 again."""
        if not self._shown or time.monotonic() - self._start < _SHOWN_AFTER_SECONDS:
            return
        if self._bar is None:
            from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

            self._bar = tqdm(total=total, desc="loading", unit="B", unit_scale=True, dynamic_ncols=True, leave=False)
        if done < self._bar.n or total != self._bar.total:
            self._bar.reset(total=total)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> LoadProgress:
        """The bar itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()


class GenerationProgress:
    """Samples done, tokens/s and acceptance length of one generate() call."""

    def __init__(self, samples: int, stats: Callable[[], EngineStats], *, shown: bool) -> None:
        """A bar over `samples`; with shown=False everything is a no-op."""
        self._stats = stats
        self._tokens = 0
        self._bar = None
        if shown:
            from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

            self._bar = tqdm(total=samples, desc="generating", unit="sample", dynamic_ncols=True)
            self._start = time.monotonic()
            self._next_refresh = self._start + _REFRESH_SECONDS
            before = stats()
            self._passes, self._decoded = before.decoding_passes, before.decoding_tokens

    def advance(self, tokens: int, sample_finished: bool) -> None:
        """Counts new tokens of a sample, and the sample when it has ended."""
        if self._bar is None:
            return
        self._tokens += tokens
        if sample_finished:
            self._bar.update(1)
        if time.monotonic() >= self._next_refresh:
            self._refresh()

    def _refresh(self) -> None:
        assert self._bar is not None
        now = time.monotonic()
        self._next_refresh = now + _REFRESH_SECONDS
        text = f"{self._tokens / max(now - self._start, 1e-9):.1f} tokens/s"
        totals = self._stats()
        passes = totals.decoding_passes - self._passes
        if passes > 0:
            text += f", τ {(totals.decoding_tokens - self._decoded) / passes:.2f}"
        self._bar.set_postfix_str(text)

    def __enter__(self) -> GenerationProgress:
        """The bar itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Writes the last figures and ends the line."""
        if self._bar is not None:
            if error is None:
                self._refresh()
            self._bar.close()
