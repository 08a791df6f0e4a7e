"""Training of DFlash drafters (arXiv 2602.06036, section 4): blocks behind random roots of every row, each blind to the
others, early tokens counting more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fastspec.train.dflash_block import DFlashBlock, block_mask
from fastspec.train.dflash_files import save_dflash
from fastspec.train.documents import Documents
from fastspec.train.loss import linear_cross_entropy
from fastspec.train.offline import Tally, places_of, tally_acceptance
from fastspec.train.options import DFlashOptions
from fastspec.train.recipe import Loss, Recipe
from fastspec.train.rows import RowGroup, seeded
from fastspec.train.states import StateSource, reach_of
from fastspec.train.target import Target, TargetStates, moved

_ROOTS_AT_ONCE = 64  # of an evaluation's rows: blocks are blind to each other, their mask is not small


class DFlashRecipe(Recipe):
    """A batch is some rows, and in each of them blocks behind `anchors` roots that are drawn anew every step."""

    shapes = ("block",)

    def __init__(self, target: Target, block: DFlashBlock, options: DFlashOptions) -> None:
        """`block` is where training starts from."""
        self.module = block
        self._target, self._block, self._options = target, block, options

    def bind(self, groups: Sequence[RowGroup]) -> None:
        """See Recipe."""
        self._groups = groups
        reach, layers = reach_of(self._target, self._options), self._block.shape.target_layers
        self._source = StateSource(self._target, groups, self._options, reach, layers)

    def prepare(self, log: Callable[[str], None]) -> None:
        """See Recipe."""
        self._source.prepare(log)

    def loss(self, model: Any, group_index: int, rows: torch.Tensor, step: int) -> Loss:
        """See Recipe."""
        options, target, size = self._options, self._target, self._block.shape.block_size
        group = self._groups[group_index]
        tokens, lengths, prompts = group.tokens[rows].long(), group.lengths[rows], group.prompts[rows]
        positions, states = self._source.of(group_index, rows, tokens, step)
        first = torch.zeros_like(prompts) if options.prompt_loss else (prompts - 1).clamp(min=0)
        # Drawn for every row of the group, so that ranks with different rows of a batch agree with a single one.
        drawn = torch.rand(len(group.tokens), options.anchors, generator=seeded(options.seed, 6, step))
        room = (lengths - 1 - first).clamp(min=1)[:, None]
        roots = first[:, None] + (drawn.to(room.device)[rows] * room).long()
        hidden = self._hidden(model, tokens, roots, positions, states)

        offsets = torch.arange(1, size, device=tokens.device)
        places = roots[:, :, None] + offsets  # of the tokens that are to be proposed
        counted = places < lengths[:, None, None]
        places = places.clamp(max=group.length - 1).flatten(1)
        chosen = counted.flatten().nonzero().squeeze(1)
        wanted = states.choices.long().gather(1, places - 1) if options.labels == "target" else tokens.gather(1, places)
        teacher = None
        if states.hidden is not None:
            index = (places - 1 + group.length * torch.arange(len(rows), device=places.device)[:, None]).flatten()
            teacher = states.hidden.flatten(0, 1)[index[chosen]]
        weights = torch.exp(-(offsets - 1).float() / options.gamma).expand(counted.shape).flatten()[chosen]
        total, hits = linear_cross_entropy(
            hidden[:, :, 1:].flatten(0, 2)[chosen],
            target.head,
            wanted.flatten()[chosen],
            teacher,
            options.distill,
            weights=weights,
        )
        return Loss(total, hits, int(chosen.numel()), int(lengths.sum()))

    def _hidden(
        self, model: Any, tokens: torch.Tensor, roots: torch.Tensor, positions: torch.Tensor, states: TargetStates
    ) -> torch.Tensor:
        """What the head turns into logits of blocks at [batch, blocks] roots: [batch, blocks, block_size, hidden]."""
        target, shape = self._target, self._block.shape
        assert states.features is not None
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self._options.dtype == "bfloat16"):
            ids = torch.full((*roots.shape, shape.block_size), shape.mask_token, device=tokens.device)
            ids[:, :, 0] = tokens.gather(1, roots)
            inside = torch.arange(shape.block_size, device=tokens.device)
            own = positions.gather(1, roots)[:, :, None] + inside
            hidden: torch.Tensor = model(
                states.features,
                target.rope(positions),
                target.embed(ids.flatten(1)),
                target.rope(own.flatten(1)),
                block_mask(tokens.shape[1], roots, shape.block_size),
            )
        return hidden.unflatten(1, (roots.shape[1], shape.block_size))

    def acceptance(self, module: Any, documents: Documents) -> dict[str, dict[str, Tally]]:
        """See Recipe."""

        def way(tokens: torch.Tensor, lengths: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
            return self.accepted(module, tokens, lengths, roots)

        rows = self._block.shape.block_size * self._target.vocab_size
        return tally_acceptance(documents, self._target.device, {"block": way}, rows)

    def accepted(self, module: Any, tokens: torch.Tensor, lengths: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        """How many tokens of each root's block are the target's; see offline.AcceptedAt."""
        target, size = self._target, self._block.shape.block_size
        positions = moved(places_of(tokens), self._options.eval_offset)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self._options.dtype == "bfloat16"):
            states = target.states(tokens, positions, False, self._block.shape.target_layers)
        found = []
        for some in roots.split(_ROOTS_AT_ONCE, dim=1):
            hidden = self._hidden(module, tokens, some, positions, states)[:, :, 1:]
            proposed = (hidden.to(target.head.dtype) @ target.head.T).argmax(dim=-1)
            places = some[:, :, None] + torch.arange(1, size, device=some.device)
            truth = tokens.gather(1, places.clamp(max=tokens.shape[1] - 1).flatten(1)).view(places.shape)
            hit = (proposed == truth) & (places < lengths[:, None, None])
            found.append(hit.long().cumprod(dim=-1).sum(dim=-1))
        return torch.cat(found, dim=1)

    def save(self, module: Any, directory: Path) -> None:
        """See Recipe."""
        save_dflash(directory, module, self._target)
