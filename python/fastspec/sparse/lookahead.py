"""What a drafter attends to while it drafts: a score of every context token for every head of every layer of its own.

Rows that count are those that the drafter computes: the root and the drafted tokens that were drafted on from, weighted
by their chance to be reached. LongSpec's cross attention scores the target's last layer; a small model its own keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

from fastspec._fastspec import DrafterConfig
from fastspec.errors import InvalidArgumentError
from fastspec.sparse.context import Context, over_all, pass_rows, read
from fastspec.sparse.signals import masses, pool_rows
from fastspec.train.block import LongSpecBlock
from fastspec.train.drafter_files import load_drafter
from fastspec.train.offline import TREE, draft_trees
from fastspec.train.target import Target, TargetStates

CHAIN_TOKENS = 8  # that a small model drafts, as the engine's default
_ROOM = 512  # tokens by which a sequence may grow before a small model reads it anew
_STEPS_AT_ONCE = 8  # of a document: bounds the memory that scores of all heads and rows take

LayerScores = Iterator[tuple[int, torch.Tensor]]
"""(layer, scores [heads, N, L])."""


class Lookahead(Protocol):
    """A drafter as a source of scores.

    Attributes:
        kind: as in DrafterConfig.
        layers, heads, group: attention layers that can be scored, query heads of each, query heads a K/V head.
    """

    kind: str
    layers: int
    heads: int
    group: int

    def scores(self, tokens: torch.Tensor, target_context: Context, roots: torch.Tensor, pooling: str) -> LayerScores:
        """Scores of the contexts before the roots.

        Args:
            tokens: int64 [L'], the sequence, the last root included at least.
            target_context: what the target has read of it, up to the last root at least.
            roots: int64 [N], ascending.
            pooling: over the drafted rows.
        """
        ...

    def attended(self, tokens: torch.Tensor, target_context: Context, first: int) -> LayerScores:
        """Attention of the rows first..L-1 over what is before them, as they would draft the next token: one row each.

        As scores(), with a root at every place and nothing drafted behind it; what head ranking looks at.
        """
        ...


class LongSpecLookahead:
    """Cross-attention queries of LongSpec's tree, in the target's last layer."""

    kind = "longspec"
    layers = 1

    def __init__(self, target: Target, block: LongSpecBlock, widths: Sequence[int] = TREE) -> None:
        """`widths`: nodes of each level of the tree."""
        self._target, self._block, self._widths = target, block.to(target.dtype), tuple(widths)
        self.heads = block.shape.num_heads
        self.group = block.shape.num_heads // block.shape.num_kv_heads

    def scores(self, tokens: torch.Tensor, target_context: Context, roots: torch.Tensor, pooling: str) -> LayerScores:
        """See Lookahead."""
        yield 0, self._scored(tokens, target_context, roots, self._widths, pooling)

    def attended(self, tokens: torch.Tensor, target_context: Context, first: int) -> LayerScores:
        """See Lookahead."""
        roots = torch.arange(max(1, first), tokens.numel(), device=tokens.device)
        yield 0, self._scored(tokens, target_context, roots, (1,), "mean")

    def _scored(
        self, tokens: torch.Tensor, context: Context, roots: torch.Tensor, widths: Sequence[int], pooling: str
    ) -> torch.Tensor:
        length = int(roots.max())
        keys, values = (part[-1:, :, : length + 1] for part in (context.keys, context.values))
        states = TargetStates(keys, values, None, None, tokens[None, : length + 1].int())
        parts = []
        for some in roots.split(_STEPS_AT_ONCE):
            levels = draft_trees(self._block, self._target, tokens[None, : length + 1], states, some[None], widths)
            weights = torch.ones(len(some), 1, device=tokens.device)
            found, chances = [], []
            for level in levels:
                assert level.queries is not None
                found.append(level.queries[0])  # [heads, N, rows, head_dim]
                chances.append(weights)
                weights = level.scores[0].exp()
            queries, rows = torch.cat(found, dim=2), sum(part.shape[1] for part in chances)
            each = masses(queries.flatten(1, 2), keys[0], some.repeat_interleave(rows))
            pooled = pool_rows(each.unflatten(1, (-1, rows)), torch.cat(chances, dim=1), pooling)
            parts.append(torch.nn.functional.pad(pooled, (0, length - pooled.shape[-1])))
        return torch.cat(parts, dim=1)


class StandaloneLookahead:
    """Queries of a small model that drafts a chain, in its own keys."""

    kind = "standalone"

    def __init__(self, model: Target, drafted: int = CHAIN_TOKENS) -> None:
        """`drafted`: tokens of the chain."""
        shape = model.block_shape(False, 1, None)
        self._model, self._drafted = model, drafted
        self.layers, self.heads = len(model.model.model.layers), shape.num_heads
        self.group = shape.num_heads // shape.num_kv_heads
        self._kept: tuple[torch.Tensor, Context] | None = None  # tokens, and what was read of them

    def scores(self, tokens: torch.Tensor, target_context: Context, roots: torch.Tensor, pooling: str) -> LayerScores:
        """See Lookahead."""
        length = int(roots.max())
        context = self._read(tokens[:length])
        parts = [self._drafts(context, tokens, some) for some in roots.split(_STEPS_AT_ONCE)]
        for layer in range(self.layers):
            scored = []
            for some, (queries, weights) in zip(roots.split(_STEPS_AT_ONCE), parts, strict=True):
                rows = weights.shape[1]
                flat = queries[layer].transpose(0, 1).flatten(1, 2)  # [heads, N * rows, head_dim]
                each = masses(flat, context.keys[layer], some.repeat_interleave(rows))
                pooled = pool_rows(each.unflatten(1, (-1, rows)), weights, pooling)
                scored.append(torch.nn.functional.pad(pooled, (0, length - pooled.shape[-1])))
            yield layer, torch.cat(scored, dim=1)

    def attended(self, tokens: torch.Tensor, target_context: Context, first: int) -> LayerScores:
        """See Lookahead."""
        first = max(1, first)
        reading = read(self._model, tokens, first)
        places = torch.arange(first, tokens.numel(), device=tokens.device)
        for layer in range(self.layers):
            yield layer, masses(reading.queries[layer], reading.context.keys[layer], places)

    def _read(self, tokens: torch.Tensor) -> Context:
        """All of the tokens; where they begin as the last call's do, only what is new."""
        if self._kept is not None:
            known, context = self._kept
            least = min(len(known), len(tokens))
            differ = (known[:least] != tokens[:least]).nonzero()
            shared = int(differ[0]) if len(differ) else least
            if shared > 0 and len(tokens) <= context.keys.shape[2] and len(tokens) - shared <= _ROOM:
                context.length = shared
                self._kept = tokens, context
                if shared < len(tokens):
                    lengths = torch.tensor([shared], device=tokens.device)
                    found = pass_rows(self._model, tokens[None, shared:], lengths, over_all(context, lengths))
                    context.append(found.keys[:, 0], found.values[:, 0])
                return context
        context = read(self._model, tokens, len(tokens), _ROOM).context
        self._kept = tokens, context
        return context

    def _drafts(self, context: Context, tokens: torch.Tensor, roots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [layers, N, heads, rows, head_dim] of the rows that draft a chain, and their chances [N, rows]."""
        rows = tokens[roots][:, None]
        chances = torch.ones(len(roots), 1, device=tokens.device)
        while True:
            found = pass_rows(self._model, rows, roots, over_all(context, roots))
            if rows.shape[1] == self._drafted:
                return found.queries, chances
            probability, token = found.logits[:, -1].softmax(dim=-1).max(dim=-1)
            rows = torch.cat([rows, token[:, None]], dim=1)
            chances = torch.cat([chances, chances[:, -1:] * probability[:, None]], dim=1)


def load_lookahead(drafter: DrafterConfig | None, target: Target) -> Lookahead | None:
    """The lookahead of a drafter; None where it gives none (n-gram, DFlash, no drafter).

    Raises:
        InvalidArgumentError: a drafter for another vocabulary.
    """
    if drafter is None:
        return None
    if drafter.kind == "longspec":
        widths = tuple(drafter.tree_widths) or TREE
        return LongSpecLookahead(target, load_drafter(Path(drafter.model), target), widths)
    if drafter.kind == "standalone":
        model = Target(Path(drafter.model), target.device, target.dtype)
        if model.vocab_size != target.vocab_size:
            raise InvalidArgumentError(
                f"{drafter.model} has a vocabulary of {model.vocab_size}, the target one of {target.vocab_size}"
            )
        return StandaloneLookahead(model)
    return None
