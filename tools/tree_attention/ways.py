"""The ways to attend that are compared: ours, eager, flash attention with recomputed paths, and a hybrid in Triton.

Each is given its inputs in the layout it likes best, and what a step prepares once for all layers is done beforehand:
gathered K and V, packed or repeated queries, masks. All compute the same; problem.py says what.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from tree_attention.problem import PAGE_SHIFT, Problem, leaf_paths, mask_words

Tensor = Any  # torch.Tensor; mypy does not follow torch

Dense = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]
"""(query, keys, values, scale, causal) -> output, log-sum-exp [batch, heads, rows]; all [batch, heads, rows, dim]."""


class Way(Protocol):
    """One way to attend."""

    name: str

    def step(self) -> None:
        """What belongs to the time of a step, before its layers."""

    def layer(self, index: int) -> Tensor:
        """Attends in one layer; the result is in a layout of its own."""

    def rows(self, result: Tensor) -> Tensor:
        """A result as [batch, rows, num_heads, head_dim]; not part of the time."""


def flash(query: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """FlashAttention-2 of torch, or its relative for CPUs."""
    operators = torch.ops.aten
    if query.device.type == "cpu":
        result = operators._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal, scale=scale)
    else:
        result = operators._scaled_dot_product_flash_attention(query, keys, values, 0.0, causal, False, scale=scale)
    return result[0], result[1]


def cudnn(query: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """cuDNN's flash attention, CUDA only."""
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    result = operator(query, keys, values, None, True, 0.0, causal, False, scale=scale)
    return result[0], result[1].reshape(query.shape[:3])


