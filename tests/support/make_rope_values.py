"""Writes tests/cpp/model/rope_values.json: rotary inverse frequencies as transformers computes them.

    python make_rope_values.py > tests/cpp/model/rope_values.json

transformers computes them in float32, whose rounding alone reaches 1e-6. Here its own functions run with float64 put in
float32's place, so that a test can compare to many more digits; that this changes nothing else is checked first.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

_CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
_ARCHITECTURES = {name: f"{name.capitalize()}ForCausalLM" for name in _CONFIGS}
_SIZES = {"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 32}

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def _case(family: str, head_dim: int, **fields: Any) -> dict[str, Any]:
    """A config.json in which everything but the rotary embedding is as small as can be."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 2 * head_dim}
    config = {"architectures": [_ARCHITECTURES[family]], "model_type": family, **_SIZES, **heads, **fields}
    if family == "qwen3":
        config["head_dim"] = head_dim
    return config


def _newer(kind: str, theta: float, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **fields}}


def _older(kind: str, theta: float, **fields: Any) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_scaling": {"type": kind, **fields}}


CASES = [
    _case("llama", 64, max_position_embeddings=2048),
    _case("llama", 128, max_position_embeddings=8192, rope_theta=500000.0, rope_scaling=None),
    _case("mistral", 128, max_position_embeddings=32768, **_newer("default", 1000000.0)),
    _case("llama", 128, max_position_embeddings=16384, **_older("linear", 10000.0, factor=8.0)),
    _case("llama", 80, max_position_embeddings=16384, **_newer("linear", 10000.0, factor=2.5)),
    _case("llama", 128, max_position_embeddings=131072, **_newer("llama3", 500000.0, factor=8.0, **_LLAMA3)),
    _case("llama", 64, max_position_embeddings=131072, **_newer("llama3", 500000.0, factor=32.0, **_LLAMA3)),
    _case(
        "llama",
        16,
        max_position_embeddings=128,
        **_newer(
            "llama3",
            10000.0,
            factor=8.0,
            low_freq_factor=1.5,
            high_freq_factor=3.0,
            original_max_position_embeddings=32,
        ),
    ),
    _case(
        "qwen2",
        128,
        max_position_embeddings=32768,
        **_older("yarn", 1000000.0, factor=4.0, original_max_position_embeddings=32768),
    ),
    _case(
        "qwen3",
        128,
        max_position_embeddings=40960,
        **_newer("yarn", 1000000.0, factor=4.0, original_max_position_embeddings=32768),
    ),
    _case("llama", 128, max_position_embeddings=65536, **_newer("yarn", 10000.0, factor=16.0)),  # no original length
    _case(
        "llama",
        64,
        max_position_embeddings=16384,
        **_newer("yarn", 10000.0, factor=None, original_max_position_embeddings=4096),
    ),
    _case(
        "llama",
        64,
        max_position_embeddings=16384,
        **_newer("yarn", 10000.0, factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.7),
    ),
    _case(
        "llama",
        64,
        max_position_embeddings=16384,
        **_newer("yarn", 10000.0, factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.0),
    ),
    _case(
        "llama",
        64,
        max_position_embeddings=16384,
        **_newer("yarn", 10000.0, factor=4.0, original_max_position_embeddings=4096, attention_factor=1.25),
    ),
    _case(
        "llama",
        96,
        max_position_embeddings=16384,
        **_newer(
            "yarn",
            10000.0,
            factor=4.0,
            original_max_position_embeddings=4096,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    ),
    _case(
        "llama",
        64,
        max_position_embeddings=64,
        **_newer("yarn", 10000.0, factor=4.0, original_max_position_embeddings=4, beta_fast=32, beta_slow=0),
    ),
    _case(
        "llama",
        16,
        max_position_embeddings=64,
        **_newer("yarn", 10000.0, factor=0.5, original_max_position_embeddings=32),
    ),
    _case(
        "llama",
        64,
        max_position_embeddings=16384,
        original_max_position_embeddings=2048,
        **_newer("yarn", 10000.0, factor=8.0, original_max_position_embeddings=4096),
    ),
]


@contextlib.contextmanager
def _float64_for_float32() -> Iterator[None]:
    saved = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64  # type: ignore[misc]
    try:
        yield
    finally:
        torch.float, torch.float32 = saved  # type: ignore[misc]


def _compute(fields: dict[str, Any]) -> tuple[torch.Tensor, float]:
    config = _CONFIGS[fields["model_type"]](**json.loads(json.dumps(fields)))
    kind = config.rope_parameters["rope_type"]
    function = LlamaRotaryEmbedding.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    frequencies, attention_factor = function(config)
    return frequencies, float(attention_factor)


def rope_values() -> list[dict[str, Any]]:
    """[{"config": ..., "inverse_frequencies": [head_dim / 2], "attention_factor": ...}]"""
    values = []
    for fields in CASES:
        single, single_factor = _compute(fields)
        with _float64_for_float32():
            double, double_factor = _compute(fields)
        if double.dtype != torch.zeros(1, dtype=torch.double).dtype or single_factor != double_factor:
            raise RuntimeError(f"transformers did not compute in float64: {fields}")
        torch.testing.assert_close(single.double(), double, rtol=3e-6, atol=0)
        values.append({"config": fields, "inverse_frequencies": double.tolist(), "attention_factor": double_factor})
    return values


if __name__ == "__main__":
    json.dump(rope_values(), sys.stdout, indent=1)
    print()
