"""What a selection is worth on recorded steps: recovered attention, agreement with dense, divergence from it.

Agreement and divergence come from verifying the rows again over the selected tokens, with dense K/V: one pass for the
steps of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fastspec.sparse.context import over, pass_rows
from fastspec.sparse.search import Plan
from fastspec.sparse.signals import Budget, recovered, select
from fastspec.sparse.trajectories import Recording
from fastspec.train.target import Target

_LOGITS_BYTES = 1 << 28  # of the steps that are verified at once

Lists = Callable[[Recording], torch.Tensor]
"""The selection of every step, int64 [N, slots]."""


@dataclass(frozen=True)
class Figures:
    """Means: `arr` over steps, the others over rows. agreement: same most likely token; kl: dense to sparse, nats."""

    arr: float
    agreement: float
    kl: float

    def value(self, objective: str) -> float:
        """Of an objective; higher is better."""
        return -self.kl if objective == "kl" else float(getattr(self, objective))

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        return {name: round(value, 5) for name, value in vars(self).items()}


def lists_of(plan: Plan, budget: Budget) -> Lists:
    """The engine's selection with the layers of a plan."""

    def lists(recording: Recording) -> torch.Tensor:
        history = recording.history[list(plan.layers)].mean(dim=0)
        ahead = None
        if plan.lookahead_slots:
            assert recording.lookahead is not None
            ahead = recording.lookahead[list(plan.draft_layers)].mean(dim=0)
        return select(history, ahead, recording.roots, budget, plan.lookahead_slots)

    return lists


def oracle_lists(budget: Budget) -> Lists:
    """The best by the rows' true attention: no selection of the same size and protected tokens recovers more."""
    return lambda recording: select(recording.mass, None, recording.roots, budget, 0)


def recovery(recordings: Sequence[Recording], lists: Lists) -> float:
    """ARR: the share of true attention inside the selection, mean over steps."""
    return float(torch.cat([recovered(recording.mass, lists(recording)).cpu() for recording in recordings]).mean())


def divergences(dense: torch.Tensor, sparse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(same most likely token, KL from dense to sparse in nats) of [..., vocabulary] logits."""
    wanted = torch.log_softmax(dense, dim=-1)
    kl = (wanted.exp() * (wanted - torch.log_softmax(sparse, dim=-1))).sum(dim=-1)
    return dense.argmax(dim=-1) == sparse.argmax(dim=-1), kl.clamp(min=0)


def verified(target: Target, recording: Recording, lists: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """divergences() of the counted rows of a document when they are verified over the lists. [rows] each."""
    rows = recording.rows.shape[1]
    at_once = max(1, _LOGITS_BYTES // (4 * rows * target.vocab_size))
    agreed, kls = [], []
    for begin in range(0, len(recording.roots), at_once):
        some = slice(begin, begin + at_once)
        attend = over(recording.reading.context, lists[some])
        sparse = pass_rows(target, recording.rows[some], recording.roots[some], attend).logits
        counted = recording.counted[some]
        agrees, kl = divergences(recording.dense[some][counted], sparse[counted])
        agreed.append(agrees)
        kls.append(kl)
    return torch.cat(agreed), torch.cat(kls)


def figures(target: Target, recordings: Sequence[Recording], lists: Lists) -> Figures:
    """All three on some documents."""
    found = [verified(target, recording, lists(recording)) for recording in recordings]
    return Figures(
        recovery(recordings, lists),
        float(torch.cat([agreed for agreed, _ in found]).float().mean()),
        float(torch.cat([kl for _, kl in found]).mean()),
    )


class Objective:
    """Values of plans for the search: an objective less a cost of the K/V heads that are read.

    Plans are measured by recovered attention first; where the objective is another, only the `prefilter` best of a
    round are verified.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        recordings: Sequence[Recording],
        budget: Budget,
        cost: Callable[[Plan], float],
        prefilter: int,
        advance: Callable[[int], None] = lambda plans: None,
    ) -> None:
        """`advance` is told how many plans were measured."""
        self._name, self._target, self._recordings, self._budget = name, target, recordings, budget
        self._cost, self._prefilter, self._advance = cost, prefilter, advance
        self.arr: dict[Plan, float] = {}

    def __call__(self, plans: Sequence[Plan]) -> list[float]:
        """See search.Score."""
        for plan in plans:
            if plan not in self.arr:
                self.arr[plan] = recovery(self._recordings, lists_of(plan, self._budget))
        self._advance(len(plans))
        if self._name == "arr":
            return [self.arr[plan] - self._cost(plan) for plan in plans]
        # Divisions of the budget are few and all verified: only the choice among layers is cut.
        dear = sorted(plans, key=lambda plan: self._cost(plan) - self.arr[plan])
        if len({plan.lookahead_slots for plan in plans}) == 1:
            dear = dear[: self._prefilter]
        values = {
            plan: figures(self._target, self._recordings, lists_of(plan, self._budget)).value(self._name)
            - self._cost(plan)
            for plan in dear
        }
        return [values.get(plan, float("-inf")) for plan in plans]