def packed_heads(query: Tensor, kv_heads: int) -> Tensor:
    """[batch, rows, heads, dim] to [batch, kv_heads, rows * group, dim]: the heads of a K/V head become rows of it."""
    batch, rows, heads, dim = query.shape
    grouped = query.view(batch, rows, kv_heads, heads // kv_heads, dim).transpose(1, 2)
    return grouped.reshape(batch, kv_heads, -1, dim).contiguous()


def unpacked_heads(packed: Tensor, rows: int) -> Tensor:
    """Back again."""
    grouped = packed.unflatten(2, (rows, -1)).transpose(1, 2)
    return grouped.flatten(2, 3)


class _Shape(ctypes.Structure):
    """TreeShape of tests/cuda/tree_attention_library.cu."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("batch", "rows", "context", "num_heads", "num_kv_heads", "head_dim", "page_shift")
    )


class Ours:
    """The engine's kernel over pages, its plan included."""

    name = "ours"

    def __init__(self, problem: Problem, library: Path) -> None:
        """Raises OSError where the library cannot be loaded, RuntimeError where it refuses."""
        self._library = ctypes.CDLL(str(library))
        self._library.fastspec_tree_attention_create.restype = ctypes.c_void_p
        self._library.fastspec_tree_attention_error.restype = ctypes.c_char_p
        case = problem.case
        self._problem = problem
        words = mask_words(problem.mask.cpu()).to(problem.query.device)
        self._mask = words.repeat(case.batch, 1).contiguous()
        self._output = torch.empty_like(problem.query)
        self.lse = torch.empty(problem.query.shape[:3], dtype=torch.float32, device=problem.query.device)
        shape = _Shape(
            case.batch, case.rows, case.context, case.num_heads, case.num_kv_heads, case.head_dim, PAGE_SHIFT
        )
        torch.cuda.synchronize()
        self._handle = ctypes.c_void_p(
            self._library.fastspec_tree_attention_create(
                ctypes.byref(shape), _pointer(problem.pages), _pointer(problem.slots), _pointer(self._mask)
            )
        )
        if not self._handle:
            raise RuntimeError("the attention library refuses the case")

    def __del__(self) -> None:
        """Gives its device memory back."""
        if getattr(self, "_handle", None):
            self._library.fastspec_tree_attention_destroy(self._handle)

    def step(self) -> None:
        """Plans."""
        self._check(self._library.fastspec_tree_attention_plan(self._handle, _stream()))

    def layer(self, index: int) -> Tensor:
        """One launch."""
        self._check(
            self._library.fastspec_tree_attention_attend(
                self._handle,
                _pointer(self._problem.query),
                _pointer(self._problem.pool[index]),
                _pointer(self._output),
                _pointer(self.lse),
                _stream(),
            )
        )
        return self._output

    def rows(self, result: Tensor) -> Tensor:
        """As they are."""
        return result

    def _check(self, error: int) -> None:
        if error != 0:
            raise RuntimeError(f"attention kernel: {self._library.fastspec_tree_attention_error(error).decode()}")


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Eager:
    """Repeated K/V heads, all scores in memory, a full mask: attention as transformers' eager mode computes it."""

    name = "eager"

    def __init__(self, problem: Problem) -> None:
        """Makes the mask, [batch, 1, rows, context + rows]."""
        self._problem = problem
        query = problem.query
        self._query = query.transpose(1, 2).contiguous()
        hidden = torch.zeros(problem.visible().shape, dtype=query.dtype, device=query.device)
        hidden.masked_fill_(~problem.visible(), torch.finfo(query.dtype).min)
        self._mask = hidden.expand(problem.case.batch, 1, *hidden.shape).contiguous()

    def step(self) -> None:
        """Nothing."""

    def layer(self, index: int) -> Tensor:
        """Scores, softmax in float32, values."""
        keys, values = self._repeated(self._problem.keys[index]), self._repeated(self._problem.values[index])
        scores = torch.matmul(self._query, keys.transpose(2, 3)) * self._problem.case.scale
        scores = scores + self._mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(self._query.dtype)
        return torch.matmul(weights, values).transpose(1, 2).contiguous()

    def rows(self, result: Tensor) -> Tensor:
        """As they are."""
        return result

    def _repeated(self, tensor: Tensor) -> Tensor:
        batch, kv_heads, length, dim = tensor.shape
        wide = tensor[:, :, None].expand(batch, kv_heads, self._problem.case.group, length, dim)
        return wide.reshape(batch, -1, length, dim)


class Paths:
    """Dense attention that knows no trees: paths from root to leaf are sequences, shared nodes are recomputed.

    The prefix is read once for all paths of a sequence: their rows are packed. Both parts are merged by log-sum-exp.
    """

    name = "paths"

    def __init__(self, problem: Problem, prefix: Dense) -> None:
        """Gathers the paths' rows; short ones repeat their last node, which causality hides from the others."""
        self._problem, self._prefix = problem, prefix
        case, query = problem.case, problem.query
        paths = leaf_paths(problem.parents)
        length = max(len(path) for path in paths)
        nodes = torch.tensor([path + path[-1:] * (length - len(path)) for path in paths], device=query.device)
        self._places = torch.tensor([nodes.flatten().tolist().index(node) for node in range(case.rows)])
        self.num_rows = nodes.numel()
        taken = query[:, nodes.flatten()]
        self._packed = packed_heads(taken, case.num_kv_heads)
        self._query = self._split(taken.transpose(1, 2), nodes.shape)
        new = [tensor[:, :, :, case.context :][:, :, :, nodes.flatten()] for tensor in (problem.keys, problem.values)]
        self._keys, self._values = (
            [self._split(layer.repeat_interleave(case.group, dim=1), nodes.shape) for layer in tensor] for tensor in new
        )

    def _split(self, tensor: Tensor, shape: tuple[int, int]) -> Tensor:
        """[batch, heads, paths * length, dim] to [batch * paths, heads, length, dim]."""
        return tensor.unflatten(2, shape).transpose(1, 2).flatten(0, 1).contiguous()

    def step(self) -> None:
        """Nothing."""

    def layer(self, index: int) -> Tensor:
        """[batch, paths * length, heads, dim]."""
        problem, case = self._problem, self._problem.case
        keys, values = problem.keys[index, :, :, : case.context], problem.values[index, :, :, : case.context]
        cached, cached_lse = self._prefix(self._packed, keys, values, case.scale, False)
        new, new_lse = flash(self._query, self._keys[index], self._values[index], case.scale, True)
        cached_lse = unpacked_heads(cached_lse.unsqueeze(-1), self.num_rows)
        share = torch.sigmoid(cached_lse - self._flat(new_lse.unsqueeze(-1)))
        return torch.lerp(self._flat(new), unpacked_heads(cached, self.num_rows), share.to(cached.dtype))

    def _flat(self, tensor: Tensor) -> Tensor:
        """[batch * paths, heads, length, any] to [batch, paths * length, heads, any]."""
        return tensor.unflatten(0, (self._problem.case.batch, -1)).transpose(2, 3).flatten(1, 2)

    def rows(self, result: Tensor) -> Tensor:
        """One of the places where a node was computed."""
        return result[:, self._places]


class Hybrid:
    """Dense attention over the prefix, a Triton kernel for the tree, merged in it: LongSpec's construction."""

    name = "hybrid"

    def __init__(self, problem: Problem, prefix: Dense) -> None:
        """Raises ImportError without Triton."""
        from tree_attention.masked_kernel import merge_masked_rows

        self._merge = merge_masked_rows
        self._problem, self._prefix = problem, prefix
        self._packed = packed_heads(problem.query, problem.case.num_kv_heads)
        self._mask = problem.mask.to(torch.uint8).expand(problem.case.batch, -1, -1).contiguous()
        self._output = torch.empty_like(problem.query)

    def step(self) -> None:
        """Nothing."""

    def layer(self, index: int) -> Tensor:
        """Two launches, or three where the prefix is split."""
        case = self._problem.case
        keys, values = self._problem.keys[index], self._problem.values[index]
        cached = (keys[:, :, : case.context], values[:, :, : case.context])
        output, lse = self._prefix(self._packed, *cached, case.scale, False)
        new = (keys[:, :, case.context :], values[:, :, case.context :])
        self._merge(self._packed, *new, self._mask, output, lse.contiguous(), self._output, case.scale)
        return self._output

    def rows(self, result: Tensor) -> Tensor:
        """As they are."""
        return result
