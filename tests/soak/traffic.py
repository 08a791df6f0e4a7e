"""Random callers of an LLM: batches, streams read to their end, streams that are dropped, requests that must be refused.

Every call checks what it got back; what is wrong goes to `Findings`. Knows nothing of how long it runs.
"""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastspec import LLM, InvalidArgumentError, RequestOutput, RequestSpeculation, SamplingParams


@dataclass(frozen=True)
class Sample:
    """A finished request, to be computed again alone."""

    lane: str
    prompt_token_ids: list[int]
    params: SamplingParams
    output: RequestOutput


@dataclass
class Findings:
    """What all threads count and complain about."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str, by: int = 1) -> None:
        with self.lock:
            self.counts[name] += by

    def fail(self, text: str) -> None:
        with self.lock:
            self.counts["failures"] += 1
            if len(self.failures) < 20:
                self.failures.append(text)
                print(f"FAILED: {text}", flush=True)


class Gate:
    """Lets clients work, or parks them all."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open = True
        self._working = 0
        self.closed = False

    def enter(self) -> bool:
        """Waits until work is allowed; False when there will be no more."""
        with self._condition:
            self._condition.wait_for(lambda: self._open or self.closed)
            if self.closed:
                return False
            self._working += 1
            return True

    def leave(self) -> None:
        with self._condition:
            self._working -= 1
            self._condition.notify_all()

    def pause(self, seconds: float) -> bool:
        """Parks everybody; False when that took longer than `seconds`."""
        with self._condition:
            self._open = False
            return self._condition.wait_for(lambda: self._working == 0, seconds)

    def resume(self) -> None:
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self.closed = True
            self._condition.notify_all()


