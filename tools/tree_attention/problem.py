"""A verifying pass as attention sees it: cached keys in pages, the rows of a draft tree, and the exact answer.

Plain tensors and torch; must not know any of the ways to compute it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

Tensor = Any  # torch.Tensor; mypy does not follow torch

PAGE_SHIFT = 4
PAGE_SIZE = 1 << PAGE_SHIFT
MASK_WORDS = 4  # of 64 bits a row, as the kernels take them


@dataclass(frozen=True)
class Case:
    """Sizes of one pass."""

    batch: int
    context: int  # cached keys of each sequence
    num_heads: int
    num_kv_heads: int
    head_dim: int = 128
    widths: tuple[int, ...] = (4, 16, 16, 16, 16)  # of the tree's levels below the root

    @property
    def rows(self) -> int:
        """Nodes of a tree, root included."""
        return 1 + sum(self.widths)

    @property
    def group(self) -> int:
        """Query heads of a K/V head."""
        return self.num_heads // self.num_kv_heads

    @property
    def scale(self) -> float:
        """Of the scores."""
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def layer_bytes(self) -> int:
        """Of K and V of a layer, new rows included."""
        return 4 * self.batch * (self.context + self.rows) * self.num_kv_heads * self.head_dim

    def needed_bytes(self) -> int:
        """What a layer must read and write at least: K, V, queries, outputs."""
        return self.layer_bytes + 4 * self.batch * self.rows * self.num_heads * self.head_dim

    def needed_flops(self, visible: int) -> int:
        """Multiplications and additions of a layer where a tree's rows see `visible` of one another in all."""
        return 4 * self.batch * self.num_heads * self.head_dim * (self.rows * self.context + visible)


def beam_tree(widths: tuple[int, ...], seed: int = 0) -> list[int]:
    """Parents of the nodes of a tree that a beam over random distributions leaves; the root's is -1.

    Nodes are in level order. As in a real beam, few nodes of a level have most of the next one's.
    """
    random = torch.Generator().manual_seed(seed)
    parents, level = [-1], [(0.0, 0)]
    for width in widths:
        spread = torch.log_softmax(2.5 * torch.randn(len(level), 4 * width, generator=random), dim=1).tolist()
        candidates = [(score + value, node) for (score, node), row in zip(level, spread, strict=True) for value in row]
        best = sorted(candidates, reverse=True)[:width]
        level = [(score, len(parents) + place) for place, (score, _) in enumerate(best)]
        parents += [node for _, node in best]
    return parents


def ancestor_mask(parents: list[int]) -> Tensor:
    """bool [rows, rows]: row i sees row j, which is i itself or one of its ancestors."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def mask_words(mask: Tensor) -> Tensor:
    """int64 [rows, MASK_WORDS]: bit j of a row, in words of 64, is column j."""
    bits = torch.zeros(len(mask), 64 * MASK_WORDS, dtype=torch.int64)
    bits[:, : mask.shape[1]] = mask
    weights = torch.tensor([(1 << bit) - (1 << 64 if bit == 63 else 0) for bit in range(64)])
    return (bits.view(len(mask), MASK_WORDS, 64) * weights).sum(2)


def leaf_paths(parents: list[int]) -> list[list[int]]:
    """Nodes from the root to each leaf."""
    inner = set(parents)
    paths = []
    for leaf in (node for node in range(len(parents)) if node not in inner):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    return paths


class Problem:
    """Tensors of a pass over several layers of K and V, which follow one another so that none is found in a cache.

    Attributes:
        query: [batch, rows, num_heads, head_dim], the same in all layers.
        pool: [layers, pages, num_kv_heads, 2 (K, V), PAGE_SIZE, head_dim], pages in random order.
        pages: int64 [batch, pages of a context]; slots: int64 [batch, rows], where the new rows are.
        keys, values: [layers, batch, num_kv_heads, context + rows, head_dim], gathered from the pool.
        parents, mask: of the tree, which all sequences share.
    """

    def __init__(self, case: Case, layers: int, device: str, dtype: Any = None, seed: int = 1) -> None:
        """Random tensors. New keys lean towards the queries, so that a tree's part weighs as much as the context's."""
        self.case, self.layers = case, layers
        dtype = dtype or torch.bfloat16
        self.parents = beam_tree(case.widths)
        self.mask = ancestor_mask(self.parents).to(device)
        random = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device).normal_(generator=random)

        context_pages, row_pages = -(-case.context // PAGE_SIZE), -(-case.rows // PAGE_SIZE)
        order = torch.randperm(case.batch * (context_pages + row_pages), generator=random, device=device)
        pages = order.view(case.batch, -1)
        self.pages = pages[:, :context_pages].contiguous()
        row = torch.arange(case.rows, device=device)
        self.slots = pages[:, context_pages + row // PAGE_SIZE] * PAGE_SIZE + row % PAGE_SIZE
        self.query = normal(case.batch, case.rows, case.num_heads, case.head_dim)
        self.pool = normal(layers, order.numel(), case.num_kv_heads, 2, PAGE_SIZE, case.head_dim)

        seen = self.mask.sum(1).float().mean().item()
        lean = math.sqrt(math.log(case.context / seen) / case.scale) if case.context > seen else 0.0
        self.query[..., 0] += lean
        self.pool[:, self.slots // PAGE_SIZE, :, 0, self.slots % PAGE_SIZE, 0] += lean
        self.keys, self.values = self._gathered(0), self._gathered(1)

    def _gathered(self, which: int) -> Tensor:
        """Dense K (0) or V (1) of all layers."""
        case = self.case
        position = torch.arange(case.context, device=self.pages.device)
        prefix = self.pages[:, position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        slots = torch.cat([prefix, self.slots], dim=1)
        dense = self.pool.new_empty(self.layers, case.batch, case.num_kv_heads, slots.shape[1], case.head_dim)
        for layer in range(self.layers):
            taken = self.pool[layer, slots // PAGE_SIZE, :, which, slots % PAGE_SIZE]  # [batch, length, kv_heads, dim]
            dense[layer] = taken.transpose(1, 2)
        return dense

    def visible(self) -> Tensor:
        """bool [rows, context + rows], the full mask."""
        prefix = self.mask.new_ones(self.case.rows, self.case.context)
        return torch.cat([prefix, self.mask], dim=1)

    def reference(self, layer: int) -> tuple[Tensor, Tensor]:
        """Outputs [batch, rows, num_heads, head_dim] and log-sum-exps [batch, rows, num_heads] in double precision."""
        case = self.case
        outputs, sums = torch.empty_like(self.query, dtype=torch.float64), []
        for i in range(case.batch):
            query = self.query[i].double().transpose(0, 1).unflatten(0, (case.num_kv_heads, case.group))
            keys, values = self.keys[layer, i].double().unsqueeze(1), self.values[layer, i].double().unsqueeze(1)
            scores = query @ keys.transpose(-1, -2) * case.scale
            scores = scores.masked_fill(~self.visible(), -math.inf)
            outputs[i] = (scores.softmax(-1) @ values).flatten(0, 1).transpose(0, 1)
            sums.append(scores.logsumexp(-1).flatten(0, 1).transpose(0, 1))
        return outputs, torch.stack(sums)


def relative_error(seen: Tensor, expected: Tensor) -> float:
    """In the Euclidean norm; NaN stays NaN."""
    return float((seen.double() - expected).norm() / expected.norm())
