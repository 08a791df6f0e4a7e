"""What the drafter sees of the target during training: computed for each batch, or once for all rows and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from fastspec.errors import InvalidArgumentError, OutOfMemoryError
from fastspec.train.options import RunOptions
from fastspec.train.rows import RowGroup, seeded
from fastspec.train.target import Target, TargetStates, offset_positions


def reach_of(target: Target, options: RunOptions) -> int:
    """Positions of rows stay below this; 0 = rows are not moved.

    Raises:
        InvalidArgumentError: it is less than a row.
    """
    reach = target.max_positions if options.anchor_positions < 0 else options.anchor_positions
    if options.anchor_positions > 0 and reach < options.length:
        raise InvalidArgumentError(f"anchor_positions is {reach}, less than a row's length ({options.length})")
    return reach


class StateSource:
    """Positions and target states of rows."""

    def __init__(
        self,
        target: Target,
        groups: Sequence[RowGroup],
        options: RunOptions,
        reach: int,
        layers: Sequence[int] = (),
    ) -> None:
        """Of the target's last keys and values, or of the outputs of `layers` where some are named.

        Args:
            target, groups, options: of the run.
            reach: positions of rows stay below this; 0 = rows are not moved.
            layers: see Target.states().
        """
        self._target, self._groups, self._options, self._reach = target, groups, options, reach
        self._layers = tuple(layers)
        self._kept: list[TargetStates] | None = None
        self._offsets: list[torch.Tensor] = []

    def prepare(self, log: Callable[[str], None]) -> None:
        """Runs the target over all rows, where the options say that its states are kept.

        Raises:
            OutOfMemoryError: they do not fit.
        """
        if not self._options.cache_target or self._kept is not None:
            return
        places = sum(group.tokens.numel() for group in self._groups)
        self._check_memory(places)
        begun = time.monotonic()
        self._offsets = [
            self._draw(len(group.tokens), group.length, 4, index) for index, group in enumerate(self._groups)
        ]
        self._kept = [self._run(group, offsets) for group, offsets in zip(self._groups, self._offsets, strict=True)]
        if self._target.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - begun
        log(
            f"target's states of {places / 1e6:.1f}M places kept in {seconds:.1f} s, "
            f"{places / seconds / 1e3:.0f}K places a second"
        )

    def of(
        self, group_index: int, rows: torch.Tensor, tokens: torch.Tensor, step: int
    ) -> tuple[torch.Tensor, TargetStates]:
        """(positions [B, L], states) of some rows of a group in a step; `tokens` are theirs."""
        group = self._groups[group_index]
        if self._kept is not None:
            kept = self._kept[group_index]
            return offset_positions(group.length, self._offsets[group_index][rows]), kept.rows(rows)
        # Drawn for every row of the group, so that ranks with different rows of a batch agree with a single one.
        offsets = self._draw(len(group.tokens), group.length, 5, step)[rows]
        positions = offset_positions(group.length, offsets)
        return positions, self._target.states(tokens, positions, self._options.distill > 0, self._layers)

    def _draw(self, rows: int, length: int, purpose: int, number: int) -> torch.Tensor:
        """One offset a row: o ~ U(0, reach - length), or 0 for the share of rows that stays."""
        generator = seeded(self._options.seed, purpose, number)
        most = max(0, self._reach - length)
        offsets = torch.randint(0, most + 1, (rows,), generator=generator)
        moved = torch.rand(rows, generator=generator) < self._options.anchor_share
        return (offsets * moved).to(self._target.device)

    def _run(self, group: RowGroup, offsets: torch.Tensor) -> TargetStates:
        target, with_hidden = self._target, self._options.distill > 0
        at_once = max(1, min(len(group.tokens), self._options.batch_tokens // group.length))
        kept: TargetStates | None = None
        for begin in range(0, len(group.tokens), at_once):
            rows = slice(begin, begin + at_once)
            positions = offset_positions(group.length, offsets[rows])
            part = target.states(group.tokens[rows].long(), positions, with_hidden, self._layers)
            if kept is None:
                kept = _room_for(part, len(group.tokens))
            for name, tensor in vars(part).items():
                if tensor is not None:
                    getattr(kept, name)[rows] = tensor
        assert kept is not None
        return kept

    def _check_memory(self, places: int) -> None:
        shape = self._target.block_shape(False, 1, None)
        numbers = shape.hidden_size if self._options.distill > 0 else 0
        numbers += len(self._layers) * shape.hidden_size or 2 * shape.num_kv_heads * shape.head_dim
        wanted = places * (numbers * (4 if self._target.dtype == torch.float32 else 2) + 4)
        if self._target.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._target.device)
            if wanted > 0.8 * free:
                raise OutOfMemoryError(
                    f"cache_target: the target's states of {places} places take {wanted / 1e9:.1f} GB, and "
                    f"{free / 1e9:.1f} GB are free: give less data, or cache_target = false"
                )


def _room_for(part: TargetStates, rows: int) -> TargetStates:
    def room(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(rows, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)

    return TargetStates(**{name: None if tensor is None else room(tensor) for name, tensor in vars(part).items()})
