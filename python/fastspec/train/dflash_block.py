"""DFlash's drafter: decoder layers over the target's embedding and head, and a context of its hidden states (arXiv
2602.06036).

Parameters are named as in the files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from fastspec.train.block import Mlp, RmsNorm, Rope, rotate


@dataclass(frozen=True)
class DFlashShape:
    """Sizes of a drafter; width, heads and vocabulary are the target's."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    layers: int
    block_size: int
    mask_token: int
    target_layers: tuple[int, ...]


class _Attention(nn.Module):
    """Projections without biases, and norms of each head's query and key."""

    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        query, key_value = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, key_value, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, key_value, bias=False)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=False)
        self.q_norm = RmsNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RmsNorm(shape.head_dim, shape.norm_eps)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))

    def query(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """[batch, length, hidden] -> [batch, heads, length, head_dim], with positions."""
        return rotate(self.q_norm(self._heads(self.q_proj(x))).transpose(1, 2), rope)

    def keys(self, x: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys with positions, and values."""
        key = rotate(self.k_norm(self._heads(self.k_proj(x))).transpose(1, 2), rope)
        return key, self._heads(self.v_proj(x)).transpose(1, 2)


class _Layer(nn.Module):
    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size)

    def forward(
        self, x: torch.Tensor, rope: Rope, context: torch.Tensor, context_rope: Rope, mask: torch.Tensor
    ) -> torch.Tensor:
        attention = self.self_attn
        normed = self.input_layernorm(x)
        query = attention.query(normed, rope)
        context_keys, own_keys = attention.keys(context, context_rope), attention.keys(normed, rope)
        group = query.shape[1] // own_keys[0].shape[1]
        key, value = (
            torch.cat(parts, dim=2).repeat_interleave(group, dim=1)
            for parts in zip(context_keys, own_keys, strict=True)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + attention.o_proj(attended.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def block_mask(length: int, roots: torch.Tensor, block_size: int) -> torch.Tensor:
    """What rows of blocks see: the context before their root, and all of their own block.

    Args:
        length: of the context.
        roots: int64 [batch, blocks], places of the roots.
        block_size: rows of a block.

    Returns:
        bool [batch, 1, blocks * block_size, length + blocks * block_size].
    """
    batch, blocks = roots.shape
    places = torch.arange(length, device=roots.device)
    context = (places < roots[:, :, None]).repeat_interleave(block_size, dim=1)
    number = torch.arange(blocks, device=roots.device).repeat_interleave(block_size)
    own = (number[:, None] == number[None, :]).expand(batch, -1, -1)
    return torch.cat([context, own], dim=-1).unsqueeze(1)


class DFlashBlock(nn.Module):
    """The drafter without the target's embedding and head."""

    def __init__(self, shape: DFlashShape) -> None:
        """Random weights of torch's own initialisation."""
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.target_layers) * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden_size, shape.norm_eps)

    def forward(
        self, features: torch.Tensor, context_rope: Rope, x: torch.Tensor, rope: Rope, mask: torch.Tensor
    ) -> torch.Tensor:
        """What the target's head turns into logits.

        Args:
            features: outputs of the target's layers, one after another, [batch, length, layers * hidden].
            context_rope: of their positions.
            x: embeddings of blocks, roots and masks, [batch, rows, hidden].
            rope: of their positions.
            mask: of block_mask().

        Returns:
            [batch, rows, hidden].
        """
        context = self.hidden_norm(self.fc(features))
        for layer in self.layers:
            x = layer(x, rope, context, context_rope, mask)
        out: torch.Tensor = self.norm(x)
        return out


def default_target_layers(depth: int, layers: int) -> tuple[int, ...]:
    """Layers, of a target's `depth`, whose outputs a drafter reads unless told, as its published format has them."""
    if layers == 1:
        return (depth // 2,)
    return tuple(round(1 + k * (depth - 4) / (layers - 1)) for k in range(layers))
