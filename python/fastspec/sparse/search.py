"""Algorithm 1 of Dustin: which layers score the context, and how the budget is divided. Knows no model, only figures.

Target layers are added greedily with history alone, draft layers greedily with half of the budget for lookahead, then
the division is searched. Greedy stages go on to their limit and keep the best prefix: one layer may help only with the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_GRID = 8  # first steps of the search for the division
_FINEST = 32  # it ends at a step of 1/32 of what there is to divide


@dataclass(frozen=True)
class Plan:
    """Layers of the target and of the drafter, ascending, and the slots that lookahead takes."""

    layers: tuple[int, ...] = ()
    draft_layers: tuple[int, ...] = ()
    lookahead_slots: int = 0


@dataclass(frozen=True)
class Scored:
    """A plan with its value; higher is better."""

    plan: Plan
    value: float


Score = Callable[[Sequence[Plan]], Sequence[float]]
"""Values of plans that are compared with each other; -inf for one that is not worth measuring."""


@dataclass(frozen=True)
class Search:
    """What was found, and the best plan after every round."""

    best: Scored
    target_rounds: list[Scored]
    draft_rounds: list[Scored]
    divisions: list[Scored]


def search(
    layers: Sequence[int],
    draft_layers: Sequence[int],
    free: int,
    most_layers: int,
    most_draft_layers: int,
    score: Score,
    half: int | None = None,
) -> Search:
    """Runs the three stages.

    Args:
        layers, draft_layers: candidates; no draft layers: history alone.
        free: slots to divide between lookahead and history.
        most_layers, most_draft_layers: limits of the greedy stages.
        score: see Score.
        half: lookahead slots while draft layers are chosen; None = half of `free`.
    """

    def with_layer(plan: Plan, layer: int) -> Plan:
        return replace(plan, layers=tuple(sorted({*plan.layers, layer})))

    def with_draft_layer(plan: Plan, layer: int) -> Plan:
        return replace(plan, draft_layers=tuple(sorted({*plan.draft_layers, layer})))

    target_rounds = _greedy(Plan(), layers, most_layers, with_layer, score)
    history = _best(target_rounds)
    if not draft_layers:
        return Search(history, target_rounds, [], [])
    start = replace(history.plan, lookahead_slots=min(free, free // 2 if half is None else half))
    draft_rounds = _greedy(start, draft_layers, most_draft_layers, with_draft_layer, score)
    divisions = _divide(_best(draft_rounds).plan, free, score)
    found = _best(divisions)  # history alone among them: no slots for lookahead
    if found.plan.lookahead_slots == 0:
        found = Scored(replace(found.plan, draft_layers=()), found.value)
    return Search(found, target_rounds, draft_rounds, divisions)


def _best(found: Sequence[Scored]) -> Scored:
    """The first of the best."""
    return max(found, key=lambda scored: scored.value)


def _scored(plans: Sequence[Plan], score: Score) -> list[Scored]:
    return [Scored(plan, value) for plan, value in zip(plans, score(plans), strict=True)]


def _greedy(
    start: Plan, candidates: Sequence[int], most: int, extended: Callable[[Plan, int], Plan], score: Score
) -> list[Scored]:
    """The best plan after each round, each with one layer more."""
    rounds: list[Scored] = []
    plan = start
    left = sorted(candidates)
    for _ in range(min(most, len(left))):
        found = _scored([extended(plan, layer) for layer in left], score)
        best = _best(found)
        left.pop(found.index(best))
        plan = best.plan
        rounds.append(best)
    return rounds


def _divide(plan: Plan, free: int, score: Score) -> list[Scored]:
    """Divisions between history and lookahead by ascending lookahead slots: a grid, then finer around its best."""
    step = max(1, free // _GRID)
    found: dict[int, Scored] = {}

    def measure(places: Sequence[int]) -> None:
        new = sorted({place for place in places if 0 <= place <= free} - found.keys())
        for scored in _scored([replace(plan, lookahead_slots=place) for place in new], score) if new else []:
            found[scored.plan.lookahead_slots] = scored

    measure([*range(0, free, step), free])
    while step > max(1, free // _FINEST):
        step = max(1, step // 2)
        best = _best([found[place] for place in sorted(found)]).plan.lookahead_slots
        measure([best - step, best + step])
    return [found[place] for place in sorted(found)]
