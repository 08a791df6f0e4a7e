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
from fastspec.bench.row_budget import budget_notes, row_budget
from fastspec.bench.sides import PLAIN, Point, Run, Way
from fastspec.bench.sparse import sparse_notes
from fastspec.errors import FastSpecError, OutOfMemoryError

_VERBS = ("plan", "draft", "budget", "verify", "accept", "commit", "emit")

LONGEST = 3  # how many times its share a sequence may decode while others are slower
_PLAIN = Way(PLAIN)

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


def _notes(budget: str | None, stats: EngineStats) -> dict[str, object]:
    return {**step_notes(stats), **({} if budget is None else {"row_budget": budget_notes(stats.budget)})}


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
        self._budget = row_budget(variant) if variant else None
        self._whole_warmup = variant is not None
        self._benchmark = benchmark
        self._steps = steps
        self._speculative = speculative
        self._point = Point(0, 0)
        self._last: ShapePoint | None = None

    def prepare(self, point: Point) -> None:
        """One step, in which graphs are recorded and buffers grow; a whole run where a row budget makes more shapes."""
        self._point = point
        self._set_row_budget()
        steps = self._steps if self._whole_warmup else 1
        self._benchmark.measure(point.batch, point.context, steps, 1, self._speculative)

    def run(self) -> Run:
        """Steps from the point's context on."""
        point = self._point
        self._set_row_budget()
        self._last = self._benchmark.measure(point.batch, point.context, self._steps, 1, self._speculative)
        stats = self._last.stats
        return Run(self._last.median_milliseconds, stats.generated_tokens / stats.steps)

    def _set_row_budget(self) -> None:
        if self._budget:
            self._benchmark.set_row_budget(self._budget)

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
            **_notes(self._budget, self._last.stats),
        }


class HeldPrompts:
    """The prompts of a point, computed once; the engine holds them while the point's sides take turns on it."""

    def __init__(self, engine: Engine, prompts: Prompts, clock: Callable[[], float] = time.perf_counter) -> None:
        """`prompts` of every point that is asked for."""
        self.engine = engine
        self.clock = clock
        self.seconds = 0.0
        self._prompts = prompts
        self._requests: list[int] = []
        self._users = 0

    def take(self, point: Point) -> list[list[int]]:
        """Token ids of the prompts; the first who takes them has them computed, in `seconds`.

        Raises:
            OutOfMemoryError: when the engine cannot hold them together.
        """
        prompts = self._prompts(point)
        self._users += 1
        if self._users > 1:
            return prompts
        start = self.clock()
        self._requests = [self.engine.submit(Request(prompt_token_ids=ids, hold=True)) for ids in prompts]
        self._step()
        self.seconds = self.clock() - start
        if self.engine.stats().sequences_waiting > 0:
            raise OutOfMemoryError(f"the cache cannot hold {point.batch} prompts of {point.context} tokens together")
        return prompts

    def release(self) -> None:
        """The last who took them lets the engine forget them."""
        self._users -= 1
        if self._users > 0:
            return
        for request in self._requests:
            self.engine.cancel(request)
        self._step()

    def _step(self) -> None:
        while self.engine.has_work():
            self.engine.step()


