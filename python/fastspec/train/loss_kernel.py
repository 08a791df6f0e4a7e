"""The loss of a chunk of rows and its gradient in one Triton kernel; see loss.py. Imported on CUDA only."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _cross_entropy_kernel(  # type: ignore[no-untyped-def]
    logits,  # float32 [rows, vocabulary]
    teacher,  # float32 [rows, vocabulary], unread without HAS_TEACHER
    labels,  # int64 [rows]
    losses,  # float32 [rows]
    hits,  # int32 [rows]
    gradient,  # [rows, vocabulary]
    vocabulary,
    distill,
    HAS_TEACHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row: one pass for the sums of both softmaxes, one for the gradient."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocabulary
    teacher += row * vocabulary
    gradient += row * vocabulary
    columns = tl.arange(0, BLOCK)
    largest, total = float("-inf"), 0.0
    teacher_largest, teacher_total, teacher_dot = float("-inf"), 0.0, 0.0
    for begin in range(0, vocabulary, BLOCK):
        inside = begin + columns < vocabulary
        z = tl.load(logits + begin + columns, mask=inside, other=float("-inf"))
        previous = largest
        largest = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(previous - largest) + tl.sum(tl.exp(z - largest), 0)
        if HAS_TEACHER:
            t = tl.load(teacher + begin + columns, mask=inside, other=float("-inf"))
            previous = teacher_largest
            teacher_largest = tl.maximum(teacher_largest, tl.max(t, 0))
            shrink = tl.exp(previous - teacher_largest)
            weight = tl.exp(t - teacher_largest)
            teacher_total = teacher_total * shrink + tl.sum(weight, 0)
            teacher_dot = teacher_dot * shrink + tl.sum(tl.where(inside, weight * z, 0.0), 0)

    label = tl.load(labels + row)
    label_logit = tl.load(logits + label)
    wanted = (1.0 - distill) * label_logit
    if HAS_TEACHER:
        wanted += distill * teacher_dot / teacher_total
    tl.store(losses + row, largest + tl.log(total) - wanted)
    tl.store(hits + row, (label_logit >= largest).to(tl.int32))

    for begin in range(0, vocabulary, BLOCK):
        inside = begin + columns < vocabulary
        z = tl.load(logits + begin + columns, mask=inside, other=float("-inf"))
        slope = tl.exp(z - largest) / total - tl.where(begin + columns == label, 1.0 - distill, 0.0)
        if HAS_TEACHER:
            t = tl.load(teacher + begin + columns, mask=inside, other=float("-inf"))
            slope -= distill * tl.exp(t - teacher_largest) / teacher_total
        tl.store(gradient + begin + columns, slope.to(gradient.dtype.element_ty), mask=inside)


def by_triton(
    logits: torch.Tensor,
    teacher: torch.Tensor | None,
    labels: torch.Tensor,
    distill: float,
    dtype: Any = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(loss a row, hit a row, gradient with respect to the logits in `dtype`); float32 [rows, vocabulary] in."""
    rows, vocabulary = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    hits = torch.empty(rows, dtype=torch.int32, device=logits.device)
    gradient = torch.empty(rows, vocabulary, dtype=dtype, device=logits.device)
    _cross_entropy_kernel[(rows,)](
        logits,
        logits if teacher is None else teacher,
        labels,
        losses,
        hits,
        gradient,
        vocabulary,
        distill if teacher is not None else 0.0,
        HAS_TEACHER=teacher is not None,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return losses, hits, gradient
