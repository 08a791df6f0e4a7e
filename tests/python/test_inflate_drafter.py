"""tools/inflate_checkpoint.py --drafter: a LongSpec drafter in a larger shape has the same logits and draws the same trees.

Judged by tests/reference/longspec.py, which knows nothing of fastspec.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_longspec import make_from_last_layer, make_random
from make_models import make_model
from test_inflate import RefusedError, inflate, shape_file

from fastspec import InvalidArgumentError
from fastspec._fastspec import model_fingerprint
from fastspec.sparse.manifest import Heads, Manifest
from fastspec.sparse.signals import Budget

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))
from longspec import LongSpec, Rule

NORMED = {"version": 1, "window": 9, "final_norm": True}
PLAIN = {"version": 1, "window": 512, "final_norm": False}
WIDTHS = [3, 5, 4]
VOCAB_SIZE = 320


def target_of(directory: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def make_pair(
    directory: Path,
    name: str,
    longspec: dict[str, Any],
    *,
    eps: float | None = None,
    drafter_eps: float | None = None,
    vocabulary: int = 0,
    inner: int = 112,
    keep: bool = False,
    **sizes: Any,
) -> tuple[LongSpec, LongSpec]:
    """A drafter over its target, small and large."""
    model = make_model(directory, name)
    config = json.loads((model / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if eps is not None:
        config["rms_norm_eps"] = eps
    (model / "config.json").write_text(json.dumps(config))
    own = {**config, "intermediate_size": inner, "rms_norm_eps": drafter_eps or config["rms_norm_eps"]}
    torch.manual_seed(len(name))
    make_random(directory / "drafter", own, longspec, vocabulary)
    large = directory / "large"
    shape = shape_file(directory, model, **sizes)
    inflate(model, shape, large, drafter=directory / "drafter", dtype="float32", keep_vocabulary=keep)
    return LongSpec(directory / "drafter", target_of(model)), LongSpec(large / "drafter", target_of(large))


@torch.no_grad()
def assert_same_trees(small: LongSpec, large: LongSpec, temperatures: tuple[float, ...] = (0.0, 0.8)) -> None:
    random = np.random.default_rng(5)
    tokens = random.integers(1, VOCAB_SIZE, 40).tolist()
    keys = [drafter.target_kv(tokens) for drafter in (small, large)]
    for length in (1, 40):
        logits = [
            drafter.logits(tokens[:length], length - 1, kv) for drafter, kv in zip((small, large), keys, strict=True)
        ]
        real = logits[0].shape[0]
        spread = logits[0].max() - logits[0].min()
        assert np.abs(logits[1][:real] - logits[0]).max() < 1e-5 * spread
        if len(logits[1]) > real:
            assert logits[1][real:].max() < (-1e4 if large.has_final_norm else -200)
            assert np.exp(logits[1][real:] - logits[0].max()).sum() == 0
        for temperature in temperatures:
            rule = Rule(temperature=temperature, seed=3, prompt=tokens[:8])
            trees = [
                drafter.draft(tokens[:length], kv, WIDTHS, rule)
                for drafter, kv in zip((small, large), keys, strict=True)
            ]
            assert trees[0].smallest_gap > 1e-6  # else equality would be luck
            assert len(trees[0].tokens) == 1 + sum(WIDTHS)
            assert (trees[0].tokens, trees[0].parents) == (trees[1].tokens, trees[1].parents)


@pytest.mark.parametrize("longspec", [NORMED, PLAIN], ids=["final norm", "no norm"])
@pytest.mark.parametrize("name", ["llama31", "llama_tied", "qwen2", "qwen3", "mistral"])
def test_every_family_drafts_the_same(name: str, longspec: dict[str, Any], tmp_path: Path) -> None:
    small, large = make_pair(tmp_path, name, longspec)
    assert large.weights["mlp.up_proj.weight"].shape == (130, 180)
    assert large.window == longspec["window"]
    assert_same_trees(small, large)


@pytest.mark.parametrize("longspec", [NORMED, PLAIN], ids=["final norm", "no norm"])
def test_eps_counts(longspec: dict[str, Any], tmp_path: Path) -> None:
    """No trifle beside the activations, and the drafter's another than the target's."""
    small, large = make_pair(tmp_path, "llama", longspec, eps=0.05, drafter_eps=0.03)
    assert large.eps < 0.03 * 64 / 180
    assert_same_trees(small, large)


def test_masked_tokens_are_not_proposed_at_high_temperature(tmp_path: Path) -> None:
    """2,000 of them without a norm, where nothing but the constant keeps them away."""
    assert_same_trees(*make_pair(tmp_path, "llama", PLAIN, vocab_size=VOCAB_SIZE + 2000), temperatures=(5.0,))


def test_wide_groups_are_split_over_copies(tmp_path: Path) -> None:
    assert_same_trees(*make_pair(tmp_path, "qwen3", NORMED, num_attention_heads=5, num_key_value_heads=5))


def test_narrow_mlp_grows_in_proportion(tmp_path: Path) -> None:
    small, large = make_pair(tmp_path, "llama", NORMED, inner=56, intermediate_size=300)
    assert large.weights["mlp.down_proj.weight"].shape == (180, 192)  # 150, to a multiple of 64
    assert_same_trees(small, large)


def test_draft_vocabulary_stays(tmp_path: Path) -> None:
    small, large = make_pair(tmp_path, "llama", PLAIN, vocabulary=90)
    assert large.weights["draft_vocabulary"].dtype == torch.int32
    assert torch.equal(large.weights["draft_vocabulary"], small.weights["draft_vocabulary"])
    assert_same_trees(small, large)


def test_a_manifest_names_the_same_heads(tmp_path: Path) -> None:
    """Groups of two query heads go into groups of one and into the layers behind the added ones."""
    make_pair(tmp_path, "qwen3", NORMED, num_attention_heads=5, num_key_value_heads=5)
    model, drafter = tmp_path / "qwen3", tmp_path / "drafter"
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    small = Manifest(
        target=Heads(model_fingerprint(str(model)), {0: (0, 3), layers - 1: (2,)}),
        drafter=Heads(model_fingerprint(str(drafter)), {0: (1, 2)}),
        drafter_kind="longspec",
        budget=Budget(64, 4, 16),
        lookahead_slots=20,
        pooling="max",
        arr=0.5,
        objective="kl",
    )
    small.save(tmp_path / "small.json")
    out = tmp_path / "second"
    map_ = inflate(model, str(tmp_path / "shape.json"), out, drafter=drafter, manifest=tmp_path / "small.json")
    large = Manifest.load(out / "manifest.json")
    large.check(out / "manifest.json", out, out / "drafter")
    added = map_.added_layers
    assert added > 0
    seats = {small: large for large, small in enumerate(map_.query_heads) if small >= 0}
    assert large.target.layers == {added: (seats[0], seats[3]), added + layers - 1: (seats[2],)}
    assert large.drafter is not None
    assert large.drafter.layers == {0: (seats[1], seats[2])}
    assert (large.budget, large.lookahead_slots, large.pooling) == (small.budget, 20, "max")
    inflate(model, str(tmp_path / "shape.json"), tmp_path / "third", manifest=tmp_path / "small.json")
    alone = Manifest.load(tmp_path / "third" / "manifest.json")
    assert (alone.drafter, alone.lookahead_slots) == (None, 0)
    dataclasses.replace(small, target=Heads("0" * 16, small.target.layers)).save(tmp_path / "other.json")
    with pytest.raises(InvalidArgumentError, match="was made for a target with the fingerprint 0000"):
        inflate(model, str(tmp_path / "shape.json"), tmp_path / "fourth", manifest=tmp_path / "other.json")
    assert not (tmp_path / "fourth").exists()


@pytest.mark.parametrize("longspec", [NORMED, PLAIN], ids=["final norm", "no norm"])
def test_vocabulary_may_stay(longspec: dict[str, Any], tmp_path: Path) -> None:
    small, large = make_pair(tmp_path, "llama_tied", longspec, keep=True)
    assert len(large.head) == VOCAB_SIZE
    assert_same_trees(small, large)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 32}, ["hidden_size is 32", "64"]),
        ({"num_key_value_heads": 4}, ["num_key_value_heads is 4", "2"]),
        ({"rms_norm_eps": 1e-9}, ["rms_norm_eps", "--vocab keep"]),
        ({"longspec": {"version": 1, "final_norm": True}}, ["no tensor norm.weight"]),
        ({"eps": 1e-7}, ["--vocab keep", "final norm"]),  # of the target too: the constant is too small
    ],
)
def test_refuses(change: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    model = make_model(tmp_path, "llama")
    change = dict(change)
    if eps := change.pop("eps", 0):
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "rms_norm_eps": eps}))
    drafter = tmp_path / "drafter"
    make_random(drafter, json.loads((model / "config.json").read_text()), PLAIN)
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(RefusedError) as caught:
        inflate(model, shape_file(tmp_path, model), tmp_path / "large", drafter=drafter)
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "large").exists()


@pytest.mark.skipif("FASTSPEC_TEST_MODEL" not in os.environ, reason="FASTSPEC_TEST_MODEL names no model directory")
def test_demo_model(tmp_path: Path) -> None:
    """SmolLM2 and the block that its last layer makes, into 12 heads on 4 of 128."""
    model = Path(os.environ["FASTSPEC_TEST_MODEL"])
    make_from_last_layer(model, tmp_path / "drafter")
    shape = tmp_path / "shape.json"
    sizes = {"hidden_size": 600, "intermediate_size": 1600, "num_hidden_layers": 31, "head_dim": 128}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 49408}
    shape.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    large = tmp_path / "large"
    inflate(model, str(shape), large, drafter=tmp_path / "drafter", dtype="float32")
    tokens = list(range(1000, 1060))
    trees = []
    with torch.no_grad():
        for directory, target in ((tmp_path / "drafter", model), (large / "drafter", large)):
            drafter = LongSpec(directory, target_of(target))
            rule = Rule(temperature=1.0, seed=3, prompt=tokens[:8])
            trees.append(drafter.draft(tokens, drafter.target_kv(tokens), [4, 6], rule))
    assert trees[0].smallest_gap > 1e-4
    assert (trees[0].tokens, trees[0].parents) == (trees[1].tokens, trees[1].parents)
