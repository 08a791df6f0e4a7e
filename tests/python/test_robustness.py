"""Abuse of the Python face: every wrong value, thread or process gets a documented error, and costs nobody a token."""

import copy
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastspec
from fastspec import (
    LLM,
    Engine,
    EngineConfig,
    InvalidArgumentError,
    InvalidFileError,
    NotFoundError,
    Request,
    SamplingParams,
    Tokenizer,
)
from fastspec.chat import ChatTemplate
from fastspec.loop import Channel, RequestLoop

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
USER = [{"role": "user", "content": "hi"}]


# --- threads and processes ----------------------------------------------------------------------------------------


def test_streams_closed_in_one_thread_do_not_disturb_another(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Channel.put

    def slow_put(self: Channel, output: Any) -> None:
        time.sleep(0.001)  # widens the window in which another thread may close the channel
        original(self, output)

    monkeypatch.setattr(Channel, "put", slow_put)
    expected = llm.generate("lazy dog", GREEDY, progress=False)[0].token_ids
    failures: list[BaseException] = []
    end = time.monotonic() + 2

    def repeat(work: Callable[[], None]) -> None:
        try:
            while time.monotonic() < end:
                work()
        except BaseException as error:
            failures.append(error)

    def generate() -> None:
        assert [output.token_ids for output in llm.generate(["lazy dog"] * 2, GREEDY, progress=False)] == [expected] * 2

    def open_and_close() -> None:
        with llm.stream("zz", SHORT) as stream:
            next(stream)
            time.sleep(random.random() * 0.02)

    threads = [threading.Thread(target=repeat, args=[work]) for work in (generate, open_and_close, open_and_close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    stats = llm.stats()
    assert (stats.pages_used, stats.sequences_running, stats.sequences_waiting) == (0, 0, 0)


def test_outputs_that_another_caller_computed_are_not_lost(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate("lazy dog", GREEDY, progress=False)[0].token_ids
    original = RequestLoop.receive
    others = 0

    def receive_and_let_another_caller_finish_all(self: RequestLoop, channel: Channel) -> list[Any]:
        nonlocal others
        outputs = original(self, channel)
        if others == 0:
            others += 1
            llm.generate("quick fox", SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), progress=False)
        return outputs

    monkeypatch.setattr(RequestLoop, "receive", receive_and_let_another_caller_finish_all)
    output = llm.generate("lazy dog", GREEDY, progress=False)[0]
    assert output.token_ids == expected
    assert output.outputs[0].finish_reason == "length"


class ClosingEngine:
    """An engine during whose steps another thread closes a channel."""

    def __init__(self, engine: Engine, close: Callable[[], None]) -> None:
        self._engine, self._close = engine, close

    def step_into(self, outputs: list[Any]) -> int:
        thread = threading.Thread(target=self._close)
        thread.start()
        thread.join()
        return self._engine.step_into(outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_a_stream_closed_while_its_engine_is_stepped_is_cancelled_all_the_same(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), device="cpu:reference"))

    loop = RequestLoop(ClosingEngine(engine, lambda: loop.close(channel)))  # type: ignore[arg-type]
    channel = loop.open([Request(prompt="lazy dog", sampling=GREEDY)])
    while loop.receive(channel):
        pass
    assert not engine.has_work()
    assert engine.stats().pages_used == 0


def test_a_stream_closed_in_the_last_step_of_another_caller_is_cancelled_all_the_same(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), device="cpu:reference"))

    # The step in which another thread closes its channel ends the request of whoever steps.
    loop = RequestLoop(ClosingEngine(engine, lambda: loop.close(closed)))  # type: ignore[arg-type]
    closed = loop.open([Request(prompt="lazy dog", sampling=GREEDY)])
    last = loop.open([Request(prompt="fox", sampling=SamplingParams(max_tokens=1))])
    [output] = loop.receive(last)
    assert output.finished
    stats = engine.stats()
    assert (stats.pages_used, stats.sequences_running, stats.sequences_waiting) == (0, 0, 0)
    assert not engine.has_work()