class Client:
    """One caller of one LLM, with arrivals at random times."""

    def __init__(
        self, llm: LLM, lane: str, seed: int, gate: Gate, findings: Findings, offer: Callable[[Sample], None]
    ) -> None:
        self._llm = llm
        self._lane = lane
        self._random = random.Random(seed)
        self._gate = gate
        self._findings = findings
        self._offer = offer
        self._drafts = bool(llm.info.drafter) and llm.info.drafter != "none"
        self._thread = threading.Thread(target=self._run, name=f"{lane} {seed}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        calls = [self._batch, self._stream, self._drop_stream, self._be_refused]
        pause = threading.Event()
        while self._gate.enter():
            call = self._random.choices(calls, [5, 4, 3, 2])[0]
            try:
                call()
            except Exception:
                self._findings.fail(f"{self._lane}: {call.__name__}: {traceback.format_exc()}")
            finally:
                self._gate.leave()
            pause.wait(self._random.expovariate(1 / 0.02))

    # --- calls ------------------------------------------------------------------------------------------------------

    def _batch(self) -> None:
        prompts = [self._prompt() for _ in range(self._random.randint(1, 4))]
        params = [self._params() for _ in prompts]
        outputs = self._llm.generate(prompts, params, speculation=self._speculation(), progress=False)
        self._findings.count("batches")
        for prompt, param, output in zip(prompts, params, outputs, strict=True):
            self._check_whole(prompt, param, output)

    def _stream(self) -> None:
        prompt, params = self._prompt(), self._params()
        texts, tokens = [""] * params.n, [0] * params.n
        with self._llm.stream(prompt, params, speculation=self._speculation()) as stream:
            for delta in stream:
                texts[delta.index] += delta.text
                tokens[delta.index] += len(delta.token_ids)
        self._findings.count("streams")
        for sample in stream.output.outputs:
            if (sample.text, len(sample.token_ids)) != (texts[sample.index], tokens[sample.index]):
                self._findings.fail(f"{self._lane}: the deltas of a stream are not its whole")
        self._check_whole(prompt, params, stream.output)

    def _drop_stream(self) -> None:
        """Closes a stream after a few deltas, or lets go of it; then nothing more may come."""
        stream = self._llm.stream(self._prompt(), self._params(), speculation=self._speculation())
        for _ in range(self._random.randint(0, 6)):
            if next(stream, None) is None:
                break
        if self._random.random() < 0.7:
            stream.close()
            if next(stream, None) is not None:
                self._findings.fail(f"{self._lane}: a closed stream goes on")
        del stream
        self._findings.count("dropped streams")

    def _be_refused(self) -> None:
        """A request that can never run, alone or after good ones of the same call: all of it is refused."""
        name, prompt, changes = self._random.choice(self._malformed())
        prompts: list[Any] = [self._prompt() for _ in range(self._random.randint(0, 2))]
        params = [self._params() for _ in prompts]
        try:
            params.append(SamplingParams(**changes))
            self._llm.generate([*prompts, prompt], params, progress=False)
        except (InvalidArgumentError, TypeError, ValueError):
            self._findings.count("refused")
        else:
            self._findings.fail(f"{self._lane}: not refused: {name}")

    # --- what is asked for -------------------------------------------------------------------------------------------

    def _malformed(self) -> list[tuple[str, Any, dict[str, Any]]]:
        info = self._llm.info
        return [
            ("a token id beyond the vocabulary", [1, info.vocab_size], {}),
            ("a negative token id", [1, -1], {}),
            ("no tokens", [], {}),
            ("a prompt beyond the model's length", [1] * (info.max_model_len + 1), {}),
            ("bytes", b"abc", {}),
            ("temperature -1", [1], {"temperature": -1.0}),
            ("temperature NaN", [1], {"temperature": float("nan")}),
            ("top_p 0", [1], {"top_p": 0.0}),
            ("n 0", [1], {"n": 0}),
            ("max_tokens -5", [1], {"max_tokens": -5}),
            ("repetition_penalty 0", [1], {"repetition_penalty": 0.0}),
            ("a biased token that does not exist", [1], {"logit_bias": {info.vocab_size + 7: 1.0}}),
        ]

    def _prompt(self) -> list[int]:
        """Token ids; half of them repeat earlier ones, so that n-grams are found."""
        longest = self._llm.info.max_model_len
        length = min(1 + int(self._random.expovariate(1 / (0.25 * longest))), longest - 1)
        vocab = min(self._llm.info.vocab_size, 4096)
        tokens = [self._random.randrange(1, vocab) for _ in range((length + 1) // 2)]
        return (tokens + tokens)[:length]

    def _params(self) -> SamplingParams:
        """Filters come without penalties, so that a finished request can be judged by its log-probabilities."""
        rng = self._random
        fields: dict[str, Any] = {
            "temperature": rng.choice([0.0, 0.0, 0.5, 1.0, 1.3]),
            "max_tokens": 1 + int(rng.expovariate(1 / 40)),
            "n": rng.choice([1, 1, 1, 2, 3]),
        }
        if rng.random() < 0.7:
            fields["seed"] = rng.getrandbits(63)
        if rng.random() < 0.3:
            fields["ignore_eos"] = True
        if rng.random() < 0.2:
            fields["logprobs"] = rng.randint(0, 5)
        if rng.random() < 0.2:
            fields["stop"] = [" the", "qu"]
        kind = rng.random()
        if kind < 0.3:
            fields |= rng.choice([{"top_k": rng.randint(1, 40)}, {"top_p": 0.9}, {"min_p": 0.05}])
        elif kind < 0.5:
            fields |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
        return SamplingParams(**fields)

    def _speculation(self) -> RequestSpeculation | None:
        if not self._drafts or self._random.random() < 0.7:
            return None
        return RequestSpeculation(enabled=False)

    # --- what came back ---------------------------------------------------------------------------------------------

    def _check_whole(self, prompt: list[int], params: SamplingParams, output: RequestOutput) -> None:
        longest = self._llm.info.max_model_len
        self._findings.count("requests")
        for sample in output.outputs:
            count = len(sample.token_ids)
            self._findings.count("tokens", count)
            if sample.stats is not None:
                self._findings.count("preempted samples", int(sample.stats.preemptions > 0))
                self._findings.count("accepted tokens", sample.stats.accepted_tokens)
            right = sample.error == "" and 1 <= count <= params.max_tokens
            if sample.finish_reason == "length":
                right = right and (count == params.max_tokens or len(prompt) + count >= longest)
            else:
                right = right and sample.finish_reason == "stop"
            if params.logprobs is not None:
                right = right and sample.logprobs is not None and len(sample.logprobs) == count
            if not right:
                self._findings.fail(
                    f"{self._lane}: prompt of {len(prompt)}, max_tokens {params.max_tokens}: {count} tokens, "
                    f"{sample.finish_reason}, {sample.error!r}"
                )
        self._offer(Sample(self._lane, prompt, params, output))
