"""A sequence as a target has read it: keys and values of all layers, and passes of a few rows over a part of them.

Rows are what the engine verifies: a root and tokens behind it. They see a list of context tokens, one list for all
layers and heads, and each other causally, in one softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from fastspec.errors import UnsupportedError
from fastspec.train import attention
from fastspec.train.target import Attend, Target


@dataclass
class Context:
    """Keys and values with room for more.

    Attributes:
        keys, values: [layers, kv_heads, capacity, head_dim].
        length: tokens that are there.
    """

    keys: torch.Tensor
    values: torch.Tensor
    length: int

    def copy(self, length: int) -> Context:
        """The first `length` tokens, in memory of its own that has the same room."""
        return Context(self.keys.clone(), self.values.clone(), length)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Adds rows, [layers, kv_heads, rows, head_dim]."""
        rows = slice(self.length, self.length + keys.shape[2])
        self.keys[:, :, rows], self.values[:, :, rows] = keys, values
        self.length = rows.stop


@dataclass(frozen=True)
class Reading:
    """One causal pass over a sequence.

    Attributes:
        context: of all its tokens.
        first: queries and logits are kept from this place on.
        queries: after positions, [layers, heads, length - first, head_dim].
        logits: [length - first, vocabulary].
    """

    context: Context
    first: int
    queries: torch.Tensor
    logits: torch.Tensor


def refuse_windows(directory: Path) -> None:
    """Raises UnsupportedError for a model with a layer that sees a window only: one list cannot serve all layers."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or (["sliding_attention"] if window else [])
    windowed = [layer for layer, kind in enumerate(kinds) if kind != "full_attention"]
    if windowed:
        raise UnsupportedError(
            f"{directory}: layer {windowed[0]} sees a sliding window of {window} tokens; sparse verification reads one "
            "list of tokens in all layers"
        )


def read(target: Target, tokens: torch.Tensor, first: int, room: int = 0) -> Reading:
    """Reads int64 [L] tokens at positions 0..L-1.

    Args:
        target: the model.
        tokens: of the sequence.
        first: place from which on queries and logits are kept.
        room: tokens that the context can take besides.
    """
    length = tokens.numel()
    shape = target.block_shape(False, 1, None)
    layers = len(target.model.model.layers)
    sizes = (layers, shape.num_kv_heads, length + room, shape.head_dim)
    like = {"device": target.device, "dtype": target.dtype}
    context = Context(torch.zeros(sizes, **like), torch.zeros(sizes, **like), length)
    queries = torch.empty(layers, shape.num_heads, length - first, shape.head_dim, **like)

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        context.keys[layer, :, :length], context.values[layer, :, :length] = key[0], value[0]
        queries[layer] = query[0, :, first:]
        return attention.causal(query, key, value)

    places = torch.arange(length, device=target.device)
    hidden = _forward(target, tokens[None].to(target.device), places[None], attend)
    return Reading(context, first, queries, target.model.lm_head(hidden[0, first:]).float())


@dataclass(frozen=True)
class Rows:
    """What a pass of R rows for each of B branches gave.

    Attributes:
        logits: [B, R, vocabulary], float32.
        queries: [layers, B, heads, R, head_dim].
        keys, values: [layers, B, kv_heads, R, head_dim].
    """

    logits: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def pass_rows(target: Target, tokens: torch.Tensor, roots: torch.Tensor, attend: Attend) -> Rows:
    """Runs rows of several branches.

    Args:
        target: the model.
        tokens: int64 [B, R]: each branch's root and what is behind it.
        roots: int64 [B], places of the roots.
        attend: what rows see; see over().
    """
    taps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def tapped(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        taps.append((query, key, value))
        return attend(layer, query, key, value)

    places = roots[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    hidden = _forward(target, tokens, places, tapped)
    queries, keys, values = (torch.stack(parts) for parts in zip(*taps, strict=True))
    return Rows(target.model.lm_head(hidden).float(), queries, keys, values)


def over(context: Context, lists: torch.Tensor) -> Attend:
    """Rows of branch b see the context tokens lists[b] (int64 [B, budget]) and each other."""

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys, values = (part[layer][:, lists].transpose(0, 1) for part in (context.keys, context.values))
        seen = torch.ones(1, 1, 1, lists.shape[1], dtype=torch.bool, device=query.device)
        return attend_rows(query, keys, values, seen, key, value)

    return attend


def over_all(context: Context, lengths: torch.Tensor) -> Attend:
    """Rows of branch b see the first lengths[b] tokens of the context, and each other: dense."""
    longest = int(lengths.max())
    seen = (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None, None]

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        branches = query.shape[0]
        keys, values = (
            part[layer, None, :, :longest].expand(branches, -1, -1, -1) for part in (context.keys, context.values)
        )
        return attend_rows(query, keys, values, seen, key, value)

    return attend


def attend_rows(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    own_keys: torch.Tensor,
    own_values: torch.Tensor,
) -> torch.Tensor:
    """One softmax over context tokens and, causally, the rows' own keys.

    Args:
        query: [B, heads, R, head_dim].
        keys, values: [B, kv_heads, S, head_dim].
        seen: bool, broadcasts to [B, heads, R, S].
        own_keys, own_values: [B, kv_heads, R, head_dim].
    """
    batch, heads, rows, _ = query.shape
    causal = torch.ones(rows, rows, dtype=torch.bool, device=query.device).tril()
    seen = seen.expand(batch, seen.shape[1], rows, -1)
    mask = torch.cat([seen, causal.expand(batch, seen.shape[1], rows, rows)], dim=-1)
    group = heads // keys.shape[1]
    key, value = (
        torch.cat(parts, dim=2).repeat_interleave(group, dim=1) for parts in ((keys, own_keys), (values, own_values))
    )
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _forward(target: Target, tokens: torch.Tensor, places: torch.Tensor, attend: Attend) -> torch.Tensor:
    with target.attending(attend):
        hidden: torch.Tensor = target.model.model(
            input_ids=tokens, position_ids=places, use_cache=False
        ).last_hidden_state
    return hidden
