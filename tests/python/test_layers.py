"""tools/check_layers.py finds what it is there for: the tree is clean, and each planted include makes it fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "tools" / "check_layers.py"


def run(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("cpp", "cuda", "python/bindings"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_tree_is_clean() -> None:
    result = run(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("cpp/memory/planted.cpp", '"model/model_config.h"'),  # up
        ("cpp/io/planted.cpp", '"backend/ops.h"'),  # up
        ("cpp/base/planted.cpp", '"io/json.h"'),  # sideways to another folder of the foundation
        ("cpp/cli/planted.cpp", '"base/check.h"'),  # a face that sees more than the public headers
        ("cpp/model/planted.cpp", "<torch/torch.h>"),
        ("cpp/include/fastspec/planted.h", "<torch/torch.h>"),
        ("cpp/include/fastspec/planted.h", '"base/check.h"'),
        ("cpp/backend/cpu/planted.cpp", "<cuda_runtime.h>"),
        ("cpp/engine/planted.cpp", "<pybind11/pybind11.h>"),
        ("python/bindings/planted.cpp", '"io/json.h"'),
        ("cpp/base/planted.cpp", '"../base/check.h"'),
        ("cpp/base/planted.cpp", "<fastspec/no_such_header.h>"),
    ],
)
def test_a_planted_include_fails(tree: Path, file: str, include: str) -> None:
    planted = tree / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(f"#include {include}\n")
    result = run(tree)
    assert result.returncode == 1
    assert f"{file}:1:" in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_verbs_do_not_see_each_other(tree: Path) -> None:
    for folder in ("draft", "budget"):
        (tree / "cpp" / folder).mkdir(parents=True, exist_ok=True)
    (tree / "cpp/budget/planted.h").write_text("#pragma once\n")
    (tree / "cpp/draft/planted.cpp").write_text('#include "budget/planted.h"\n')
    assert "cpp/draft/planted.cpp:1:" in run(tree).stdout


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 2
