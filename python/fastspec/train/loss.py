"""Cross-entropy of a frozen head, in float32, without logits of all rows: rows x vocabulary is never stored.

Rows go through the head a chunk at a time. A chunk's logits become its loss and their own gradient at once (by one
Triton kernel on CUDA, by torch elsewhere), and the gradient goes back through the head to the hidden states; the head
itself gets none.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

CHUNK_BYTES = 1 << 30  # of one float32 logits buffer


def _logits(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """[rows, vocabulary] in float32, accumulated and left there."""
    if hidden.device.type == "cuda" and hidden.dtype != torch.float32:
        return torch.mm(hidden, head.T, out_dtype=torch.float32)
    return hidden.float() @ head.float().T


def _by_torch(
    logits: torch.Tensor, teacher: torch.Tensor | None, labels: torch.Tensor, distill: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(loss a row, hit a row, gradient of the loss with respect to the logits)."""
    log_q = torch.log_softmax(logits, dim=-1)
    hits = logits.argmax(dim=-1) == labels
    wanted = torch.zeros_like(log_q).scatter_(1, labels[:, None], 1.0 - distill)
    if teacher is not None:
        wanted += distill * torch.softmax(teacher, dim=-1)
    return -(wanted * log_q).sum(dim=-1), hits, log_q.exp() - wanted


def _chunk_function(device: torch.device) -> Any:
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from fastspec.train.loss_kernel import by_triton

        return by_triton
    return _by_torch


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        labels: torch.Tensor,
        teacher_hidden: torch.Tensor | None,
        distill: float,
        weights: torch.Tensor | None,
        rows_at_once: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        by_chunk = _chunk_function(hidden.device)
        # A head in bf16 takes its input in bf16; the logits, the loss and the softmax are in float32 all the same.
        inputs = hidden.detach().to(head.dtype)
        gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hits = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for begin in range(0, hidden.shape[0], rows_at_once):
            rows = slice(begin, begin + rows_at_once)
            teacher = None if teacher_hidden is None else _logits(teacher_hidden[rows], head)
            loss, hit, slope = by_chunk(_logits(inputs[rows], head), teacher, labels[rows], distill)
            slope = slope.to(head.dtype) @ head
            if weights is not None:
                loss, slope = loss * weights[rows], slope * weights[rows, None]
            gradient[rows] = slope.to(gradient.dtype)
            total += loss.sum()
            hits += hit.sum()
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0].to(gradient.dtype), None, None, None, None, None, None


def linear_cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    labels: torch.Tensor,
    teacher_hidden: torch.Tensor | None = None,
    distill: float = 0.0,
    rows_at_once: int | None = None,
    weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of the cross-entropy of softmax(hidden @ head.T).

    The distribution asked for is (1 - distill) on the label and distill on the teacher's softmax; with distill = 0 this
    is the paper's loss.

    Args:
        hidden: [rows, hidden].
        head: [vocabulary, hidden]; gets no gradient.
        labels: int64 [rows].
        teacher_hidden: [rows, hidden] of the target, for distill > 0.
        distill: in [0, 1].
        rows_at_once: rows of a chunk; None = as many as CHUNK_BYTES hold.
        weights: float32 [rows], of each row's cross-entropy; None = 1.

    Returns:
        The sum (differentiable with respect to hidden) and the number of rows whose largest logit is the label's.
    """
    if rows_at_once is None:
        rows_at_once = max(1, CHUNK_BYTES // (4 * head.shape[0]))
    teacher = teacher_hidden if distill > 0 else None
    if distill > 0 and teacher is None:
        raise ValueError("distill > 0 needs the teacher's hidden states")
    result: tuple[torch.Tensor, torch.Tensor] = _FusedLinearCrossEntropy.apply(
        hidden, head, labels, teacher, distill, weights, rows_at_once
    )
    return result
