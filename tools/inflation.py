"""Where everything of a small model lies in a large one that computes the same function: maps of tensors, no files.

The logits are the same in exact arithmetic, and up to the rounding of the scale factors in the written dtype.

- hidden: padded with zeros. Their mean of squares is h/H of the small model's, so RMSNorm weights are scaled by
  sqrt(h/H) and its eps by h/H.
- heads: a K/V head keeps its group of query heads; a group that is too wide for the shape is split over copies of its
  K/V head. Added heads are zero, and zero in o_proj.
- head_dim: frequency j of the small model is frequency j * HD/hd of the large one (both are theta^(-2j/dim)), so its
  channels go there in each half; q is scaled by sqrt(HD/hd), which undoes the wider softmax scale. With q/k norms
  (Qwen3) their weights take the factors, and q and k are scaled so that the one eps of the config fits them too.
- MLP: padded with zeros.
- layers: the added ones stand in FRONT of the model's own and add nothing (zero o_proj and down_proj), so that the last
  layer stays the last. Layer numbers shift by `added_layers` (inflation.json).
- vocabulary: padded to the shape's, so that the head costs what it costs there. A padded logit must never win, though
  zero could. The heads of these families have no bias; instead one padded channel of the residual stream holds a
  constant c, put there by the embedding and touched by no layer. It adds c^2 to every sum of squares, which is taken
  from eps, so the function stays exact. The final norm and the padded rows of the head multiply it by -2^29 / norm of
  the hidden state, which puts their logits below -10^4 for any norm that occurs: their probability is 0 in every dtype.

A LongSpec drafter of the small model goes the same way. Its block stands on the target's embedding and head and reads
the K/V of the target's last layer, which stays the last. Its queries and keys have no norms, even where the target's
have: a normed key of the target comes out as the small one in its channels, so cross-attention's queries take the
factor sqrt(HD/hd) too. The constant passes through the block untouched and is taken from its eps. Before the head it
meets the drafter's final norm, which multiplies it as the target's does. A drafter without one hands c itself to the
added rows, whose logits are then -2^15 c (-1024 for SmolLM2, -512 for Qwen2.5-0.5B): beside logits of tens they are of
probability 0 and never among the best of a beam, at any temperature that anyone draws with. Where c is too small for
that the pair is refused. Proposals are all that could change: the target never draws an added token.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

MASK_NORM = 2.0**14  # the product is far below zero; each factor fits float16
MASK_HEAD = -(2.0**15)
UNNORMED_MASK = -200.0  # what an added token's logit must lie below where no norm precedes the head

Tensor = Any  # torch.Tensor; mypy does not follow torch
TensorMap = Callable[[Tensor], Tensor]


class RefusedError(ValueError):
    """The model cannot be embedded into the shape."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a shape is, as far as weights have it."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @staticmethod
    def of(config: dict[str, Any]) -> Sizes:
        """Sizes in a config.json."""
        heads = config["num_attention_heads"]
        return Sizes(
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim")
            or (128 if config.get("model_type") == "qwen3" else config["hidden_size"] // heads),
            vocab=config["vocab_size"],
        )

    @property
    def group(self) -> int:
        """Query heads of a K/V head."""
        return self.heads // self.kv_heads


class Inflation:
    """Where everything of a small model lies in a large one: pure maps of tensors, for targets and their drafters.

    `query_heads[i]` and `kv_heads[i]` are the small model's heads in the large one's i, -1 for an added one;
    `channels[d]` is where channel d of a head lies.
    """

    def __init__(self, small: Sizes, large: Sizes, eps: float) -> None:
        """Raises RefusedError naming every size that does not fit."""
        copies = -(-small.group // large.group)  # of a K/V head, to seat all its query heads
        wrong = [
            f"{name} {getattr(small, name)} does not fit into {getattr(large, name)}"
            for name in ("hidden", "intermediate", "layers", "vocab")
            if getattr(small, name) > getattr(large, name)
        ]
        if large.head_dim % small.head_dim != 0:
            wrong.append(f"head_dim {small.head_dim} does not divide {large.head_dim}")
        if small.kv_heads * copies > large.kv_heads:
            wrong.append(
                f"{small.heads} query heads on {small.kv_heads} K/V heads need {small.kv_heads * copies} of the shape's"
                f" K/V heads, which seat {large.group} query heads each; it has {large.kv_heads}"
            )
        if large.vocab > small.vocab and large.hidden == small.hidden:
            wrong.append("without a padded channel added vocabulary cannot be masked: use --vocab keep")
        if wrong:
            raise RefusedError("; ".join(wrong))
        self.small, self.large = small, large
        self.kv_heads = [-1] * large.kv_heads
        self.query_heads = [-1] * large.heads
        for head in range(small.heads):
            kv_head, place = divmod(head, small.group)
            seat = kv_head * copies + place // large.group
            self.kv_heads[seat] = kv_head
            self.query_heads[seat * large.group + place % large.group] = head
        self.widening = large.head_dim // small.head_dim
        half = range(small.head_dim // 2)
        self.channels = [j * self.widening for j in half] + [large.head_dim // 2 + j * self.widening for j in half]
        self.shrinkage = small.hidden / large.hidden
        # A power of two has no rounding in any dtype; at most half of eps goes into it.
        self.masks_vocabulary = large.vocab > small.vocab
        self.mask_value = 2.0 ** math.floor(math.log2(eps * small.hidden / 2) / 2) if self.masks_vocabulary else 0.0
        self.small_eps, self.eps = eps, self.scaled_eps(eps)
        self.head_norm_gain = math.sqrt(self.eps / eps * self.widening)  # of q and k where they are normed

    def scaled_eps(self, eps: float) -> float:
        """Of a norm over hidden channels: scaled, less what the constant adds to the mean of squares."""
        return (eps - self.mask_value**2 / self.small.hidden) * self.shrinkage

    def for_drafter(self, intermediate: int, eps: float, final_norm: bool) -> Inflation:
        """The same map for a LongSpec drafter, whose MLP and eps are its own.

        Its MLP grows in the proportion of the target's, to a multiple of 64 where it is not the target's.

        Raises:
            RefusedError: the constant that masks added tokens would not be exact, or would not mask.
        """
        small, large = self.small, self.large
        width = large.intermediate
        if intermediate != small.intermediate:
            width = 64 * math.ceil(large.intermediate * intermediate / (64 * small.intermediate))
        drafter = copy.copy(self)
        drafter.small = dataclasses.replace(small, intermediate=intermediate, layers=1)
        drafter.large = dataclasses.replace(large, intermediate=width, layers=1)
        drafter.small_eps, drafter.eps = eps, self.scaled_eps(eps)
        if not drafter.eps > 0:
            raise RefusedError(f"the drafter's rms_norm_eps {eps} is too small beside the target's: use --vocab keep")
        if self.masks_vocabulary and not final_norm and self.mask_value * MASK_HEAD > UNNORMED_MASK:
            raise RefusedError("added tokens cannot be masked for a drafter without a final norm: use --vocab keep")
        return drafter

    @property
    def added_layers(self) -> int:
        """Layers in front of the model's own."""
        return self.large.layers - self.small.layers

    def hidden(self, tensor: Tensor, dim: int) -> Tensor:
        """Pads a dimension of hidden channels."""
        return padded(tensor, dim, self.large.hidden)

    def hidden_columns(self, tensor: Tensor) -> Tensor:
        """Columns of a matrix that reads hidden channels."""
        return self.hidden(tensor, 1)

    def query_columns(self, tensor: Tensor) -> Tensor:
        """Columns of a matrix that reads the outputs of all query heads."""
        return self.heads(tensor, 1, self.query_heads)

    def mlp_columns(self, tensor: Tensor) -> Tensor:
        """Columns of a matrix that reads MLP channels."""
        return padded(tensor, 1, self.large.intermediate)

    def norm(self, weight: Tensor) -> Tensor:
        """An RMSNorm weight over hidden channels: [h] to [H]."""
        return self.hidden(weight * math.sqrt(self.shrinkage), 0)

    def heads(self, tensor: Tensor, dim: int, which: list[int]) -> Tensor:
        """Seats heads (query_heads or kv_heads) along a dimension of heads x head_dim."""
        rows = tensor.movedim(dim, 0)
        small = rows.reshape(-1, self.small.head_dim, *rows.shape[1:])
        large = rows.new_zeros(len(which), self.large.head_dim, *rows.shape[1:])
        for place, head in enumerate(which):
            if head >= 0:
                large[place, self.channels] = small[head]
        return large.flatten(0, 1).movedim(0, dim)

    def head_norm(self, weight: Tensor) -> Tensor:
        """An RMSNorm weight over a head's channels: [hd] to [HD]."""
        large = weight.new_zeros(self.large.head_dim)
        large[self.channels] = weight / math.sqrt(self.widening)
        return large


def padded(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Zeros behind a dimension, to `size`."""
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return tensor if shape[dim] == 0 else torch.cat([tensor, tensor.new_zeros(shape)], dim)


def embedding(map_: Inflation, tensor: Tensor) -> Tensor:
    """embed_tokens.weight, with the constant that masks added vocabulary."""
    large = map_.hidden(padded(tensor, 0, map_.large.vocab), 1)
    if map_.masks_vocabulary:
        large[:, map_.small.hidden] = map_.mask_value
    return large


def lm_head(map_: Inflation, tensor: Tensor) -> Tensor:
    """lm_head.weight; added rows see the constant alone."""
    large = map_.hidden(padded(tensor, 0, map_.large.vocab), 1)
    if map_.masks_vocabulary:
        large[map_.small.vocab :, map_.small.hidden] = MASK_HEAD
    return large


def final_norm(map_: Inflation, tensor: Tensor) -> Tensor:
    """model.norm.weight."""
    large = map_.norm(tensor)
    if map_.masks_vocabulary:
        large[map_.small.hidden] = MASK_NORM
    return large


def layer_maps(map_: Inflation, normed_heads: bool) -> dict[str, TensorMap]:
    """By name within a layer; biases go the way of their matrix's rows."""
    gain = map_.head_norm_gain if normed_heads else 1.0
    widening = math.sqrt(map_.widening)  # undoes 1 / sqrt(head_dim) of the softmax; after a norm, in its weight
    query_gain = gain if normed_heads else widening
    columns = {"self_attn.o_proj": map_.query_columns, "mlp.down_proj": map_.mlp_columns}
    rows: dict[str, TensorMap] = {
        "self_attn.q_proj": lambda t: map_.heads(t, 0, map_.query_heads) * query_gain,
        "self_attn.k_proj": lambda t: map_.heads(t, 0, map_.kv_heads) * gain,
        "self_attn.v_proj": lambda t: map_.heads(t, 0, map_.kv_heads),
        "self_attn.o_proj": lambda t: map_.hidden(t, 0),
        "mlp.gate_proj": lambda t: padded(t, 0, map_.large.intermediate),
        "mlp.up_proj": lambda t: padded(t, 0, map_.large.intermediate),
        "mlp.down_proj": lambda t: map_.hidden(t, 0),
    }
    maps: dict[str, TensorMap] = {
        "input_layernorm.weight": map_.norm,
        "post_attention_layernorm.weight": map_.norm,
        "self_attn.q_norm.weight": lambda t: map_.head_norm(t) * widening,
        "self_attn.k_norm.weight": map_.head_norm,
    }
    for name, row in rows.items():
        maps[name + ".weight"] = matrix_map(row, columns.get(name, map_.hidden_columns))
        maps[name + ".bias"] = row
    return maps


def drafter_maps(map_: Inflation) -> dict[str, TensorMap]:
    """By name in a LongSpec drafter; `map_` is for_drafter()'s."""
    own = layer_maps(map_, normed_heads=False)
    maps = {name: change for name, change in own.items() if "_proj." in name}
    for name in ("q_proj.weight", "q_proj.bias", "o_proj.weight"):
        maps["cross_attn." + name] = own["self_attn." + name]
    for name in ("input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm"):
        maps[name + ".weight"] = map_.norm
    maps["norm.weight"] = partial(final_norm, map_)
    return maps


def matrix_map(rows: TensorMap, columns: TensorMap) -> TensorMap:
    """Both dimensions of a matrix."""
    return lambda tensor: columns(rows(tensor))
