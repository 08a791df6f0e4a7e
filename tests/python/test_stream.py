"""Streams and interrupts: deltas add up, what is closed is cancelled, Ctrl-C costs nobody else a token."""

import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fastspec import LLM, FinishReason, InvalidArgumentError, SamplingParams
from fastspec._fastspec import Engine, EngineConfig, Request
from fastspec.loop import RequestLoop

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPT = "the quick brown fox"


def idle(llm: LLM) -> bool:
    stats = llm.stats()
    return stats.pages_used == 0 and stats.sequences_running == 0 and stats.sequences_waiting == 0


@pytest.mark.parametrize("stop", [None, "zz", "e"])
def test_deltas_add_up_to_generate(llm: LLM, stop: str | None) -> None:
    params = SamplingParams(temperature=1, seed=11, max_tokens=40, ignore_eos=True, logprobs=1, stop=stop or [])
    [whole] = llm.generate(PROMPT, params, progress=False)
    deltas = list(llm.stream(PROMPT, params))
    assert "".join(str(delta) for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [entry for delta in deltas for entry in delta.logprobs or []] == whole.outputs[0].logprobs
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == whole.outputs[0].finish_reason
    assert deltas[-1].completion.text == whole.text
    assert len(deltas) > 1


def test_several_samples_in_one_stream(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=9, ignore_eos=True)
    [whole] = llm.generate(PROMPT, params, progress=False)
    stream = llm.stream(PROMPT, params)
    ended = [delta.index for delta in stream if delta.finish_reason is not None]
    assert sorted(ended) == [0, 1, 2]
    assert [output.token_ids for output in stream.output.outputs] == [output.token_ids for output in whole.outputs]


def test_bad_requests_fail_at_once(llm: LLM) -> None:
    with pytest.raises(InvalidArgumentError):
        llm.stream([100000])
    assert idle(llm)


@pytest.mark.parametrize("way", ["close", "with", "drop", "unread"])
def test_closing_cancels(llm: LLM, way: str) -> None:
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True))
    if way != "unread":
        next(stream)
        assert not idle(llm)
    if way == "with":
        with stream:
            pass
    elif way == "close":
        stream.close()
    if way in ("close", "with"):
        assert list(stream) == []
        stream.close()
    del stream
    gc.collect()
    assert idle(llm)


def test_interleaved_streams(llm: LLM) -> None:
    expected = [llm.generate(prompt, GREEDY, progress=False)[0].text for prompt in ("lazy dog", PROMPT)]
    first, second = llm.stream("lazy dog", GREEDY), llm.stream(PROMPT, GREEDY)
    texts = ["", ""]
    for one, two in zip(first, second, strict=True):
        texts[0] += one.text
        texts[1] += two.text
    assert texts == expected


def interrupt_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """The real signal, in the middle of a batch."""
    original = RequestLoop.receive
    seen = 0

    def receive(self: RequestLoop, channel: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == calls:
            signal.raise_signal(signal.SIGINT)
        return original(self, channel)

    monkeypatch.setattr(RequestLoop, "receive", receive)


@pytest.fixture
def interrupts_raise() -> Iterator[None]:
    """SIGINT as Python has it by default; a job in the background may be started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts_raise")
def test_interrupt_leaves_the_llm_usable(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate(PROMPT, GREEDY, progress=False)[0].token_ids
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([PROMPT] * 20, SamplingParams(max_tokens=90, ignore_eos=True), progress=False)
    assert idle(llm)
    assert llm.generate(PROMPT, GREEDY, progress=False)[0].token_ids == expected


class InterruptedEngine:
    """An engine whose caller is interrupted right after a step, before its outputs are handed out."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.interrupt = False

    def step_into(self, outputs: list[Any]) -> int:
        count = self._engine.step_into(outputs)
        if self.interrupt and outputs:
            self.interrupt = False
            raise KeyboardInterrupt
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_interrupt_of_one_caller_costs_another_nothing(tiny_model_dir: Any) -> None:
    engine = InterruptedEngine(Engine(EngineConfig(model=str(tiny_model_dir), device="cpu:reference", max_num_seqs=4)))
    loop = RequestLoop(engine)  # type: ignore[arg-type]

    def tokens(interrupted: bool) -> list[int]:
        mine = loop.open([Request(prompt=PROMPT, sampling=GREEDY)])
        found = [token for output in loop.receive(mine) for token in output.token_ids]
        other = loop.open([Request(prompt="lazy dog", sampling=GREEDY)])
        engine.interrupt = interrupted
        try:
            loop.receive(other)
        except KeyboardInterrupt:
            assert interrupted
        loop.close(other)
        while mine.unfinished:
            found += [token for output in loop.receive(mine) for token in output.token_ids]
        return found

    expected = tokens(interrupted=False)
    assert len(expected) == 20
    assert tokens(interrupted=True) == expected
    assert engine.stats().pages_used == 0


def test_engine_generate_with_a_callback(tiny_model_dir: Any) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), device="cpu:reference", max_num_seqs=4))
    requests = [Request(prompt=PROMPT, sampling=GREEDY), Request(prompt="lazy dog", sampling=GREEDY)]
    seen: list[int] = []
    outputs = engine.generate(requests, lambda output: seen.append(output.request))
    assert [len(output.token_ids) for output in outputs] == [20, 20]
    assert len(set(seen)) == 2
    cancelled = engine.generate(requests, lambda output: output.request % 2 == 0)
    assert FinishReason.CANCELLED in [output.finish_reason for output in cancelled]

    def fail(output: object) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        engine.generate(requests, fail)
    assert not engine.has_work()
