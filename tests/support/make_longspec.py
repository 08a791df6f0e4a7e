"""LongSpec drafters without training: random ones, and one made of a target's last layer.

    python make_longspec.py TARGET_DIR OUT_DIR [VOCABULARY]

writes the drafter that TARGET_DIR's last layer makes, untrained but of the right sizes, for measuring; VOCABULARY prunes
its LM head to the lowest token ids. Must not import fastspec.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

NORMS = ("input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm")


def _save(
    directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], longspec: dict[str, Any] | None
) -> Path:
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")
    written = {name: config[name] for name in names}
    if longspec:
        written["longspec"] = longspec
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(written))
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, directory / "model.safetensors")
    return directory


def make_random(
    directory: Path,
    config: dict[str, Any],
    longspec: dict[str, Any] | None = None,
    vocabulary: int = 0,
    prefix: str = "",
) -> Path:
    """Random weights from torch's generator, in the published format or, with `longspec`, ours.

    Args:
        config: of the target (config.json).
        longspec: {"version": 1, ...} or None.
        vocabulary: tokens of a draft vocabulary; 0 = none.
        prefix: before every name.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key_value = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def normal(*shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(*shape)

    tensors = {}
    for attention in ("self_attn", "cross_attn"):
        for name, rows in (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)):
            tensors[f"{attention}.{name}.weight"] = normal(rows, hidden)
            tensors[f"{attention}.{name}.bias"] = normal(rows)
        tensors[f"{attention}.o_proj.weight"] = normal(hidden, query)
    for name, shape in (("gate_proj", (inner, hidden)), ("up_proj", (inner, hidden)), ("down_proj", (hidden, inner))):
        tensors[f"mlp.{name}.weight"] = normal(*shape)
    for name in (*NORMS, "norm") if (longspec or {}).get("final_norm") else NORMS:
        tensors[f"{name}.weight"] = 1 + normal(hidden)
    if vocabulary:
        tensors["draft_vocabulary"] = torch.randperm(config["vocab_size"])[:vocabulary].to(torch.int32)
    return _save(directory, {prefix + name: value for name, value in tensors.items()}, config, longspec)


def make_from_last_layer(target: Path, directory: Path, vocabulary: int = 0) -> Path:
    """The target's last layer as a block, its self-attention standing in for cross-attention too."""
    config = json.loads((target / "config.json").read_text())
    weights = load_file(target / "model.safetensors")
    layer = f"model.layers.{config['num_hidden_layers'] - 1}."
    tensors = {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        weight = weights[f"{layer}self_attn.{name}.weight"]
        bias = weights.get(f"{layer}self_attn.{name}.bias", torch.zeros(len(weight), dtype=weight.dtype))
        for attention in ("self_attn", "cross_attn"):
            if attention == "self_attn" or name in ("q_proj", "o_proj"):
                tensors[f"{attention}.{name}.weight"] = weight
                if name != "o_proj":
                    tensors[f"{attention}.{name}.bias"] = bias
    for name in ("gate_proj", "up_proj", "down_proj"):
        tensors[f"mlp.{name}.weight"] = weights[f"{layer}mlp.{name}.weight"]
    for norm in NORMS:
        source = "post_attention_layernorm" if norm == NORMS[2] else "input_layernorm"
        tensors[f"{norm}.weight"] = weights[f"{layer}{source}.weight"]
    tensors["norm.weight"] = weights["model.norm.weight"]
    if vocabulary:
        tensors["draft_vocabulary"] = torch.arange(vocabulary, dtype=torch.int32)
    return _save(directory, tensors, config, {"version": 1, "final_norm": True})


if __name__ == "__main__":
    make_from_last_layer(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
