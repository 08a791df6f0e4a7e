"""This engine's sides: a shape with random weights, and a real model, each plain or speculative."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastspec._fastspec import (
    Engine,
    EngineStats,
    Output,
    Request,
    RequestSpeculation,
    SamplingParams,
    ShapeBenchmark,
    ShapePoint,
    StepTrace,
)
from fastspec.bench.row_budget import PLAIN, budget_notes, row_budget
from fastspec.bench.sides import Point, Run
from fastspec.errors import FastSpecError

_VERBS = ("plan", "draft", "budget", "verify", "accept", "commit", "emit")

Prompts = Callable[[Point], list[list[int]]]


def step_notes(stats: EngineStats) -> dict[str, object]:
    """Where the steps of a run went."""
    steps = max(stats.steps, 1)
    return {
        "acceptance_length": stats.acceptance_length,
        "ms_per_step_by_verb": {verb: 1e3 * getattr(stats, f"{verb}_seconds") / steps for verb in _VERBS},
        "graph_replays": stats.graph_replays,
        "graph_captures": stats.graph_captures,
        "graph_eager_passes": stats.graph_eager_passes,
    }


def _variant_notes(variant: str | None, stats: EngineStats) -> dict[str, object]:
    return {**step_notes(stats), **({} if variant in (None, PLAIN) else {"row_budget": budget_notes(stats.budget)})}


class ShapeSide:
    """Decoding of a shape on a KV cache of noise."""

    def __init__(
        self, benchmark: ShapeBenchmark, steps: int, *, speculative: bool = False, variant: str | None = None
    ) -> None:
        """`steps` a run; `speculative` with the synthetic acceptance that the benchmark was made with, or `variant` of
        row_budget.parse_variants().
        """
        speculative = variant != PLAIN if variant else speculative
        self.name = variant or ("SYNTHETIC speculation" if speculative else PLAIN)
        self._variant = variant
        self._benchmark = benchmark
        self._steps = steps
        self._speculative = speculative
        self._point = Point(0, 0)
        self._last: ShapePoint | None = None

    def prepare(self, point: Point) -> None:
        """One step, in which graphs are recorded and buffers grow; a whole run where a row budget makes more shapes."""
        self._point = point
        self._set_row_budget()
        steps = self._steps if self._variant else 1
        self._benchmark.measure(point.batch, point.context, steps, 1, self._speculative)

    def run(self) -> Run:
        """Steps from the point's context on."""
        point = self._point
        self._set_row_budget()
        self._last = self._benchmark.measure(point.batch, point.context, self._steps, 1, self._speculative)
        stats = self._last.stats
        return Run(self._last.median_milliseconds, stats.generated_tokens / stats.steps)

    def _set_row_budget(self) -> None:
        budget = row_budget(self._variant) if self._variant else None
        if budget:
            self._benchmark.set_row_budget(budget)

    def trace(self, point: Point, steps: int) -> StepTrace:
        """Records `steps` decoding steps from the point on."""
        self._set_row_budget()
        return self._benchmark.trace(point.batch, point.context, steps, self._speculative)

    def stats(self) -> EngineStats:
        """Of the last run."""
        assert self._last is not None
        return self._last.stats

    def finish(self) -> dict[str, object]:
        """Verbs and bytes of the last run."""
        assert self._last is not None
        return {
            "weight_bytes": self._last.weight_bytes,
            "kv_bytes": self._last.kv_bytes,
            "host_gap_ms": self._last.host_gap_milliseconds,
            **_variant_notes(self._variant, self._last.stats),
        }


class ModelSide:
    """Decoding of a real model after real prompts."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        max_tokens: int,
        *,
        speculative: bool = False,
        variant: str | None = None,
        temperature: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`max_tokens` a sequence; `speculative` with the engine's drafter, or `variant` of
        row_budget.parse_variants(). Above temperature 0 every sequence has a seed of its own, the same in all runs.
        """
        speculative = variant != PLAIN if variant else speculative
        self.name = variant or (engine.info.drafter if speculative else PLAIN)
        self._variant = variant
        self._temperature = temperature
        self._clock = clock
        self._notes: dict[str, object] = {}
        self._engine = engine
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._speculative = speculative
        self._requests: list[Request] = []
        self._point = Point(0, 0)
        self._prompt_seconds = 0.0

    def prepare(self, point: Point) -> None:
        """A short run, in which graphs are recorded and buffers grow; a whole one with a row budget."""
        self._point = point
        self._requests = self._make_requests(self._max_tokens if self._variant else min(8, self._max_tokens))
        self.run()
        self._requests = self._make_requests(self._max_tokens)

    def run(self) -> Run:
        """Prompts, then decoding, which alone is timed: it begins when every sequence has its first token."""
        engine = self._engine
        budget = row_budget(self._variant) if self._variant else None
        if budget:
            engine.set_row_budget(budget)
        start = self._clock()
        place, token_ids = self._decode_first_tokens()
        self._prompt_seconds = self._clock() - start
        before = sum(map(len, token_ids))
        engine.reset_stats()
        start = self._clock()
        while engine.has_work():
            self._step(place, token_ids)
        seconds = self._clock() - start
        stats = engine.stats()
        steps = max(stats.steps, 1)
        self._notes = _variant_notes(self._variant, stats)
        return Run(1e3 * seconds / steps, (sum(map(len, token_ids)) - before) / steps, token_ids)

    def _decode_first_tokens(self) -> tuple[dict[int, int], list[list[int]]]:
        """Submits the requests and runs the prompts. Returns each request's place and what it has decoded."""
        place = {self._engine.submit(request): i for i, request in enumerate(self._requests)}
        token_ids: list[list[int]] = [[] for _ in place]
        while not all(token_ids):
            self._step(place, token_ids)
        return place, token_ids

    def trace(self, point: Point, steps: int) -> StepTrace:
        """Records `steps` of the decoding steps, or as many as there are."""
        self._point = point
        self._requests = self._make_requests(self._max_tokens)
        self._engine.start_trace()  # the prompts' passes are recorded too, and not counted
        place, token_ids = self._decode_first_tokens()
        done = 0
        while done < steps and self._engine.has_work():
            self._step(place, token_ids)
            done += 1
        trace = self._engine.stop_trace(max(1, done))
        for request in place:
            self._engine.cancel(request)
        while self._engine.has_work():
            self._engine.step()
        return trace

    def _step(self, place: dict[int, int], token_ids: list[list[int]]) -> None:
        outputs: list[Output] = []
        self._engine.step_into(outputs)
        for output in outputs:
            if output.error:
                raise FastSpecError(output.error)
            token_ids[place[output.request]] += output.token_ids

    def _make_requests(self, max_tokens: int) -> list[Request]:
        speculation = RequestSpeculation(enabled=self._speculative)
        return [
            Request(
                prompt_token_ids=ids,
                sampling=SamplingParams(
                    temperature=self._temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True
                ),
                speculation=speculation,
            )
            for seed, ids in enumerate(self._prompts(self._point))
        ]

    def stats(self) -> EngineStats:
        """Of the engine, whose last run may be another side's."""
        return self._engine.stats()

    def finish(self) -> dict[str, object]:
        """Verbs and bytes of the last run; the embedding counts among the weights."""
        info = self._engine.info
        length = self._point.context + self._max_tokens / 2
        return {
            "weight_bytes": float(info.weight_bytes),
            "kv_bytes": self._point.batch * length * info.kv_bytes_per_token,
            "prompt_seconds": self._prompt_seconds,
            **self._notes,
        }
