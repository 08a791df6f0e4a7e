"""The drafter that comes with the package: that it is there as it was measured, and how it is named. What it does for its
target: test_demo_model.py."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import fastspec
from fastspec import DrafterConfig, NotFoundError, hub
from fastspec.__main__ import main
from fastspec.bench.__main__ import main as bench

NAME = "SmolLM2-135M-Instruct"
SHIPPED = Path(fastspec.__file__).parent / "drafters" / NAME  # of the source tree, or of what pip installed


def test_it_is_the_file_whose_figures_are_reported() -> None:
    assert hub.shipped_drafters() == [NAME]
    assert {path.name for path in SHIPPED.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    weights = (SHIPPED / "model.safetensors").read_bytes()
    assert len(weights) == 8_414_272
    digest = hashlib.sha256(weights).hexdigest()
    assert digest == "dceb48fd56bed8de9e851c644c7bc2eaa91ca98729f1e70f338ed93ec1685e6e"
    assert digest in (SHIPPED / "README.md").read_text(encoding="utf-8")
    config = json.loads((SHIPPED / "config.json").read_text(encoding="utf-8"))
    assert config["longspec"] == {"version": 1, "window": 512, "final_norm": True}
    assert [name for name in config if name.startswith("_")] == []


def test_its_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub.resolve_drafter(f"longspec:{NAME}").model == str(SHIPPED)
    asked = DrafterConfig(kind="longspec", model=NAME, tree_widths=[2, 1], coupled=False)
    found = hub.resolve_drafter(asked)
    assert (found.kind, found.model, found.tree_widths, found.coupled) == ("longspec", str(SHIPPED), [2, 1], False)
    assert asked.model == NAME
    shutil.copytree(SHIPPED, tmp_path / NAME)
    assert hub.resolve_drafter(f"longspec:{NAME}").model == NAME


def test_other_names_are_told_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for model in ("SmolLM2", "./nowhere"):
        with pytest.raises(NotFoundError, match=rf"{model}.*Drafters that come with FastSpec: {NAME}"):
            hub.resolve_drafter(f"longspec:{model}")
    for kind in ("standalone", "dflash"):  # it is neither
        with pytest.raises(NotFoundError, match=r"tried the directory (?!.*come with)"):
            hub.resolve_drafter(f"{kind}:{NAME}")


def test_commands_know_its_name(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fetch", f"longspec:{NAME}"]) == 0
    assert capsys.readouterr().out == f"{SHIPPED}\n"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "some text " * 8}))
    model, drafter = ["--model", str(tiny_model_dir)], ["--drafter", f"longspec:{NAME}"]
    evaluate = ["evaluate", "acceptance", "--target", str(tiny_model_dir), "--data", str(prompts)]
    for run in (
        lambda: main(["chat", *model, *drafter]),
        lambda: main([*evaluate, *drafter]),
        lambda: bench([*model, *drafter]),
    ):
        assert run() == 2  # found, and refused as a drafter of another model
        assert str(SHIPPED) in capsys.readouterr().err