def test_a_stream_closed_while_another_caller_is_refused_is_cancelled_all_the_same(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), device="cpu:reference"))

    class ClosingEngine:
        """Another thread closes the channel during the submission of a request that is refused."""

        def submit(self, request: Request) -> int:
            if not request.prompt_token_ids:
                thread = threading.Thread(target=lambda: loop.close(channel))
                thread.start()
                thread.join()
            return engine.submit(request)

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

    loop = RequestLoop(ClosingEngine())  # type: ignore[arg-type]
    channel = loop.open([Request(prompt_token_ids=[1, 2, 3], sampling=GREEDY)])
    loop.receive(channel)
    with pytest.raises(InvalidArgumentError):
        loop.open([Request(prompt_token_ids=[])])
    assert not engine.has_work()
    assert engine.stats().pages_used == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused_and_ends(llm: LLM) -> None:
    expected = llm.generate("lazy dog", GREEDY, progress=False)[0].token_ids
    stream = llm.stream("lazy dog", GREEDY)
    next(stream)
    with llm._loop._lock:  # as if another thread were stepping at the moment of the fork
        child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: llm.generate("x", SHORT, progress=False), lambda: next(stream), llm.stats):
            try:
                call()
            except InvalidArgumentError as error:
                refused += "fork" in str(error)
        stream.close()
        llm.close()
        os._exit(refused)
    try:
        end = time.monotonic() + 20
        while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.02)
        assert status != (0, 0), "the child hangs"
        assert os.waitstatus_to_exitcode(status[1]) == 3
    finally:
        if status == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert llm.generate("lazy dog", GREEDY, progress=False)[0].token_ids == expected
    assert list(stream)[-1].completion.token_ids == expected


def _forked_engine(engine: Engine) -> None:
    with pytest.raises(InvalidArgumentError, match="process"):
        engine.submit(Request(prompt_token_ids=[1]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_engine_refuses_and_the_child_ends(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), num_threads=2))
    engine.generate([Request(prompt="x", sampling=SHORT)])
    process = multiprocessing.get_context("fork").Process(target=_forked_engine, args=[engine])
    process.start()
    process.join(20)
    assert process.exitcode == 0, "the child hangs" if process.is_alive() else "it was not refused"


def test_stepping_in_several_threads_is_refused_and_loses_nothing(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), num_threads=1))
    for i in range(8):
        engine.submit(Request(prompt_token_ids=[1, 2, i], sampling=GREEDY))
    outputs: list[Any] = []
    failures: list[str] = []

    def step() -> None:
        while engine.has_work():
            try:
                engine.step_into(outputs)
            except InvalidArgumentError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all("step" in failure for failure in failures)
    assert sum(len(output.token_ids) for output in outputs) == 8 * GREEDY.max_tokens


@pytest.mark.parametrize("call", ["step", "generate"])
def test_stepping_in_a_callback_is_refused(tiny_model_dir: Path, call: str) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), num_threads=1))
    request = Request(prompt_token_ids=[1, 2], sampling=SHORT)
    with pytest.raises(InvalidArgumentError, match="step"):
        engine.generate([request], lambda _: engine.step() if call == "step" else engine.generate([request]))
    [output] = engine.generate([request])
    assert len(output.token_ids) == 4
    assert not engine.has_work()


# --- values -------------------------------------------------------------------------------------------------------


def test_results_are_pickled_and_copied(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=1, max_tokens=3, ignore_eos=True, logprobs=2)
    [result] = llm.generate("lazy dog", params, progress=False)
    assert len(result.outputs[0].logprobs or []) == 3
    assert result.outputs[0].stats is not None
    deltas = list(llm.stream("lazy dog", params))
    for value in (result, llm.info, llm.stats(), deltas[0], deltas[-1]):
        assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value) == copy.copy(value)


def test_outputs_of_an_engine_are_pickled(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), num_threads=1))
    [output] = engine.generate([Request(prompt="lazy dog", sampling=SHORT)])
    engine.submit(Request(prompt="lazy dog", sampling=SHORT))
    for value in (output, engine.step()):
        assert pickle.loads(pickle.dumps(value)) == value
    assert pickle.loads(pickle.dumps(output)).finish_reason == "length"


