"""Fixtures that several test files share: tiny random models with a tokenizer, and the command line program."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

# What engines measure about themselves is kept for the session, not beside the user's.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="fastspec-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

GPU = pytest.param("cuda:0", marks=pytest.mark.gpu)  # a device to parametrise with


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `gpu` need a GPU that torch sees and a build with the CUDA backend."""
    if item.get_closest_marker("gpu") is not None and (reason := _why_no_gpu()):
        pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines size their memory by what a GPU has free: with several processes, one has all of these tests."""
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.xdist_group("gpu"))


@functools.cache
def _why_no_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU: torch.cuda.is_available() is False"
    from make_models import make_model

    import fastspec

    with tempfile.TemporaryDirectory() as directory:
        config = fastspec.EngineConfig(model=str(make_model(Path(directory), "llama")), device="cuda:0")
        try:
            fastspec.Engine(config)
        except fastspec.UnsupportedError as error:
            return f"no GPU in this build: {error}"
    return ""


RunCli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 128 positions with a byte-level tokenizer of 320 tokens."""
    from make_models import make_model

    return make_model(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="session")
def tiny_draft_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random model with the same tokenizer."""
    from make_models import make_model

    return make_model(tmp_path_factory.mktemp("draft"), "llama_tied")


@pytest.fixture(scope="session")
def tiny_longspec_dir(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """A random LongSpec drafter for the tiny model."""
    from make_longspec import make_random

    config = json.loads((tiny_model_dir / "config.json").read_text())
    return make_random(tmp_path_factory.mktemp("longspec"), config, {"version": 1, "window": 20})


@pytest.fixture(scope="session")
def tiny_dflash_dir(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """A random block drafter for the tiny model."""
    from make_dflash import make_random

    config = json.loads((tiny_model_dir / "config.json").read_text())
    return make_random(tmp_path_factory.mktemp("dflash"), config, target_layers=[0, 2])


@pytest.fixture
def model_copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """The tiny model in a directory that a test may change."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> Iterator[object]:
    """The tiny model on the reference backend, whose results do not depend on the batch."""
    import fastspec

    with fastspec.LLM(tiny_model_dir, device="cpu:reference", max_num_seqs=8) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def cli_path() -> str:
    """fastspec-cli: $FASTSPEC_CLI, the one beside this Python, or the one on PATH."""
    beside = Path(sys.executable).parent / "fastspec-cli"
    found = os.environ.get("FASTSPEC_CLI") or (str(beside) if beside.is_file() else shutil.which("fastspec-cli"))
    assert found, "fastspec-cli is neither beside this Python nor on PATH; set FASTSPEC_CLI"
    return found


@pytest.fixture(scope="session")
def run_cli(cli_path: str) -> RunCli:
    """Runs fastspec-cli with arguments and optional `stdin`; returns the finished process."""

    def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [cli_path, *(str(argument) for argument in arguments)]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)

    return run
