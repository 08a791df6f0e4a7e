"""tools/inflate_checkpoint.py: a small model in a larger shape computes the same function, for both programs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import MODELS, make_model, reference_logits
from test_logits import engine_log_probabilities, log_softmax

from fastspec import LLM, SamplingParams, Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from inflate_checkpoint import RefusedError, inflate

TOLERANCE = 5e-6  # largest difference relative to the range of the logits: float32 rounding
FAMILIES = ["llama", "llama31", "llama_bias", "llama_tied", "llama_head_dim", "sharded_llama", "mistral", "qwen2"]
FAMILIES += ["qwen2_window", "qwen3", "qwen3_bias_tied"]


def shape_file(directory: Path, model: Path, **sizes: Any) -> str:
    """A shape somewhat larger than the tiny models: wider heads, groups with room, two more layers."""
    config = json.loads((model / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    shape = {
        "model_type": "qwen2",
        "hidden_size": 180,
        "intermediate_size": 130,
        "num_hidden_layers": 5,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 2 * head_dim,
        "vocab_size": 400,
        **sizes,
    }
    path = directory / "shape.json"
    path.write_text(json.dumps(shape))
    return str(path)


def inflated(directory: Path, name: str, **sizes: Any) -> tuple[Path, Path]:
    """A tiny model and the same in a larger shape."""
    model = make_model(directory, name)
    large = directory / "large"
    inflate(model, shape_file(directory, model, **sizes), large, dtype="float32", shard_bytes=200_000)
    return model, large


def assert_same_logits(model: Path, large: Path) -> None:
    reference = json.loads((model / "reference.json").read_text())
    token_ids, logits = reference["token_ids"], np.array(reference["logits"])
    vocab_size = logits.shape[1]
    seen = np.array(reference_logits(large, token_ids))
    spread = logits.max() - logits.min()
    assert np.abs(seen[:, :vocab_size] - logits).max() < TOLERANCE * spread
    if seen.shape[1] > vocab_size:
        assert seen[:, vocab_size:].max() < -1e4

    with LLM(large, device="cpu:reference") as llm:
        assert llm.info.vocab_size == seen.shape[1]
        log_probabilities = engine_log_probabilities(llm, token_ids, seen.shape[1])[:, :vocab_size]
    with LLM(model, device="cpu:reference", dtype="float32") as llm:
        small = engine_log_probabilities(llm, token_ids, vocab_size)
    assert np.abs(log_probabilities - small).max() < TOLERANCE * spread
    assert np.abs(log_probabilities - log_softmax(logits)).max() < 1e-4 * spread


def greedy_tokens(model: Path, prompt: list[int], tokens: int) -> list[int]:
    with LLM(model, dtype="float32", max_model_len=len(prompt) + tokens) as llm:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        return list(llm.generate(prompt, params, progress=False)[0].outputs[0].token_ids)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_computes_the_same(name: str, tmp_path: Path) -> None:
    model, large = inflated(tmp_path, name)
    assert len(list(large.glob("*.safetensors"))) > 1
    assert_same_logits(model, large)
    prompt = json.loads((model / "reference.json").read_text())["token_ids"]
    assert greedy_tokens(model, prompt, 40) == greedy_tokens(large, prompt, 40)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_eps_counts(name: str, tmp_path: Path) -> None:
    """An eps that is no trifle beside the activations: of hidden states, of heads, and with the mask's share."""
    model = make_model(tmp_path, name)
    config = json.loads((model / "config.json").read_text())
    config["rms_norm_eps"] = 0.05
    (model / "config.json").write_text(json.dumps(config))
    reference = json.loads((model / "reference.json").read_text())
    reference["logits"] = reference_logits(model, reference["token_ids"])
    (model / "reference.json").write_text(json.dumps(reference))
    inflate(model, shape_file(tmp_path, model), tmp_path / "large", dtype="float32")
    assert_same_logits(model, tmp_path / "large")


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_wide_groups_are_split_over_copies(name: str, tmp_path: Path) -> None:
    model, large = inflated(tmp_path, name, num_attention_heads=5, num_key_value_heads=5)
    assert json.loads((large / "inflation.json").read_text())["kv_heads"] == [0, 0, 1, 1, -1]
    assert_same_logits(model, large)


