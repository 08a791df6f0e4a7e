"""Training rows: documents padded to a few lengths, and which rows make up the batch of a step.

The batch of a step is a pure function of seed and step, so that a resumed run goes on exactly where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastspec.errors import InvalidArgumentError
from fastspec.train.documents import Documents

SHORTEST = 16  # tokens of a row worth training on


@dataclass
class RowGroup:
    """Rows of one padded length.

    Attributes:
        tokens: int32 [rows, length].
        lengths: int32 [rows], tokens that are no padding.
        prompts: int32 [rows], leading tokens that were given.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    prompts: torch.Tensor

    @property
    def length(self) -> int:
        """Tokens of a row, padding included."""
        return int(self.tokens.shape[1])


def padded_length(tokens: int, longest: int, step: int = 64) -> int:
    """Length of the row that takes so many tokens: a multiple of `step`, of an eighth of the length where it is more.

    So there are few groups, and a batch finds rows enough of its length, however long rows are.
    """
    step = max(step, 1 << max(0, tokens.bit_length() - 4))
    return min(longest, -(-tokens // step) * step)


def cut_rows(documents: Sequence[Documents], longest: int, step: int = 64) -> list[RowGroup]:
    """Cuts documents into rows of at most `longest` tokens and groups them by padded_length().

    Raises:
        InvalidArgumentError: there is no row.
    """
    pieces: dict[int, list[tuple[torch.Tensor, int]]] = {}
    for part in documents:
        starts, prompts = part.starts.tolist(), part.prompt_lengths.tolist()
        for index in range(len(part)):
            for begin in range(starts[index], starts[index + 1], longest):
                tokens = part.tokens[begin : min(begin + longest, starts[index + 1])]
                if tokens.numel() >= SHORTEST:
                    padded = padded_length(tokens.numel(), longest, step)
                    prompt = max(0, prompts[index] - (begin - starts[index]))
                    pieces.setdefault(padded, []).append((tokens, min(prompt, tokens.numel())))
    if not pieces:
        raise InvalidArgumentError(f"the data holds no document of {SHORTEST} tokens or more")
    groups = []
    for padded in sorted(pieces):
        rows = torch.zeros(len(pieces[padded]), padded, dtype=torch.int32)
        for row, (tokens, _) in zip(rows, pieces[padded], strict=True):
            row[: tokens.numel()] = tokens
        lengths = torch.tensor([tokens.numel() for tokens, _ in pieces[padded]], dtype=torch.int32)
        groups.append(RowGroup(rows, lengths, torch.tensor([p for _, p in pieces[padded]], dtype=torch.int32)))
    return groups


def most_frequent(groups: Sequence[RowGroup], count: int) -> torch.Tensor:
    """The `count` most frequent tokens of the rows, or as many as there are: int32, ascending."""
    real = [
        group.tokens[torch.arange(group.length, device=group.tokens.device) < group.lengths[:, None]]
        for group in groups
    ]
    counts = torch.cat(real).bincount()
    chosen = counts.argsort(descending=True, stable=True)[:count]
    return chosen[counts[chosen] > 0].sort().values.int()


class Batches:
    """Which rows each step trains on: all of them once an epoch, in an order of its own."""

    def __init__(self, groups: Sequence[RowGroup], batch_tokens: int, multiple: int, seed: int) -> None:
        """Plans epochs.

        Args:
            groups: the rows.
            batch_tokens: tokens of a batch, padding included; the number of rows follows from their length.
            multiple: the number of rows is a multiple of this, and at least this.
            seed: of the order.
        """
        self._rows = [len(group.tokens) for group in groups]
        self._at_once = [max(1, batch_tokens // group.length // multiple) * multiple for group in groups]
        self._batches = [
            (group, index)
            for group, (rows, at_once) in enumerate(zip(self._rows, self._at_once, strict=True))
            for index in range(-(-rows // at_once))
        ]
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []
        self._permutations: list[torch.Tensor] = []

    @property
    def per_epoch(self) -> int:
        """Steps in which every row comes once; the last batch of a group is filled from its front."""
        return len(self._batches)

    def at(self, step: int) -> tuple[int, torch.Tensor]:
        """(number of the group, int64 indices of its rows) of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = seeded(self._seed, 1, epoch)
            self._order = torch.randperm(self.per_epoch, generator=generator).tolist()
            self._permutations = [torch.randperm(rows, generator=generator) for rows in self._rows]
            self._epoch = epoch
        group, index = self._batches[self._order[place]]
        at_once = self._at_once[group]
        chosen = torch.arange(index * at_once, (index + 1) * at_once) % self._rows[group]
        return group, self._permutations[group][chosen]


def drawn_shifts(depth: int, parts: int, decay: float, generator: torch.Generator) -> list[int]:
    """Shifts of 1..depth for the parts of a batch, each `decay` times as likely as the one below it.

    Drawn at even distances from one random start: the parts differ as far as they can, and with a decay of 1 and as
    many parts as shifts, each comes once.
    """
    shares = decay ** torch.arange(depth, dtype=torch.float64)
    ends = shares.cumsum(0) / shares.sum()
    points = (torch.arange(parts) + torch.rand(1, generator=generator, dtype=torch.float64)) / parts
    places = torch.searchsorted(ends, points, right=True).clamp(max=depth - 1)
    return [int(place) + 1 for place in places]


def seeded(seed: int, purpose: int, number: int) -> torch.Generator:
    """A generator that depends on these three numbers only."""
    mixed = (seed * 1_000_003 + purpose) * 2_654_435_761 + number
    return torch.Generator().manual_seed(mixed % (1 << 63))
