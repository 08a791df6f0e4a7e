"""Which heads of a layer look at what the answer needs: needle probes, or what a head's own choice recovers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastspec.errors import InvalidArgumentError
from fastspec.sparse.context import read
from fastspec.sparse.lookahead import Lookahead
from fastspec.sparse.needles import Probe, recall
from fastspec.sparse.options import RECOVERY
from fastspec.sparse.signals import masses
from fastspec.train.target import Target

LEAST_RECALL = 0.5  # an answer with no more of the expected words says nothing about who found them


@dataclass(frozen=True)
class HeadMap:
    """A figure of merit of every head: [layers, heads], higher is better; for a drafter as well where there is one."""

    target: torch.Tensor
    drafter: torch.Tensor | None

    @staticmethod
    def first(merits: torch.Tensor, count: int) -> list[tuple[int, ...]]:
        """The `count` best heads of each layer, ascending; among equals the lower one."""
        order = merits.argsort(dim=1, descending=True, stable=True)[:, :count]
        return [tuple(sorted(heads)) for heads in order.tolist()]


def needle_merits(attended: torch.Tensor, tokens: Sequence[int], probe: Probe, first: int) -> torch.Tensor | None:
    """Mass on the whole needle, where the answer repeats one of its tokens, averaged over these tokens.

    Args:
        attended: [heads, rows, L], attention of the rows first, first + 1, ...: row i gave token first + i + 1.
        tokens: prompt and answer.
        probe: the prompt.
        first: place of the first row, the prompt's last token.

    Returns:
        [heads], or None where the answer has no token of the needle.
    """
    needle = set(probe.tokens[probe.begin : probe.end])
    rows = [place - 1 - first for place in range(first + 1, len(tokens)) if tokens[place] in needle]
    if not rows:
        return None
    return attended[:, rows, probe.begin : probe.end].sum(dim=-1).mean(dim=-1)


class NeedleRanking:
    """Adds up probes."""

    def __init__(self, target: Target, lookahead: Lookahead | None) -> None:
        """Of a target, and of a drafter that gives a lookahead."""
        self._target, self._lookahead = target, lookahead
        self._sums: list[torch.Tensor] = []
        self.kept, self.asked = 0, 0

    def add(self, probe: Probe, answer: Sequence[int], text: str) -> bool:
        """Adds one probe with the target's greedy answer; False where the answer was too bad to count."""
        self.asked += 1
        if recall(text, probe.answer) <= LEAST_RECALL:
            return False
        tokens = [*probe.tokens, *answer]
        first = len(probe.tokens) - 1
        reading = read(self._target, torch.tensor(tokens), first)
        places = torch.arange(first, len(tokens), device=self._target.device)
        layers = []
        for layer in range(reading.queries.shape[0]):
            attended = masses(reading.queries[layer], reading.context.keys[layer], places + 1)
            layers.append(needle_merits(attended, tokens, probe, first))
        found = [layers]
        if self._lookahead is not None:
            scored = self._lookahead.attended(torch.tensor(tokens).to(places.device), reading.context, first)
            found.append([needle_merits(attended, tokens, probe, first) for _, attended in scored])
        if any(merit is None for group in found for merit in group):
            return False
        merits = [torch.stack([merit for merit in group if merit is not None]).cpu() for group in found]
        self._sums = [a + b for a, b in zip(self._sums, merits, strict=True)] if self._sums else merits
        self.kept += 1
        return True

    def result(self) -> HeadMap:
        """The mean over probes. Raises InvalidArgumentError where no probe was answered."""
        if self.kept == 0:
            raise InvalidArgumentError(
                f"none of {self.asked} needle probes was answered: shorten --probe-lengths or give --ranking {RECOVERY}"
            )
        means = [total / self.kept for total in self._sums]
        return HeadMap(means[0], means[1] if len(means) > 1 else None)


def recovery_merits(scores: torch.Tensor, mass: torch.Tensor, slots: int) -> torch.Tensor:
    """What the `slots` best tokens by each head's own score recover of the true mass, mean over steps.

    Args:
        scores: [heads, N, L].
        mass: [N, L].
        slots: at most L.
    """
    chosen = scores.topk(min(slots, scores.shape[-1]), dim=-1).indices
    return mass.expand(scores.shape[0], -1, -1).gather(2, chosen).sum(dim=-1).mean(dim=-1)
