"""tools/ablate_longspec.py: what it concludes from curves, and a run of it on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import ablate_longspec as ablation

from fastspec.train.documents import Documents


def curve(*losses: float, tau: float = 2.0) -> list[ablation.Point]:
    """Points every ten steps."""
    points = enumerate(losses, 1)
    return [{"step": 10.0 * i, "high": loss, "low": 0.5, "chain": tau, "tree": 2 * tau} for i, loss in points]


def test_the_step_at_which_a_loss_is_reached() -> None:
    assert ablation.steps_to(curve(5, 4, 3), 3.5) == pytest.approx(25)
    assert ablation.steps_to(curve(5, 4, 3), 4) == pytest.approx(20)
    assert ablation.steps_to(curve(5, 4, 3), 6) == pytest.approx(10)
    assert ablation.steps_to(curve(5, 4, 3), 2.9) is None


def test_the_table_compares_offsets_by_steps_and_shifts_by_tau() -> None:
    curves = {
        ablation.BOTH: curve(6, 4, 2, tau=2.2),
        ablation.NO_OFFSETS: curve(7, 6, 5),
        ablation.NO_SHIFTS: curve(6, 4, 3, tau=2.0),
    }
    text = ablation.table(curves)
    assert "| both | 2.000 | 0.500 | 2.20 | 4.40 |" in text
    assert "5.000 after 30 steps; with them it gets there in 15, 2.00 times as soon" in text
    assert "chain +10.0 %, tree +10.0 %" in text
    curves[ablation.BOTH] = curve(9, 8, 7)
    assert "gets there never" in ablation.table(curves)


def test_a_run_has_what_its_variants_say(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without offsets the drafter learns these few rows where they are, and not where they are moved to."""
    monkeypatch.setattr(ablation, "POINTS", 2)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 320, (8, 40), generator=generator).tolist()
    documents = Documents.of(tokens, [8] * 8, ["prose"] * 8)
    documents.save(tmp_path / "data.safetensors")
    files = ["--data", str(tmp_path / "data.safetensors"), "--validation", str(tmp_path / "data.safetensors")]
    out = ["--target", str(tiny_model_dir), "--out", str(tmp_path / "out"), "--device", "cpu", "--dtype", "float32"]
    sizes = ["--steps", "40", "--batch-tokens", "320", "--validation-documents", "4"]
    assert ablation.main([*files, *out, *sizes]) == 0
    curves = json.loads((tmp_path / "out" / "ablation.json").read_text())
    assert {name: [point["step"] for point in points] for name, points in curves.items()} == {
        name: [20, 40] for name in ablation.VARIANTS
    }
    gaps = {name: points[-1]["high"] - points[-1]["low"] for name, points in curves.items()}
    assert gaps[ablation.NO_OFFSETS] > 3.0
    assert gaps[ablation.BOTH] < 1.0
    assert curves[ablation.NO_SHIFTS] != curves[ablation.BOTH]
    printed = capsys.readouterr().out
    assert ablation.table(curves) in printed
    (tmp_path / "out" / "ablation.md").unlink()
    assert ablation.main([*files, *out, *sizes]) == 0  # written up again
    assert (tmp_path / "out" / "ablation.md").read_text() == ablation.table(curves)
