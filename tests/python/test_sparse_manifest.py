"""The manifest of a profile: what is written, read, refused and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastspec import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec._fastspec import model_fingerprint
from fastspec.sparse import objectives
from fastspec.sparse.manifest import Heads, Manifest
from fastspec.sparse.ranking import HeadMap
from fastspec.sparse.search import Plan
from fastspec.sparse.signals import Budget


def manifest(target: str = "0" * 16, drafter: str | None = "1" * 16) -> Manifest:
    return Manifest(
        target=Heads(target, {3: (0, 2), 7: (1,)}),
        drafter=None if drafter is None else Heads(drafter, {0: (1, 2)}),
        drafter_kind="" if drafter is None else "longspec",
        budget=Budget(512, 4, 16),
        lookahead_slots=0 if drafter is None else 123,
        pooling="mean",
        arr=0.93,
        objective="kl",
        notes={"data": ["a.txt"]},
    )


@pytest.mark.parametrize("drafter", ["1" * 16, None])
def test_manifest_round_trip(tmp_path: Path, drafter: str | None) -> None:
    path = tmp_path / "manifest.json"
    manifest(drafter=drafter).save(path)
    assert Manifest.load(path) == manifest(drafter=drafter)
    written = json.loads(path.read_text())
    assert written["format"] == "fastspec-srh"
    assert written["target"]["layers"] == [{"layer": 3, "heads": [0, 2]}, {"layer": 7, "heads": [1]}]
    assert (written["drafter"] is None) == (drafter is None)


def test_manifest_scales_its_division_and_counts_kv_heads() -> None:
    assert manifest().slots_at(Budget(512, 4, 16)) == 123
    assert manifest().slots_at(Budget(256, 4, 16)) == 61
    assert manifest().slots_at(Budget(24, 4, 16)) == 4  # what sinks and recent tokens leave
    assert manifest().target.kv_heads(2) == 3
    assert manifest().target.kv_heads(4) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "format 'other'"),
        ({"pooling": "sum"}, "pooling 'sum'"),
        ({"objective": "speed"}, "objective 'speed'"),
        ({"lookahead_slots": 493}, "lookahead_slots is 493"),
        ({"drafter": None}, "lookahead_slots is 123"),
        ({"budget": 20}, "leaves nothing to choose"),
        ({"budget": -1}, "expected integers"),
        ({"target": {"fingerprint": "0", "layers": []}}, "no layer"),
        ({"target": {"fingerprint": "0", "layers": [{"layer": 1, "heads": [2, 1]}]}}, "ascending"),
        ({"target": 5}, "no manifest"),
    ],
)
def test_broken_manifests_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest().to_dict() | change))
    with pytest.raises(InvalidFileError, match=said):
        Manifest.load(path)


def test_manifest_of_another_model_is_refused(tiny_model_dir: Path, tiny_draft_dir: Path, tmp_path: Path) -> None:
    own = manifest(model_fingerprint(str(tiny_model_dir)), model_fingerprint(str(tiny_draft_dir)))
    own.check(tmp_path / "m.json", tiny_model_dir, tiny_draft_dir)
    own.check(tmp_path / "m.json", tiny_model_dir, None)
    with pytest.raises(InvalidArgumentError, match="made for a target with the fingerprint"):
        own.check(tmp_path / "m.json", tiny_draft_dir, None)
    with pytest.raises(InvalidArgumentError, match="made for a drafter"):
        own.check(tmp_path / "m.json", tiny_model_dir, tiny_model_dir)
    with pytest.raises(NotFoundError):
        Manifest.load(tmp_path / "none.json")


def test_profile_picture(tmp_path: Path) -> None:
    from fastspec.sparse.pictures import draw_profile
    from fastspec.sparse.profile import Profile
    from fastspec.sparse.search import Scored, Search

    maps = HeadMap(torch.rand(8, 4), torch.rand(1, 4))
    names = ("profiled", "history of all heads", "streaming", "oracle")
    figures = {name: objectives.Figures(0.9, 0.9, 0.1) for name in names}
    division = [Scored(Plan((3, 7), (0,), m), 0.5) for m in (0, 100)]
    draw_profile(
        Profile(manifest(), maps, Search(division[0], [], [], division), {"held out": [(0, 0.5), (100, 0.6)]}, figures),
        tmp_path / "p.png",
    )
    assert (tmp_path / "p.png").stat().st_size > 1000
