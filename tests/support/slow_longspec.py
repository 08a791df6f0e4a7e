"""LongSpec's drafter node by node, from its tensors alone: nothing of it is shared, batched or kept between nodes.

Written from the paper's formulas (arXiv 2502.17421, section 3.1) as an oracle. Must not import fastspec.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class SlowLongSpec:
    """Drafts with explicit lists of keys and values, one query at a time, in float32."""

    def __init__(self, tensors: dict[str, Tensor], target: Any, window: int, offset: int = 0) -> None:
        """`tensors` by their names in the file; `target` a transformers model with eager attention; `offset` of all
        positions but the first four."""
        self.w = {name: tensor.float() for name, tensor in tensors.items()}
        self.target, self.window, self.offset = target, window, offset
        config = target.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.w["self_attn.q_proj.weight"].shape[0] // self.heads
        self.eps = config.rms_norm_eps
        self.seen: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean() + self.eps) * self.w[f"{name}.weight"]

    def position(self, place: int) -> int:
        return place if place < 4 else place + self.offset

    def rotated(self, vector: Tensor, place: int) -> Tensor:
        """Each head's first half and second half are the real and imaginary parts of rotating numbers."""
        angles = self.position(place) * self.target.model.rotary_emb.inv_freq
        half = self.head_dim // 2
        out = []
        for head in vector.split(self.head_dim):
            a, b = head[:half], head[half:]
            out.append(torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()]))
        return torch.cat(out)

    def projected(self, x: Tensor, name: str) -> Tensor:
        out = self.w[f"{name}.weight"] @ x
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def attend(self, query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """One query over lists of key and value vectors; zero over none."""
        if not keys:
            return torch.zeros_like(query)
        out = []
        group = self.heads // self.kv_heads
        for head, q in enumerate(query.split(self.head_dim)):
            part = slice(head // group * self.head_dim, (head // group + 1) * self.head_dim)
            scores = torch.stack([q @ key[part] / math.sqrt(self.head_dim) for key in keys])
            weights = torch.softmax(scores, dim=0)
            out.append(sum(w * value[part] for w, value in zip(weights, values, strict=True)))
        return torch.cat(out)

    def target_keys(self, committed: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        """The target's last layer over tokens, out of transformers' own cache."""
        if not committed:
            return [], []
        if tuple(committed) in self.seen:
            return self.seen[tuple(committed)]
        length = len(committed)
        positions = torch.tensor([[self.position(place) for place in range(length)]])
        mask = torch.full((1, 1, length, length), float("-inf")).triu(1)
        tokens = torch.tensor([list(committed)])
        out = self.target(tokens, position_ids=positions, attention_mask=mask, use_cache=True)
        cache = out.past_key_values
        layer = cache.layers[-1]
        flat = [tensor[0].transpose(0, 1).flatten(1) for tensor in (layer.keys, layer.values)]
        self.seen[tuple(committed)] = list(flat[0]), list(flat[1])
        return self.seen[tuple(committed)]

    @torch.no_grad()
    def logits(self, committed: Sequence[int], path: Sequence[int]) -> Tensor:
        """Logits of the node at the end of `path`, below the root, which is the last committed token (path = [])."""
        sequence = [*committed, *path]
        position = len(sequence) - 1
        keys, values = [], []
        for place in range(max(0, position - self.window), position + 1):
            x = self.norm(self.target.model.embed_tokens.weight[sequence[place]].float(), "input_layernorm")
            keys.append(self.rotated(self.projected(x, "self_attn.k_proj"), place))
            values.append(self.projected(x, "self_attn.v_proj"))
        x = self.target.model.embed_tokens.weight[sequence[-1]].float()
        query = self.rotated(self.projected(self.norm(x, "input_layernorm"), "self_attn.q_proj"), position)
        x = x + self.projected(self.attend(query, keys, values), "self_attn.o_proj")

        normed = self.norm(x, "post_self_attention_layernorm")
        query = self.rotated(self.projected(normed, "cross_attn.q_proj"), position)
        seen = self.target_keys(committed[:-1])
        x = x + self.projected(self.attend(query, *seen), "cross_attn.o_proj")

        normed = self.norm(x, "post_cross_attention_layernorm")
        gate = self.projected(normed, "mlp.gate_proj")
        x = x + self.projected(gate * torch.sigmoid(gate) * self.projected(normed, "mlp.up_proj"), "mlp.down_proj")
        if "norm.weight" in self.w:
            x = self.norm(x, "norm")
        return self.target.lm_head.weight.float() @ x

    def tree(self, committed: Sequence[int], widths: Sequence[int]) -> list[list[tuple[float, list[int]]]]:
        """(score, path) of the nodes of each level: the best `width` by cumulative log-probability over all parents."""
        beam: list[tuple[float, list[int]]] = [(0.0, [])]
        levels = []
        for width in widths:
            candidates = []
            for score, path in beam:
                for token, value in enumerate(torch.log_softmax(self.logits(committed, path), dim=0).tolist()):
                    candidates.append((score + value, [*path, token]))
            candidates.sort(key=lambda candidate: -candidate[0])
            beam = candidates[:width]
            levels.append(beam)
        return levels
