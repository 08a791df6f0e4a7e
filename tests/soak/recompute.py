"""Computes finished requests again, alone and without drafting, and compares (architecture: near-tie rule).

Where rounding depends on the batch, two outputs may part at a token only if another rounding could have decided so: the
winning margin is below twice the largest difference of a log-probability that was measured between a request alone and
among others, or a difference of that size lets a filter pass or stop one of the two tokens.
"""

from __future__ import annotations

import math
import queue
import threading
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from traffic import Findings, Sample

from fastspec import LLM, Engine, EngineConfig, Request, SamplingParams


@dataclass
class Alone:
    """One sample of a request that ran alone."""

    tokens: list[int]
    margins: list[float]
    text: str = ""
    finish_reason: str = ""


def copy_params(params: SamplingParams, **changes: object) -> SamplingParams:
    """The same parameters with some of them changed."""
    return SamplingParams(**{**{name: getattr(params, name) for name in params._fields}, **changes})


def measure_difference(llm: LLM, engine: Engine) -> float:
    """Largest difference of a log-probability between requests alone and together, up to where their tokens part."""
    vocab = engine.info.vocab_size
    width = min(vocab, 512)
    longest = engine.info.max_model_len
    prompts = [[1 + (7 * i * i + 3 * t) % (vocab - 1) for t in range(2 + 3 * i)] for i in range(longest // 12)]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=width)
    together = llm.generate(prompts, params, progress=False)
    largest = 0.0
    for prompt, other in zip(prompts, together, strict=True):
        alone = engine.generate([Request(prompt_token_ids=prompt, sampling=params)])[0]
        seen = other.outputs[0].logprobs
        assert seen is not None
        for t, (a, b) in enumerate(zip(alone.logprobs, seen, strict=True)):
            known = {entry.token: entry.logprob for entry in b.top}
            pairs = [(entry.logprob, known[entry.token]) for entry in a.top if entry.token in known]
            largest = max(largest, *(abs(x - y) for x, y in pairs))
            if alone.token_ids[t] != other.outputs[0].token_ids[t]:
                break
    return largest


class Recomputer:
    """A thread with an engine of its own. Takes what it has time for."""

    def __init__(self, config: EngineConfig, exact: bool, findings: Findings) -> None:
        self.engine = Engine(config)
        self.tolerance = 0.0
        self._exact = exact
        self._findings = findings
        self._queue: queue.Queue[Sample | None] = queue.Queue(maxsize=8)
        self._thread = threading.Thread(target=self._run, name="recompute", daemon=True)

    def calibrate(self, llm: LLM) -> None:
        """Measures the tolerance; the LLM must be idle."""
        if not self._exact:
            self.tolerance = 2 * measure_difference(llm, self.engine)

    def start(self) -> None:
        self._thread.start()

    def offer(self, sample: Sample) -> None:
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self._findings.count("not recomputed")

    def finish(self, seconds: float) -> bool:
        """Compares what is queued and ends; False when that took longer."""
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (sample := self._queue.get()) is not None:
            try:
                self._compare(sample)
            except Exception:
                self._findings.fail(f"recomputation: {traceback.format_exc()}")

    def _alone(self, sample: Sample) -> list[Alone]:
        params = copy_params(sample.params, seed=sample.output.outputs[0].seed, logprobs=None)
        self.engine.submit(Request(prompt_token_ids=sample.prompt_token_ids, sampling=params))
        alone = [Alone([], []) for _ in range(params.n)]
        outputs: list[object] = []
        while self.engine.has_work():
            self.engine.step_into(outputs)
            for delta in outputs:
                one = alone[delta.sample]
                one.tokens += delta.token_ids
                one.margins += [delta.min_margin] * len(delta.token_ids)
                one.text += delta.text
                one.finish_reason = delta.finish_reason
            outputs.clear()
        return alone

    def _compare(self, sample: Sample) -> None:
        for expected, seen in zip(self._alone(sample), sample.output.outputs, strict=True):
            self._findings.count("recomputed samples")
            if expected.tokens == seen.token_ids:
                if (expected.text, expected.finish_reason) != (seen.text, seen.finish_reason):
                    self._findings.fail(f"{sample.lane}: equal tokens, another text or end than alone")
                continue
            pairs = enumerate(zip(expected.tokens, seen.token_ids, strict=False))
            place = next((t for t, (a, b) in pairs if a != b), None)
            if place is not None and self._near_tie(sample, expected, place, seen.token_ids[place]):
                self._findings.count("near-ties")
                continue
            self._findings.fail(
                f"{sample.lane}: not the tokens of the request alone: at {place} of {len(expected.tokens)}, margin "
                f"{expected.margins[place] if place is not None else None}, tolerance {self.tolerance}; prompt "
                f"{sample.prompt_token_ids}, params {sample.params}, alone {expected.tokens}, seen {seen.token_ids}"
            )

    def _near_tie(self, sample: Sample, expected: Alone, place: int, seen_token: int) -> bool:
        if self._exact:
            return False
        params = sample.params
        scale = params.temperature or 1.0  # margins are in units of logit / temperature
        tolerance = self.tolerance * max(1.0, params.repetition_penalty)
        if expected.margins[place] * scale < tolerance:
            return True
        vocab = self.engine.info.vocab_size
        request = Request(
            prompt_token_ids=[*sample.prompt_token_ids, *expected.tokens[:place]],
            sampling=SamplingParams(temperature=0.0, max_tokens=1, logprobs=vocab),
        )
        logprobs = {e.token: e.logprob for e in self.engine.generate([request])[0].logprobs[0].top}
        return any(
            is_at_cutoff(logprobs, params, token, self.tolerance) for token in (expected.tokens[place], seen_token)
        )


def is_at_cutoff(logprobs: dict[int, float], params: SamplingParams, token: int, tolerance: float) -> bool:
    """Whether another rounding could let a filter decide otherwise about a token.

    Args:
        logprobs: of the whole vocabulary.
        params: with at most one filter, and no penalties beside it.
        token: the one in question.
        tolerance: by which the distance of two log-probabilities may be off.
    """
    if params.temperature == 0:
        return False
    own, best = logprobs[token], max(logprobs.values())
    others = [value for other, value in logprobs.items() if other != token]
    surely_before = [value for value in others if value > own + tolerance]
    maybe_before = [value for value in others if value >= own - tolerance]
    if params.top_k > 0:
        return len(surely_before) < params.top_k <= len(maybe_before)
    if params.min_p > 0:
        return abs(own - best - params.temperature * math.log(params.min_p)) <= tolerance
    if params.top_p < 1:

        def mass(values: Iterable[float]) -> float:
            return sum(math.exp((value - best) / params.temperature) for value in values)

        total, slack = mass(logprobs.values()), math.exp(tolerance / params.temperature)
        return mass(surely_before) / total / slack < params.top_p <= mass(maybe_before) / total * slack
    return False