@pytest.mark.parametrize("tie", [False, True])
def test_vocabulary_may_stay(tie: bool, tmp_path: Path) -> None:
    model = make_model(tmp_path, "llama_tied")
    shape = shape_file(tmp_path, model, tie_word_embeddings=tie)
    inflate(model, shape, tmp_path / "large", keep_vocabulary=True)
    config = json.loads((tmp_path / "large" / "config.json").read_text())
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (320, tie)
    assert_same_logits(model, tmp_path / "large")


def test_masked_tokens_are_not_drawn_at_any_temperature(tmp_path: Path) -> None:
    _, large = inflated(tmp_path, "qwen2", vocab_size=5000)
    with LLM(large, dtype="bfloat16") as llm:
        params = SamplingParams(temperature=5.0, max_tokens=60, n=8, seed=1, ignore_eos=True)
        outputs = llm.generate([[1, 2, 3]], params, progress=False)[0].outputs
    assert max(max(output.token_ids) for output in outputs) < 320


def test_added_layers_stand_in_front(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model, large = inflated(tmp_path, "qwen2_window", head_dim=16, num_attention_heads=4, num_key_value_heads=2)
    weights = {name: value for file in large.glob("*.safetensors") for name, value in load_file(file).items()}
    own = load_file(model / "model.safetensors")
    for layer in range(5):
        value = weights[f"model.layers.{layer}.self_attn.v_proj.weight"][:, :64]
        assert (
            not value.any() if layer < 2 else (value == own[f"model.layers.{layer - 2}.self_attn.v_proj.weight"]).all()
        )
    config = json.loads((large / "config.json").read_text())
    assert config["layer_types"] == ["full_attention"] * 3 + ["sliding_attention"] * 2


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("llama", {"hidden_size": 48, "num_hidden_layers": 2}, ["hidden 64", "48", "layers 3"]),
        ("llama", {"head_dim": 24}, ["head_dim 16", "24"]),
        ("llama", {"num_attention_heads": 3, "num_key_value_heads": 3}, ["4 query heads", "4 of the shape's"]),
        ("llama", {"hidden_size": 64}, ["--vocab keep"]),
        ("llama_yarn", {}, ["yarn", "head_dim"]),
    ],
)
def test_refuses_what_does_not_fit(name: str, sizes: dict[str, int], words: list[str], tmp_path: Path) -> None:
    model = make_model(tmp_path, name)
    with pytest.raises(RefusedError) as caught:
        inflate(model, shape_file(tmp_path, model, **sizes), tmp_path / "large")
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "large").exists()
    assert len(list(tmp_path.iterdir())) == 2  # nothing half-made


def test_the_list_of_families_is_whole() -> None:
    assert set(FAMILIES) <= set(MODELS)


@pytest.mark.skipif("FASTSPEC_TEST_MODEL" not in os.environ, reason="FASTSPEC_TEST_MODEL names no model directory")
def test_demo_model(tmp_path: Path) -> None:
    """SmolLM2's 9 query heads on 3 K/V heads of 64 into 12 on 4 of 128."""
    model = Path(os.environ["FASTSPEC_TEST_MODEL"])
    shape = tmp_path / "shape.json"
    sizes = {"hidden_size": 600, "intermediate_size": 1540, "num_hidden_layers": 31, "head_dim": 128}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 49408}
    shape.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    large = tmp_path / "large"
    inflate(model, str(shape), large, dtype="float32")
    prompt = Tokenizer.load(large).encode("Alice was beginning to get very tired of sitting by her sister")
    logits = np.array(reference_logits(model, prompt))
    seen = np.array(reference_logits(large, prompt))
    assert np.abs(seen[:, :49152] - logits).max() < 2e-5 * (logits.max() - logits.min())
    assert seen[:, 49152:].max() < -1e4
    assert greedy_tokens(model, prompt, 16) == greedy_tokens(large, prompt, 16)
