"""LongSpec's block and beam, written from the paper's formulas (arXiv 2502.17421) in float32, with nothing of fastspec.

Draws the tree that a drafter must propose for given tokens: every node is computed by itself from the definition, over
its own path, with no cache, no batch and no kernel. Target K/V come from transformers. Noise and filters are those that
cpp/README.md and backend/params.h promise.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

MASK = np.uint64(0xFFFFFFFF)


def philox(blocks: np.ndarray, position: int, sample: int, seed: int) -> np.ndarray:
    """Philox4x32-10 over counters (block, position, sample, 0): uint32 words, [blocks, 4]."""
    zero = np.zeros_like(blocks, dtype=np.uint64)
    c0, c1, c2, c3 = blocks.astype(np.uint64), zero + np.uint64(position), zero + np.uint64(sample), zero
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & MASK, (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & MASK, (k1 + np.uint64(0xBB67AE85)) & MASK
    return np.stack([c0, c1, c2, c3], axis=1)


def gumbel(tokens: np.ndarray, position: int, sample: int, seed: int) -> np.ndarray:
    words = philox(tokens // 4, position, sample, seed)[np.arange(len(tokens)), tokens % 4]
    uniform = ((words >> np.uint64(8)).astype(np.float64) + 0.5) * 2.0**-24
    return -np.log(-np.log(uniform))


@dataclass
class Rule:
    """How the target draws; the fields of a request."""

    temperature: float
    seed: int
    prompt: list[int]
    sample: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = field(default_factory=list)

    def log_confidence(self, logits: np.ndarray, ids: np.ndarray, generated: list[int], position: int) -> np.ndarray:
        """Logarithm of the softmax of (perturbed) scores over what the filters keep; -inf elsewhere."""
        logits = logits.astype(np.float64).copy()
        for column, token in enumerate(ids.tolist()):
            count = generated.count(token)
            if count > 0 or token in self.prompt:
                value = logits[column]
                value = value / self.repetition_penalty if value > 0 else value * self.repetition_penalty
                if count > 0:
                    value -= self.frequency_penalty * count + self.presence_penalty
                logits[column] = value
        for token, bias in self.logit_bias:
            logits[ids == token] += bias
        if self.temperature == 0:
            return logits - np.logaddexp.reduce(logits)
        scores = (logits - logits.max()) / self.temperature
        order = np.argsort(-scores, kind="stable")
        keep = np.zeros(len(scores), dtype=bool)
        kept = order[: self.top_k] if self.top_k > 0 else order
        weights = np.exp(scores[kept])
        before = np.cumsum(weights) - weights
        kept = kept[before < self.top_p * weights.sum()] if self.top_p < 1 else kept
        keep[kept] = True
        if self.min_p > 0:
            keep &= scores >= math.log(self.min_p)
        scores = np.where(keep, scores + gumbel(ids, position, self.sample, self.seed), -np.inf)
        return scores - np.logaddexp.reduce(scores[keep])


@dataclass
class Tree:
    tokens: list[int]
    parents: list[int]
    smallest_gap: float  # between scores that decided it: below rounding it is not the only right one


class LongSpec:
    """A drafter directory over a transformers model."""

    def __init__(self, directory: Path, target: Any) -> None:
        config = json.loads((directory / "config.json").read_text())
        own = config.get("longspec", {})
        weights = load_file(directory / "model.safetensors")
        prefix = next(p for p in ("", "draft_model.", "glide.") if p + "input_layernorm.weight" in weights)
        self.weights = {name.removeprefix(prefix): value for name, value in weights.items()}
        self.window = own.get("window", 512)
        self.has_final_norm = own.get("final_norm", False)
        self.eps = config["rms_norm_eps"]
        self.target = target
        self.heads, self.kv_heads = target.config.num_attention_heads, target.config.num_key_value_heads
        self.embedding = target.get_input_embeddings().weight
        head = target.get_output_embeddings().weight
        self.ids = np.sort(self.weights.get("draft_vocabulary", torch.arange(len(head))).numpy().astype(np.int64))
        self.head = head[torch.from_numpy(self.ids)]
        self.rotary = target.model.rotary_emb

    def rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weights[name + ".weight"].float()

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ self.weights[name + ".weight"].float().T
        return y + self.weights[name + ".bias"].float() if name + ".bias" in self.weights else y

    def rope(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x: [rows, heads, head_dim]."""
        angles = positions[:, None].float() * self.rotary.inv_freq.float()[None, :]
        cos, sin = (angles.cos() * self.rotary.attention_scaling), (angles.sin() * self.rotary.attention_scaling)
        first, second = x.chunk(2, dim=-1)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1, self.target.config.head_dim)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """query: [heads, head_dim]; keys, values: [length, kv_heads, head_dim]."""
        group = self.heads // self.kv_heads
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,lhd->hl", query, keys) / math.sqrt(query.shape[-1])
        return torch.einsum("hl,lhd->hd", scores.softmax(-1), values).reshape(1, -1)

    def logits(self, tokens: list[int], root: int, target_kv: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray:
        """After `tokens`, of which those from `root` on are the root and drafted; positions are indices."""
        last = len(tokens) - 1
        first = max(0, last - self.window)
        positions = torch.arange(first, last + 1)
        x = self.embedding[torch.tensor(tokens[first:])]
        normed = self.rms(x, "input_layernorm")
        keys = self.rope(self.split(self.linear(normed, "self_attn.k_proj")), positions)
        values = self.split(self.linear(normed, "self_attn.v_proj"))
        query = self.rope(self.split(self.linear(normed[-1:], "self_attn.q_proj")), positions[-1:])[0]
        x = x[-1:] + self.linear(self.attend(query, keys, values), "self_attn.o_proj")
        if root > 0:
            normed = self.rms(x, "post_self_attention_layernorm")
            query = self.rope(self.split(self.linear(normed, "cross_attn.q_proj")), positions[-1:])[0]
            attended = self.attend(query, target_kv[0][:root], target_kv[1][:root])
            x = x + self.linear(attended, "cross_attn.o_proj")
        normed = self.rms(x, "post_cross_attention_layernorm")
        gate = torch.nn.functional.silu(self.linear(normed, "mlp.gate_proj"))
        x = x + self.linear(gate * self.linear(normed, "mlp.up_proj"), "mlp.down_proj")
        if self.has_final_norm:
            x = self.rms(x, "norm")
        return (x @ self.head.T)[0].numpy()

    def target_kv(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Last-layer keys (rotated) and values of the target, [length, kv_heads, head_dim]."""
        layer = self.target(torch.tensor([tokens]), use_cache=True).past_key_values.layers[-1]
        return layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)

    def draft(
        self, tokens: list[int], target_kv: tuple[torch.Tensor, torch.Tensor], widths: list[int], rule: Rule
    ) -> Tree:
        """The tree below tokens[-1]."""
        root = len(tokens) - 1
        tree = Tree([tokens[-1]], [-1], math.inf)
        level = [(0, tokens, 0.0)]  # node, tokens up to it, score
        for width in widths:
            candidates = []
            for rank, (node, path, score) in enumerate(level):
                logits = self.logits(path, root, target_kv)
                added = rule.log_confidence(logits, self.ids, path[len(rule.prompt) :], len(path))
                candidates += [
                    (score + value, rank, node, int(token), path)
                    for value, token in zip(added, self.ids, strict=True)
                    if value > -80  # what underflows is no proposal
                ]
            candidates.sort(key=lambda c: -c[0])
            deciding = [c[0] for c in candidates[: width + 1]]
            tree.smallest_gap = min([tree.smallest_gap, *(a - b for a, b in pairwise(deciding))])
            level = []
            for score, _, parent, token, path in candidates[:width]:
                tree.tokens.append(token)
                tree.parents.append(parent)
                level.append((len(tree.tokens) - 1, [*path, token], score))
        return tree