class ModelSide:
    """Decoding of a real model after real prompts."""

    def __init__(self, prompts: HeldPrompts, max_tokens: int, way: Way = _PLAIN, *, temperature: float = 0.0) -> None:
        """`max_tokens` a sequence in the mean: no sequence leaves the batch before, as under load, when others take the
        place of those that end. Above temperature 0 every sequence has a seed of its own, the same in all runs."""
        self.name = way.name
        self._prompts = prompts
        self._engine = prompts.engine
        self._max_tokens = max_tokens
        self._way = way
        self._temperature = temperature
        self._token_ids: list[list[int]] = []
        self._notes: dict[str, object] = {}
        self._point = Point(0, 0)

    def prepare(self, point: Point) -> None:
        """A run, in which graphs are recorded and buffers grow: a short one where no variants make more shapes."""
        self._point = point
        self._token_ids = self._prompts.take(point)
        varies = self._way.row_budget is not None or self._way.sparse
        self._decode(self._max_tokens if varies else min(8, self._max_tokens))

    def run(self) -> Run:
        """Decoding after the prompts, timed from when every sequence has its first token."""
        return self._decode(self._max_tokens)

    def _decode(self, max_tokens: int) -> Run:
        engine, clock = self._engine, self._prompts.clock
        if self._way.row_budget is not None:
            engine.set_row_budget(self._way.row_budget)
        place, token_ids = self._decode_first_tokens(max_tokens)
        before = sum(map(len, token_ids))
        engine.reset_stats()
        start = clock()
        while engine.has_work() and sum(map(len, token_ids)) < max_tokens * len(place):
            self._step(place, token_ids)
        seconds = clock() - start
        stats = engine.stats()
        self._end(place)
        steps = max(stats.steps, 1)
        self._notes = _notes(self._way.row_budget, stats)
        if engine.info.selector != "none":
            self._notes["sparse"] = sparse_notes(stats.sparse, self._way.guarantee)
        return Run(1e3 * seconds / steps, (sum(map(len, token_ids)) - before) / steps, token_ids)

    def _decode_first_tokens(self, max_tokens: int) -> tuple[dict[int, int], list[list[int]]]:
        """Submits the requests and runs what is left of the prompts. Each request's place and what it has decoded."""
        requests = self._make_requests(max_tokens)
        place = {self._engine.submit(request): i for i, request in enumerate(requests)}
        token_ids: list[list[int]] = [[] for _ in place]
        while not all(token_ids):
            self._step(place, token_ids)
        return place, token_ids

    def trace(self, point: Point, steps: int) -> StepTrace:
        """Records `steps` of the decoding steps, or as many as there are."""
        self._point = point
        self._token_ids = self._prompts.take(point)
        try:
            self._engine.start_trace()  # the last of the prompts' passes are recorded too, and not counted
            place, token_ids = self._decode_first_tokens(self._max_tokens)
            done = 0
            while done < steps and self._engine.has_work():
                self._step(place, token_ids)
                done += 1
            trace = self._engine.stop_trace(max(1, done))
            self._end(place)
        finally:
            self._prompts.release()
        return trace

    def _end(self, place: dict[int, int]) -> None:
        for request in place:
            self._engine.cancel(request)
        while self._engine.has_work():
            self._engine.step()

    def _step(self, place: dict[int, int], token_ids: list[list[int]]) -> None:
        outputs: list[Output] = []
        self._engine.step_into(outputs)
        for output in outputs:
            if output.error:
                raise FastSpecError(output.error)
            token_ids[place[output.request]] += output.token_ids

    def _make_requests(self, max_tokens: int) -> list[Request]:
        way = self._way
        return [
            Request(
                prompt_token_ids=ids,
                sampling=SamplingParams(
                    temperature=self._temperature, seed=seed, max_tokens=LONGEST * max_tokens, ignore_eos=True
                ),
                speculation=RequestSpeculation(enabled=way.speculative),
                sparse=way.sparse,
                guarantee=way.guarantee,
            )
            for seed, ids in enumerate(self._token_ids)
        ]

    def stats(self) -> EngineStats:
        """Of the engine, whose last run may be another side's."""
        return self._engine.stats()

    def finish(self) -> dict[str, object]:
        """Verbs and bytes of the last run; the embedding counts among the weights."""
        self._prompts.release()
        info = self._engine.info
        length = self._point.context + self._max_tokens / 2
        return {
            "weight_bytes": float(info.weight_bytes),
            "kv_bytes": self._point.batch * length * info.kv_bytes_per_token,
            "prompt_seconds": self._prompts.seconds,
            **self._notes,
        }
