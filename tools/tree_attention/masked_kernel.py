"""The tree's part of hybrid tree attention in Triton, merged with the prefix's result in the same launch.

LongSpec (arXiv 2502.17421), section 3.3: O = w O_cache + (1 - w) O_tree, w = sigmoid(LSE_cache - LSE_tree). A peer of
our kernel in the benchmark, no part of the engine.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

Tensor = Any  # torch.Tensor; mypy does not follow torch


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _masked_rows_kernel(  # type: ignore[no-untyped-def]
    query,  # [batch, kv_heads, rows * GROUP, DIM]
    keys,  # [batch, kv_heads, rows, DIM] of the new rows
    values,  # as keys
    mask,  # uint8 [batch, rows, rows]: whether a row sees a row
    prefix_output,  # [batch, kv_heads, rows * GROUP, DIM] in any strides
    prefix_lse,  # float32 [batch, kv_heads, rows * GROUP], natural logarithm; -inf where the prefix is empty
    output,  # [batch, rows, kv_heads * GROUP, DIM]
    kv_heads,
    batch_stride,  # of keys and values, elements
    head_stride,
    prefix_batch_stride,
    prefix_head_stride,
    prefix_row_stride,
    log2_scale,  # scale of the scores * log2(e)
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program a block of packed rows of a K/V head; sums are kept in base 2."""
    block, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    packed = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row, dims = packed // GROUP, tl.arange(0, DIM)
    real = row < ROWS
    first = (sequence * kv_heads + kv_head) * ROWS * GROUP
    place = (first + packed)[:, None] * DIM + dims[None, :]
    q = tl.load(query + place, mask=real[:, None], other=0.0)
    keys += sequence * batch_stride + kv_head * head_stride
    values += sequence * batch_stride + kv_head * head_stride
    mask += (sequence * ROWS + row[:, None]) * ROWS

    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    sums = tl.zeros([BLOCK_ROWS, DIM], tl.float32)
    for begin in range(0, ROWS, BLOCK_KEYS):
        key = begin + tl.arange(0, BLOCK_KEYS)
        inside = key < ROWS
        # Both bounds: a column past the last would read the next row's first.
        seen = tl.load(mask + key[None, :], mask=real[:, None] & inside[None, :], other=0)
        k = tl.load(keys + key[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(values + key[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * log2_scale
        scores = tl.where(seen != 0, scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(now == float("-inf"), 0.0, now)  # nothing seen so far: -inf - -inf has no value
        shrink = tl.exp2(largest - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = now

    # The prefix is one more block, already normalised.
    lse = tl.load(prefix_lse + first + packed, mask=real, other=0.0) * 1.4426950408889634
    prefix_output += sequence * prefix_batch_stride + kv_head * prefix_head_stride
    at = packed[:, None] * prefix_row_stride + dims[None, :]
    cached = tl.load(prefix_output + at, mask=real[:, None], other=0.0).to(tl.float32)
    now = tl.maximum(largest, lse)
    base = tl.where(now == float("-inf"), 0.0, now)
    shrink, weight = tl.exp2(largest - base), tl.exp2(lse - base)
    total = total * shrink + weight
    # An empty prefix's output may be anything, NaN too.
    cached = tl.where(weight[:, None] > 0, cached * weight[:, None], 0.0)
    result = (sums * shrink[:, None] + cached) / tl.where(total > 0, total, 1.0)[:, None]
    head = kv_head * GROUP + packed % GROUP
    place = ((sequence * ROWS + row) * kv_heads * GROUP + head)[:, None] * DIM + dims[None, :]
    tl.store(output + place, result.to(output.dtype.element_ty), mask=real[:, None])


def merge_masked_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    prefix_output: Tensor,
    prefix_lse: Tensor,
    output: Tensor,
    scale: float,
    block_rows: int = 64,
    block_keys: int = 64,
) -> None:
    """Attention of new rows over one another under `mask`, merged with theirs over the prefix. Writes `output`.

    Args:
        query: [batch, kv_heads, rows * group, dim], contiguous; dim a power of two.
        keys, values: [batch, kv_heads, rows, dim], each row contiguous, rows dense, the same strides.
        mask: uint8 [batch, rows, rows], contiguous.
        prefix_output: over the prefix, [batch, kv_heads, rows * group, dim], each row contiguous.
        prefix_lse: float32 [batch, kv_heads, rows * group], contiguous.
        output: [batch, rows, kv_heads * group, dim], contiguous. 0 where a row sees nothing.
        scale: of the scores.
        block_rows, block_keys: of a program.
    """
    batch, kv_heads, packed, dim = query.shape
    rows = keys.shape[2]
    if keys.stride() != values.stride() or keys.stride()[2:] != (dim, 1):
        raise ValueError(f"strides {keys.stride()} of keys and {values.stride()} of values")
    if not (query.is_contiguous() and mask.is_contiguous() and prefix_lse.is_contiguous() and output.is_contiguous()):
        raise ValueError("queries, mask, log-sum-exps and outputs must be contiguous")
    if prefix_output.stride(3) != 1:
        raise ValueError(f"strides {prefix_output.stride()} of the prefix's outputs")
    _masked_rows_kernel[(triton.cdiv(packed, block_rows), kv_heads, batch)](
        query,
        keys,
        values,
        mask,
        prefix_output,
        prefix_lse,
        output,
        kv_heads,
        keys.stride(0),
        keys.stride(1),
        *prefix_output.stride()[:3],
        scale * 1.4426950408889634,
        ROWS=rows,
        GROUP=packed // rows,
        DIM=dim,
        BLOCK_ROWS=block_rows,
        BLOCK_KEYS=block_keys,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4,
    )
