"""From a name to a directory: what is found, what is refused, and what an offline machine is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastspec import (
    LLM,
    InvalidArgumentError,
    InvalidFileError,
    NotFoundError,
    SamplingParams,
    UnsupportedError,
    gguf,
    hub,
)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A hub client that may not use the network, with an empty cache, and an empty working directory."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_directory_is_itself(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.resolve_model(tiny_model_dir) == tiny_model_dir
    assert hub.resolve_model(str(tiny_model_dir)) == tiny_model_dir
    monkeypatch.setenv("HOME", str(tiny_model_dir.parent))
    assert hub.resolve_model("~/" + tiny_model_dir.name) == tiny_model_dir


def test_offline_says_what_was_tried_and_what_to_do(offline: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        LLM("some-org/some-model")
    message = str(caught.value)
    assert str(offline / "some-org" / "some-model") in message
    assert str(offline / "hub") in message
    assert "https://" in message
    assert "HF_HUB_OFFLINE is set" in message
    assert "give its path" in message
    assert isinstance(caught.value, FileNotFoundError)


def test_a_name_in_the_cache_needs_no_network(offline: Path, tiny_model_dir: Path) -> None:
    snapshot = offline / "hub" / "models--org--tiny" / "snapshots" / "0123456789012345678901234567890123456789"
    snapshot.mkdir(parents=True)
    for file in tiny_model_dir.iterdir():
        (snapshot / file.name).symlink_to(file)
    refs = offline / "hub" / "models--org--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(snapshot.name)
    with LLM("org/tiny", drafter="standalone:org/tiny", max_num_seqs=2) as llm:
        [result] = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), progress=False)
    assert len(result.token_ids) == 8
    assert result.outputs[0].stats is not None
    assert result.outputs[0].stats.accepted_tokens > 0


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/directory", "a/b/c", "missing.gguf", "what is this?", "../up"])
def test_what_is_no_name_is_not_looked_up(offline: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match="no such directory or file"):
        hub.resolve_model(name)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(InvalidArgumentError, match=r"model\.bin is a file"):
        hub.resolve_model(tmp_path / "model.bin")
    (tmp_path / "fake.gguf").write_bytes(b"GGML")
    with pytest.raises(InvalidFileError, match=r"fake\.gguf"):
        hub.resolve_model(tmp_path / "fake.gguf")


def test_without_the_hub_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NotFoundError, match="pip install huggingface_hub"):
        hub.resolve_model("org/name")


class TestGguf:
    """Conversion, once, whole or not at all. The converter is transformers; the test of a real file is the demo's."""

    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("FASTSPEC_CACHE", str(tmp_path / "cache"))
        path = tmp_path / "model.gguf"
        path.write_bytes(b"GGUF" + bytes(100))
        return path

    def test_converted_once_and_again_when_changed(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []

        def write(source: Path, directory: Path, dtype: str) -> None:
            calls.append(dtype)
            (directory / "config.json").write_text("{}")

        monkeypatch.setattr(gguf, "_write", write)
        first = hub.resolve_model(file)
        assert (first / "config.json").is_file()
        assert first.is_relative_to(hub.cache_directory())
        assert hub.resolve_model(file) == first
        assert calls == ["bfloat16"]
        file.write_bytes(b"GGUF" + bytes(99) + b"x")
        assert hub.resolve_model(file) != first
        assert len(calls) == 2
        os.utime(file, (1, 1))
        hub.resolve_model(file)
        assert len(calls) == 3

    def test_a_failed_conversion_leaves_nothing(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(source: Path, directory: Path, dtype: str) -> None:
            (directory / "config.json").write_text("{}")
            raise UnsupportedError("half way")

        monkeypatch.setattr(gguf, "_write", write)
        with pytest.raises(UnsupportedError):
            hub.resolve_model(file)
        assert list((hub.cache_directory() / "gguf").iterdir()) == []

    def test_two_at_once(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(source: Path, directory: Path, dtype: str) -> None:
            (directory / "config.json").write_text("mine")
            target.mkdir(parents=True)
            (target / "config.json").write_text("theirs")

        target = hub.cache_directory() / "gguf" / "target"
        monkeypatch.setattr(gguf, "_write", write)
        gguf.convert(file, target)
        assert (target / "config.json").read_text() == "theirs"
        assert [path.name for path in target.parent.iterdir()] == ["target"]

    def test_a_broken_file_is_named(self, file: Path) -> None:
        pytest.importorskip("gguf")
        with pytest.raises(UnsupportedError, match=r"model\.gguf: transformers cannot convert it"):
            hub.resolve_model(file)


def run_module(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastspec", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_module_fetch(tiny_model_dir: Path, tmp_path: Path) -> None:
    result = run_module("fetch", str(tiny_model_dir))
    assert result.stdout.strip() == str(tiny_model_dir)
    result = run_module("fetch", str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert result.stderr.startswith("fastspec: ")
    assert result.stderr.count("\n") == 1


def test_module_chat(model_copy: Path) -> None:
    refused = run_module("chat", "--model", str(model_copy))
    assert refused.returncode == 2
    assert "no chat template" in refused.stderr
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{{ mark }}"
    (model_copy / "chat_template.jinja").write_text(template)
    options = [
        "chat",
        "--model",
        str(model_copy),
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--device",
        "cpu:reference",
    ]
    options += ["--template-arg", 'mark="A"', "--system", "s"]
    result = run_module(*options, stdin="one\n\n/reset\none\ntwo\n/exit\nthree\n")
    assert result.returncode == 0, result.stderr
    with LLM(model_copy, device="cpu:reference", max_num_seqs=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=3)
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]
        answer = llm.chat(messages, params, progress=False, mark="A")[0].text
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "two"}]
        second = llm.chat(messages, params, progress=False, mark="A")[0].text
    assert result.stdout == f"{answer}\n{answer}\n{second}\n"
    assert run_module(*options[:-4], "--template-arg", "mark=A").returncode == 2
