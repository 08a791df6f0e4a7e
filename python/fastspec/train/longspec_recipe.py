"""Training of LongSpec drafters (arXiv 2502.17421, section 3): flash noisy training over the target's last layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fastspec.train import attention
from fastspec.train.block import LongSpecBlock
from fastspec.train.documents import Documents
from fastspec.train.drafter_files import save_drafter
from fastspec.train.loss import linear_cross_entropy
from fastspec.train.offline import CHAIN, TREE, Tally, offline_acceptance
from fastspec.train.options import TrainOptions
from fastspec.train.recipe import Loss, Recipe
from fastspec.train.rows import RowGroup, drawn_shifts, most_frequent, seeded
from fastspec.train.states import StateSource, reach_of
from fastspec.train.target import Target

_SHAPES = {"chain": CHAIN, "tree": TREE}


class LongSpecRecipe(Recipe):
    """Every place of a row is a node of a tree, at a depth below its root that is drawn for each batch."""

    shapes = tuple(_SHAPES)

    def __init__(self, target: Target, block: LongSpecBlock, options: TrainOptions) -> None:
        """`block` is where training starts from."""
        self.module = block
        self.rows_multiple = options.shifts_at_once
        self._target, self._block, self._options = target, block, options

    def bind(self, groups: Sequence[RowGroup]) -> None:
        """See Recipe."""
        self._groups = groups
        self._source = StateSource(self._target, groups, self._options, reach_of(self._target, self._options))
        if self._options.vocabulary and self._block.draft_vocabulary is None:
            self._block.draft_vocabulary = most_frequent(groups, self._options.vocabulary)
        self._head = self._block.head(self._target.head)
        self._drafted = _places_in(self._block.draft_vocabulary, self._target.vocab_size)

    def prepare(self, log: Callable[[str], None]) -> None:
        """See Recipe."""
        self._source.prepare(log)

    def loss(self, model: Any, group_index: int, rows: torch.Tensor, step: int) -> Loss:
        """See Recipe."""
        options, target = self._options, self._target
        generator = seeded(options.seed, 3, step)
        shifts = drawn_shifts(options.depth, options.shifts_at_once, options.shift_decay, generator)
        group = self._groups[group_index]
        tokens, lengths, prompts = group.tokens[rows].long(), group.lengths[rows], group.prompts[rows]
        positions, states = self._source.of(group_index, rows, tokens, step)
        keys, values = states.last_layer()
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=options.dtype == "bfloat16"):
            hidden = model(
                target.embed(tokens),
                target.rope(positions),
                lambda q, k, v: attention.windowed(q, k, v, options.window),
                lambda q: attention.shifted(q, keys.to(q.dtype), values.to(q.dtype), shifts),
            )
        places = torch.arange(group.length, device=tokens.device)
        begin = torch.tensor(shifts, device=tokens.device).repeat_interleave(len(rows) // len(shifts))
        if not options.prompt_loss:
            begin = torch.maximum(begin, prompts - 1)
        counted = (places >= begin[:, None]) & (places < (lengths - 1)[:, None])
        wanted = states.choices.long() if options.labels == "target" else torch.roll(tokens, -1, dims=1)
        if self._drafted is not None:
            wanted = self._drafted[wanted]
            counted &= wanted >= 0
        chosen = counted.flatten().nonzero().squeeze(1)
        teacher = None if states.hidden is None else states.hidden.flatten(0, 1)[chosen]
        total, hits = linear_cross_entropy(
            hidden.flatten(0, 1)[chosen], self._head, wanted.flatten()[chosen], teacher, options.distill
        )
        return Loss(total, hits, int(chosen.numel()), int(lengths.sum()))

    def acceptance(self, module: Any, documents: Documents) -> dict[str, dict[str, Tally]]:
        """See Recipe."""
        return offline_acceptance(module, self._target, documents, _SHAPES, self._options.eval_offset)

    def save(self, module: Any, directory: Path) -> None:
        """See Recipe."""
        save_drafter(directory, module, self._target)


def _places_in(vocabulary: torch.Tensor | None, size: int) -> torch.Tensor | None:
    """The place of each of `size` tokens in a draft vocabulary, -1 of those it does not have; None where it has all."""
    if vocabulary is None:
        return None
    places = torch.full((size,), -1, dtype=torch.int64, device=vocabulary.device)
    places[vocabulary.long()] = torch.arange(len(vocabulary), device=vocabulary.device)
    return places
