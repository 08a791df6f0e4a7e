"""A block of DFlash (arXiv 2602.06036), written from its definition in float32, with nothing of fastspec.

Every block is computed by itself from the target's hidden states of all tokens before its root: no cache, no batch, no
kernel. Hidden states come from transformers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from longspec import Rule
from safetensors.torch import load_file


@dataclass
class Context:
    """What a block sees of the tokens before it."""

    window: int = 0  # 0 = all
    sinks: int = 0
    rebases: bool = False

    def keys(self, root: int) -> tuple[list[int], list[int]]:
        """Positions of the tokens that are seen, and those that their keys are rotated to."""
        if self.window == 0:
            return list(range(root)), list(range(root))
        first = max(self.sinks, root - self.window)
        sinks = list(range(min(self.sinks, root)))
        moved = max(0, root - self.window - self.sinks) if self.rebases else 0
        window = list(range(first, root))
        return sinks + window, [position + moved for position in sinks] + window


@dataclass
class Block:
    tokens: list[int]  # drafted, the root not among them
    gaps: list[float]  # of each, between the best score and the next: below rounding it is not the only right one


class DFlash:
    """A drafter directory over a transformers model."""

    def __init__(self, directory: Path, target: Any, context: Context) -> None:
        self.config = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "model.safetensors")
        self.weights = {name.removeprefix("model."): value.float() for name, value in weights.items()}
        own = self.config["dflash_config"]
        self.block_size = own.get("block_size", self.config.get("block_size"))
        self.mask = own["mask_token_id"]
        layers, depth = self.config["num_hidden_layers"], target.config.num_hidden_layers
        default = [depth // 2] if layers == 1 else [round(1 + k * (depth - 4) / (layers - 1)) for k in range(layers)]
        self.target_layers = own.get("target_layer_ids", default)
        self.context = context
        self.target = target
        self.embedding = target.get_input_embeddings().weight
        self.head = target.get_output_embeddings().weight
        self.heads, self.kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head_dim = self.config["head_dim"]
        theta = (self.config.get("rope_parameters") or self.config).get("rope_theta", 10000.0)
        self.frequencies = theta ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)

    def features(self, tokens: list[int]) -> torch.Tensor:
        """Outputs of the target's layers, one after another, [length, layers * hidden_size]."""
        seen: dict[int, torch.Tensor] = {}

        def keep(index: int) -> Any:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                seen[index] = (output if isinstance(output, torch.Tensor) else output[0])[0]

            return hook

        hooks = [self.target.model.layers[i].register_forward_hook(keep(i)) for i in self.target_layers]
        self.target(torch.tensor([tokens]), use_cache=False)
        for hook in hooks:
            hook.remove()
        return torch.cat([seen[i] for i in self.target_layers], dim=-1)

    def rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        eps = self.config["rms_norm_eps"]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.weights[name + ".weight"]

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ self.weights[name + ".weight"].T
        return y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y

    def rotated(self, x: torch.Tensor, norm: str, positions: list[int]) -> torch.Tensor:
        """x: [rows, heads * head_dim]; norm of each head, then rotation. Returns [rows, heads, head_dim]."""
        x = self.rms(x.view(len(x), -1, self.head_dim), norm)
        angles = torch.tensor(positions, dtype=torch.float64)[:, None] * self.frequencies[None, :]
        cos, sin = angles.cos().float()[:, None, :], angles.sin().float()[:, None, :]
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def window(self, layer: int) -> int:
        kinds = self.config.get("layer_types") or []
        return self.config["sliding_window"] if kinds and kinds[layer] == "sliding_attention" else 0

    def attention(self, x: torch.Tensor, layer: int, context: torch.Tensor, root: int) -> torch.Tensor:
        name = f"layers.{layer}.self_attn."
        positions, places = self.context.keys(root)
        own = list(range(root, root + len(x)))
        query = self.rotated(self.linear(x, name + "q_proj"), name + "q_norm", own)
        inputs = torch.cat([context[positions], x])
        keys = self.rotated(self.linear(inputs, name + "k_proj"), name + "k_norm", places + own)
        values = self.linear(inputs, name + "v_proj").view(len(inputs), -1, self.head_dim)
        group = self.heads // self.kv_heads
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("rhd,khd->hrk", query, keys) / math.sqrt(self.head_dim)
        if self.context.window == 0 and self.window(layer) > 0:
            seen = torch.tensor([[key > row - self.window(layer) for key in positions + own] for row in own])
            scores = scores.masked_fill(~seen, -math.inf)
        attended = torch.einsum("hrk,khd->rhd", scores.softmax(-1), values).reshape(len(x), -1)
        return self.linear(attended, name + "o_proj")

    def logits(self, tokens: list[int], features: torch.Tensor) -> np.ndarray:
        """Of the masks behind tokens[-1], [block_size - 1, vocab_size]."""
        root = len(tokens) - 1
        context = self.rms(features[:root] @ self.weights["fc.weight"].T, "hidden_norm")
        x = self.embedding[torch.tensor([tokens[-1]] + [self.mask] * (self.block_size - 1))]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"layers.{layer}."
            x = x + self.attention(self.rms(x, name + "input_layernorm"), layer, context, root)
            normed = self.rms(x, name + "post_attention_layernorm")
            gate = torch.nn.functional.silu(self.linear(normed, name + "mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(normed, name + "mlp.up_proj"), name + "mlp.down_proj")
        return (self.rms(x, "norm")[1:] @ self.head.T).numpy()

    def draft(self, tokens: list[int], features: torch.Tensor, count: int, rule: Rule) -> Block:
        """The first `count` proposals behind tokens[-1]. Penalties know committed tokens only."""
        ids = np.arange(len(self.head))
        block = Block([], [])
        for row, logits in enumerate(self.logits(tokens, features)[:count]):
            scores = rule.log_confidence(logits, ids, tokens[len(rule.prompt) :], len(tokens) + row)
            best, second = np.argsort(-scores, kind="stable")[:2]
            block.tokens.append(int(best))
            block.gaps.append(float(scores[best] - scores[second]))
        return block
