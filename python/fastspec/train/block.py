"""LongSpec's drafter: one block over the target's embedding and head (arXiv 2502.17421, section 3.1).

Parameters are named as in the files. What its two attentions see is the caller's matter: a training pass, a tree and a
test hand in different ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Rope = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [batch or 1, length, head_dim]."""

SelfAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(query, key, value) -> result, [batch, heads, length, head_dim]."""

CrossAttention = Callable[[torch.Tensor], torch.Tensor]
"""query -> result over the keys and values of the target's last layer."""


@dataclass(frozen=True)
class BlockShape:
    """Sizes of a block; heads and head_dim are the target's."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    final_norm: bool
    window: int


class RmsNorm(nn.Module):
    """x / rms(x) * weight, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        """A weight of ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size], in the type of x."""
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotary embedding of [batch, heads, length, head_dim]."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rope)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Projections of one attention. Without keys it is the cross attention, which borrows the target's."""

    def __init__(self, shape: BlockShape, with_keys: bool) -> None:
        """q (and k, v) with biases, o without."""
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_heads * shape.head_dim)
        if with_keys:
            self.k_proj = nn.Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim)
            self.v_proj = nn.Linear(shape.hidden_size, shape.num_kv_heads * shape.head_dim)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)

    def heads(self, projection: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, hidden] -> [batch, heads, length, head_dim]."""
        out = projection(x)
        return out.view(*out.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def output(self, attended: torch.Tensor) -> torch.Tensor:
        """[batch, heads, length, head_dim] -> [batch, length, hidden]."""
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        """Three projections without biases."""
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., hidden]."""
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LongSpecBlock(nn.Module):
    """The drafter without the target's embedding and head.

    Attributes:
        draft_vocabulary: int32 token ids, ascending, that it proposes; None = all of the target's.
    """

    draft_vocabulary: torch.Tensor | None

    def __init__(self, shape: BlockShape) -> None:
        """Random weights of torch's own initialisation."""
        super().__init__()
        self.shape = shape
        self.self_attn = Attention(shape, with_keys=True)
        self.cross_attn = Attention(shape, with_keys=False)
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size)
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.post_self_attention_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.post_cross_attention_layernorm = RmsNorm(shape.hidden_size, shape.norm_eps)
        if shape.final_norm:
            self.norm = RmsNorm(shape.hidden_size, shape.norm_eps)
        self.register_buffer("draft_vocabulary", None)

    def head(self, whole: torch.Tensor) -> torch.Tensor:
        """The rows of the target's head that give the logits of draft_vocabulary."""
        return whole if self.draft_vocabulary is None else whole[self.draft_vocabulary.long()]

    def self_keys(self, x: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of tokens; they depend on embedding and position only: self-attention comes first."""
        normed = self.input_layernorm(x)
        attention = self.self_attn
        return rotate(attention.heads(attention.k_proj, normed), rope), attention.heads(attention.v_proj, normed)

    def forward(
        self, x: torch.Tensor, rope: Rope, self_attention: SelfAttention, cross_attention: CrossAttention
    ) -> torch.Tensor:
        """What the target's head turns into logits.

        Args:
            x: embeddings, [batch, length, hidden].
            rope: of the positions of x.
            self_attention: what rows see of each other.
            cross_attention: what rows see of the target.

        Returns:
            [batch, length, hidden].
        """
        query = rotate(self.self_attn.heads(self.self_attn.q_proj, self.input_layernorm(x)), rope)
        x = x + self.self_attn.output(self_attention(query, *self.self_keys(x, rope)))
        normed = self.post_self_attention_layernorm(x)
        query = rotate(self.cross_attn.heads(self.cross_attn.q_proj, normed), rope)
        x = x + self.cross_attn.output(cross_attention(query))
        x = x + self.mlp(self.post_cross_attention_layernorm(x))
        return self.norm(x) if self.shape.final_norm else x


def start_from_target(block: LongSpecBlock, target: Any, scale: float = 1.0) -> None:
    """Copies what the target's last layer has of the same shape: projections, MLP and norms; biases it lacks are zero.

    Cross attention starts with the last layer's own query and output projections, because the keys are that layer's.

    Args:
        block: is changed.
        target: a causal language model of transformers.
        scale: of the projections that add to the residual.
    """
    layer = target.model.layers[-1]
    sources = {
        "self_attn": layer.self_attn,
        "cross_attn": layer.self_attn,
        "mlp": layer.mlp,
        "input_layernorm": layer.input_layernorm,
        "post_self_attention_layernorm": layer.input_layernorm,
        "post_cross_attention_layernorm": layer.post_attention_layernorm,
        "norm": target.model.norm,
    }
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            module, _, rest = name.partition(".")
            source = dict(sources[module].named_parameters()).get(rest)
            if source is not None and source.shape == parameter.shape:
                adds = rest in ("o_proj.weight", "down_proj.weight")
                parameter.copy_(source * scale if adds else source)
            elif name.endswith(".bias"):
                parameter.zero_()
