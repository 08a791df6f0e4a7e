"""Attention of the training passes: causal, windowed and shifted, by flash-attn where it is installed, else by torch.

Queries are [batch, heads, length, head_dim], keys and values [batch, kv_heads, length, head_dim]; so is the result.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

_FLASH = importlib.import_module("flash_attn") if importlib.util.find_spec("flash_attn") is not None else None


def backend(device: torch.device) -> str:
    """What computes attention on a device, for the log."""
    return "flash-attn" if _FLASH is not None and device.type == "cuda" else "torch's scaled_dot_product_attention"


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """flash-attn's answer, or None where it cannot be used."""
    if _FLASH is None or query.device.type != "cuda" or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    left = -1 if window is None else window
    out: Any = _FLASH.flash_attn_func(q, k, v, causal=True, window_size=(left, 0))
    return out.transpose(1, 2)


def _each_head(query: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Keys or values repeated for each query head of their group, so that torch's fused kernels take them."""
    group = query.shape[1] // tensor.shape[1]
    return tensor if group == 1 else tensor.repeat_interleave(group, dim=1)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Query i sees keys 0..i."""
    if (out := _flash(query, key, value, None)) is not None:
        return out
    key, value = _each_head(query, key), _each_head(query, value)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def windowed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> torch.Tensor:
    """Query i sees keys max(0, i - window)..i. Time and memory are linear in the length."""
    length = query.shape[2]
    if length <= window + 1:
        return causal(query, key, value)
    if (out := _flash(query, key, value, window)) is not None:
        return out
    # Blocks of `window` queries, each against its own and the block before: all that it can see.
    key, value = _each_head(query, key), _each_head(query, value)
    blocks = -(-length // window)
    pad = blocks * window - length
    query, key, value = (functional.pad(tensor, (0, 0, 0, pad)) for tensor in (query, key, value))
    batch, heads, _, head_dim = query.shape

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(batch, heads, blocks, window, head_dim).transpose(1, 2).flatten(0, 1)

    def with_previous(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([cut(functional.pad(tensor, (0, 0, window, 0))[:, :, :-window]), cut(tensor)], dim=2)

    offset = torch.arange(window, device=query.device)[:, None]
    seen = torch.arange(2 * window, device=query.device)[None, :]
    band = (seen >= offset) & (seen <= offset + window)
    first = torch.arange(blocks, device=query.device)[:, None, None] == 0
    mask = (band & ~(first & (seen < window))).repeat(batch, 1, 1).unsqueeze(1)
    out = functional.scaled_dot_product_attention(cut(query), with_previous(key), with_previous(value), attn_mask=mask)
    return out.view(batch, blocks, heads, window, head_dim).transpose(1, 2).flatten(2, 3)[:, :, :length]


def shifted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, shifts: Sequence[int]) -> torch.Tensor:
    """Flash noisy training (LongSpec, section 3.3): query i sees keys 0..i - shift; the first `shift` results are zero.

    Q[j:] against K[:-j] is plain causal attention, so no mask is needed.

    Args:
        query, key, value: of the batch.
        shifts: the batch is cut into as many equal parts, each with its own shift >= 1.
    """
    results = []
    parts = zip(*(tensor.chunk(len(shifts)) for tensor in (query, key, value)), shifts, strict=True)
    for q, k, v, shift in parts:
        out = causal(q[:, :, shift:], k[:, :, :-shift], v[:, :, :-shift])
        results.append(functional.pad(out, (0, 0, shift, 0)))
    return results[0] if len(results) == 1 else torch.cat(results)
