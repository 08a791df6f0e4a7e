"""Random block drafters (DFlash) for a target, in the published format.

    python make_dflash.py TARGET_DIR OUT_DIR [LAYERS [BLOCK]]

writes an untrained drafter of the right sizes, for measuring. Must not import fastspec.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

KEPT = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip


def _tensors(config: dict[str, Any], num_features: int, scale: float) -> dict[str, torch.Tensor]:
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key_value = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def norm(size: int) -> torch.Tensor:
        return 1 + scale * torch.randn(size)

    tensors = {
        "fc.weight": scale * torch.randn(hidden, num_features * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}."
        for part, shape in (
            ("self_attn.q_proj", (query, hidden)), ("self_attn.k_proj", (key_value, hidden)),
            ("self_attn.v_proj", (key_value, hidden)), ("self_attn.o_proj", (hidden, query)),
            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner)),
        ):  # fmt: skip
            tensors[f"{name}{part}.weight"] = scale * torch.randn(*shape)
            if config.get("attention_bias") and part.startswith("self_attn"):
                tensors[f"{name}{part}.bias"] = scale * torch.randn(shape[0])
        for part, size in (
            ("input_layernorm", hidden), ("post_attention_layernorm", hidden),
            ("self_attn.q_norm", head_dim), ("self_attn.k_norm", head_dim),
        ):  # fmt: skip
            tensors[f"{name}{part}.weight"] = norm(size)
    return tensors


def make_random(
    directory: Path,
    target: dict[str, Any],
    layers: int = 2,
    block: int = 8,
    target_layers: list[int] | None = None,
    prefix: str = "",
    scale: float = 0.2,
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> Path:
    """Random weights from torch's generator.

    Args:
        target: its config.json.
        target_layers: named in the config; None leaves them to its reader.
        prefix: before every tensor's name.
        fields: of the drafter's config.json, in place of the target's.
    """
    config = {name: target[name] for name in KEPT if target.get(name) is not None} | fields
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config |= {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": layers,
               "num_target_layers": target["num_hidden_layers"], "block_size": block}  # fmt: skip
    config["dflash_config"] = {"mask_token_id": config["vocab_size"] - 1}
    if target_layers is not None:
        config["dflash_config"]["target_layer_ids"] = target_layers
    num_features = layers if target_layers is None else len(target_layers)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = _tensors(config, num_features, scale)
    save_file({prefix + name: value.to(dtype) for name, value in tensors.items()}, directory / "model.safetensors")
    return directory


if __name__ == "__main__":
    shape = json.loads((Path(sys.argv[1]) / "config.json").read_text())
    numbers = [int(text) for text in sys.argv[3:5]]
    make_random(Path(sys.argv[2]), shape, *numbers, scale=0.02, dtype=torch.bfloat16)