@pytest.mark.parametrize(
    "use",
    [
        lambda: Engine.__new__(Engine).has_work(),
        lambda: Engine.__new__(Engine).info,
        lambda: Tokenizer.__new__(Tokenizer).vocab_size,
        lambda: Tokenizer.Stream.__new__(Tokenizer.Stream).finish(),
        lambda: repr(SamplingParams.__new__(SamplingParams)),
        lambda: fastspec.Output.__new__(fastspec.Output).text,
        lambda: RequestLoop(Engine.__new__(Engine)).open([Request(prompt_token_ids=[1])]),
    ],
)
def test_objects_without_init_are_refused(use: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        use()


@pytest.mark.parametrize(
    "prompt",
    [b"abc", bytearray(b"abc"), [b"abc"], [True, False], [1, True], 5, None, {"a": 1}, {1, 2}, [{1: 2}], [1.0], [None]],
)
def test_prompts_of_a_wrong_type(llm: LLM, prompt: Any) -> None:
    with pytest.raises(TypeError, match="a prompt is a str or a list of token ids"):
        llm.generate(prompt, SHORT, progress=False)


@pytest.mark.parametrize("params", [5, {"temperature": 0}, ["hot"]])
def test_sampling_params_of_a_wrong_type(llm: LLM, params: Any) -> None:
    with pytest.raises(TypeError, match="expected SamplingParams"):
        llm.generate("x", params, progress=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", True),
        ("temperature", b"1"),
        ("max_tokens", True),
        ("seed", False),
        ("logprobs", True),
        ("ignore_eos", None),
        ("ignore_eos", 0.5),
        ("stop", b"a"),
        ("stop", [b"a"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", bytearray(b"a")),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", {1: True}),
    ],
)
def test_bools_are_no_numbers_and_bytes_no_text(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"SamplingParams\.{name}: expected .*, got "):
        SamplingParams(**{name: value})


def test_wrong_types_at_the_tokenizer(llm: LLM) -> None:
    for call in (
        lambda: llm.tokenizer.encode(b"abc"),  # type: ignore[arg-type]
        lambda: llm.tokenizer.decode([True]),
        lambda: llm.tokenizer.id_to_token(True),
        lambda: Request(prompt_token_ids=[True]),
        lambda: Request(prompt=b"abc"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()


def test_lone_surrogates_are_refused_by_name(llm: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match=r"prompt: .*surrogate.*'\\ud800x'"):
        llm.generate("\ud800x", SHORT, progress=False)
    with pytest.raises(InvalidArgumentError, match=r"Request\.prompt: .*surrogate"):
        Request(prompt="\ud800x")
    with pytest.raises(InvalidArgumentError, match=r"SamplingParams\.stop: .*surrogate"):
        SamplingParams(stop=["\ud800"])


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    params = SamplingParams(temperature=numpy.float32(0.5), max_tokens=numpy.int64(3), ignore_eos=numpy.bool_(True))
    assert (params.temperature, params.max_tokens, params.ignore_eos) == (0.5, 3, True)
    assert Request(prompt_token_ids=numpy.array([1, 2])).prompt_token_ids == [1, 2]


# --- models and templates -----------------------------------------------------------------------------------------


def test_drafter_of_a_wrong_type(tiny_model_dir: Path) -> None:
    with pytest.raises(TypeError, match=r"drafter: expected None, 'ngram'.* got 5"):
        LLM(tiny_model_dir, drafter=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["a" * 5000, "~nobody-of-this-name/model", "a\0b"])
def test_names_of_no_model(model: str) -> None:
    with pytest.raises(NotFoundError):
        LLM(model)


def test_an_empty_model_name() -> None:
    with pytest.raises(InvalidArgumentError, match="empty"):
        LLM("")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ 10.0 ** 400 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ [1] * 10 ** 17 }}",
        "{{ messages.nothing.more }}",
        "{{ strftime_now(5) }}",
    ],
)
def test_a_failing_template_is_named(tmp_path: Path, source: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    template = ChatTemplate.load(tmp_path)
    with pytest.raises(InvalidArgumentError, match=str(tmp_path)):
        template.render(USER)


def test_templates_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    for content in (b"\xff\xfe", b"{% for i in x %}" * 30 + b"{% endfor %}" * 30, b"{{" + b"(" * 100_000):
        file.write_bytes(content)
        with pytest.raises(InvalidFileError, match=str(tmp_path)):
            ChatTemplate.load(tmp_path)


def test_variables_that_contain_themselves() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidArgumentError, match="RecursionError"):
        ChatTemplate("x", {}).render(USER, tools=circle)


# --- python -m fastspec -------------------------------------------------------------------------------------------


def run_module(*arguments: str, stdin: bytes = b"", **environment: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "fastspec", *arguments],
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def chat_model(model_copy: Path) -> Path:
    template = "{% for m in messages %}{{ m.content }}{% if m.content == 'no' %}{{ 1 / 0 }}{% endif %}{% endfor %}"
    (model_copy / "chat_template.jinja").write_text(template)
    return model_copy


def test_a_refused_turn_does_not_end_the_chat(chat_model: Path) -> None:
    lines = [b"hello", b"no", b"word " * 200, b"caf\xe9", b"hello"]
    result = run_module("chat", "--model", str(chat_model), "--max-tokens", "3", stdin=b"\n".join(lines))
    errors = result.stderr.decode()
    assert result.returncode == 0, errors
    assert "Traceback" not in errors
    assert errors.count("this turn is dropped") == 2
    assert "ZeroDivisionError" in errors
    assert len(result.stdout.splitlines()) >= 3


def test_output_that_the_terminal_cannot_show_is_replaced(chat_model: Path) -> None:
    result = run_module(
        "chat", "--model", str(chat_model), "--max-tokens", "40", stdin=b"hello\n", PYTHONIOENCODING="ascii"
    )
    assert result.returncode == 0, result.stderr.decode()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "file").touch()
    result = run_module("fetch", str(tmp_path / "model.gguf"), FASTSPEC_CACHE=str(tmp_path / "file"))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert b"FASTSPEC_CACHE" in result.stderr


def test_template_arguments_with_taken_names() -> None:
    result = run_module("chat", "--model", "x", "--template-arg", "messages=1")
    assert result.returncode == 2
    assert b"'messages' is no variable" in result.stderr
