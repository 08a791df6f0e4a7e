"""Algorithm 1 against brute force, and what its objectives promise."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fastspec.sparse import objectives
from fastspec.sparse.objectives import Objective, lists_of, oracle_lists, recovery
from fastspec.sparse.profile import plan_cost
from fastspec.sparse.search import Plan, search
from fastspec.sparse.signals import Budget
from fastspec.sparse.trajectories import Recording


def recording(seed: int, layers: int = 4, draft_layers: int = 2, steps: int = 5, length: int = 30) -> Recording:
    generator = torch.Generator().manual_seed(seed)

    def scores(*shape: int) -> torch.Tensor:
        found = torch.rand(*shape, generator=generator) ** 4
        return found / found.sum(dim=-1, keepdim=True)

    nothing: Any = None
    return Recording(
        trajectory=nothing,
        reading=nothing,
        roots=torch.full((steps,), length),
        rows=nothing,
        counted=nothing,
        mass=scores(steps, length),
        history=scores(layers, steps, length),
        everywhere=scores(steps, length),
        lookahead=scores(draft_layers, steps, length),
    )


BUDGET = Budget(12, 2, 3)  # 7 slots to divide: every division is tried


def brute_force_arr(recordings: list[Recording], plan: Plan) -> float:
    """Recovered mass, one step after another."""
    values = []
    for one in recordings:
        for step in range(len(one.roots)):
            history = sum(one.history[layer, step] for layer in plan.layers) / len(plan.layers)
            length = int(one.roots[step])
            chosen = {0, 1, length - 3, length - 2, length - 1}
            if plan.lookahead_slots:
                assert one.lookahead is not None
                ahead = sum(one.lookahead[layer, step] for layer in plan.draft_layers)
                chosen |= set(
                    sorted(set(range(length)) - chosen, key=lambda i: -float(ahead[i]))[: plan.lookahead_slots]
                )
            chosen |= set(sorted(set(range(length)) - chosen, key=lambda i: -float(history[i]))[: 12 - len(chosen)])
            values.append(sum(float(one.mass[step, i]) for i in chosen))
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(3))
def test_search_equals_brute_force_stage_by_stage(seed: int) -> None:
    recordings = [recording(2 * seed), recording(2 * seed + 1)]
    costs = {0: 0.001, 1: 0.0, 2: 0.02, 3: 0.002}

    def value(plan: Plan) -> float:
        drafters = 0.001 * len(plan.draft_layers) if plan.lookahead_slots else 0.0
        return brute_force_arr(recordings, plan) - sum(costs[layer] for layer in plan.layers) - drafters

    objective = Objective(
        "arr",
        None,  # type: ignore[arg-type]
        recordings,
        BUDGET,
        lambda plan: (
            sum(costs[i] for i in plan.layers) + (0.001 * len(plan.draft_layers) if plan.lookahead_slots else 0)
        ),
        3,
    )
    found = search(range(4), range(2), BUDGET.free, 2, 2, objective)

    first = max(range(4), key=lambda i: value(Plan((i,))))
    pairs = [tuple(sorted((first, i))) for i in range(4) if i != first]
    layers = max([(first,), max(pairs, key=lambda p: value(Plan(p)))], key=lambda p: value(Plan(p)))
    assert found.target_rounds[0].plan.layers == (first,)
    one = max(range(2), key=lambda i: value(Plan(layers, (i,), 3)))
    drafters = max([(one,), (0, 1)], key=lambda p: value(Plan(layers, p, 3)))
    divisions = [Plan(layers, drafters, m) for m in range(BUDGET.free + 1)]
    assert [scored.plan for scored in found.divisions] == divisions
    best = max([Plan(layers), *divisions], key=value)
    assert found.best.value == pytest.approx(value(best), abs=1e-5)
    assert found.best.plan.layers == layers
    assert found.best.plan.lookahead_slots == best.lookahead_slots


def test_greedy_finds_the_best_subset_where_layers_add_up() -> None:
    gains = [0.1, 0.5, -0.2, 0.3, 0.05]
    found = search(range(5), [], 10, 5, 5, lambda plans: [sum(gains[i] for i in p.layers) for p in plans])
    subsets = itertools.chain.from_iterable(itertools.combinations(range(5), n) for n in range(1, 6))
    assert found.best.plan.layers == max(subsets, key=lambda s: sum(gains[i] for i in s)) == (0, 1, 3, 4)
    assert found.divisions == []


def test_a_pair_may_pay_where_neither_layer_does_alone() -> None:
    """The greedy stage goes on past a round that gains nothing."""
    worth = {(0,): 0.4, (0, 1): 0.3, (0, 1, 2): 0.9}
    found = search(range(3), [], 10, 3, 1, lambda plans: [worth.get(p.layers, 0.0) for p in plans])
    assert found.best.plan.layers == (0, 1, 2)


def test_lookahead_that_does_not_pay_is_left_out() -> None:
    found = search([0], [0], 64, 1, 1, lambda plans: [1.0 - 0.01 * p.lookahead_slots for p in plans])
    assert found.best.plan == Plan((0,), (), 0)


def test_division_is_searched_finely_around_its_best() -> None:
    found = search([0], [0], 492, 1, 1, lambda plans: [-abs(p.lookahead_slots - 203) for p in plans])
    assert abs(found.best.plan.lookahead_slots - 203) <= 492 // 32
    assert len(found.divisions) < 20


def test_arr_lies_between_0_and_1_and_never_above_the_oracle() -> None:
    recordings = [recording(seed) for seed in range(4)]
    best = recovery(recordings, oracle_lists(BUDGET))
    for plan in (Plan((0,)), Plan((1, 2), (0,), 3), Plan((3,), (0, 1), BUDGET.free)):
        found = recovery(recordings, lists_of(plan, BUDGET))
        assert 0 <= found <= best <= 1
        assert found == pytest.approx(brute_force_arr(recordings, plan), abs=1e-5)


def test_no_lookahead_slots_is_history_alone() -> None:
    one = recording(9)
    with_drafter = lists_of(Plan((0, 2), (1,), 0), BUDGET)(one)
    assert torch.equal(with_drafter, lists_of(Plan((0, 2)), BUDGET)(one))


def test_cost_counts_kv_heads_once_and_a_drafter_only_where_it_takes_slots() -> None:
    cost = plan_cost([(0, 1, 2), (0, 3)], 2, [(0, 1)], 2, 0.1)
    assert cost(Plan((0,))) == pytest.approx(0.2)
    assert cost(Plan((0, 1))) == pytest.approx(0.4)
    assert cost(Plan((1,), (0,), 0)) == pytest.approx(0.2)
    assert cost(Plan((1,), (0,), 5)) == pytest.approx(0.3)


def test_dear_objectives_verify_the_best_candidates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[Any] = []

    def figures(_target: Any, _recordings: Any, lists: Any) -> objectives.Figures:
        verified.append(lists)
        return objectives.Figures(0.0, 0.5, float(len(verified)))

    monkeypatch.setattr(objectives, "figures", figures)
    recordings = [recording(3)]
    objective = Objective("kl", None, recordings, BUDGET, lambda _: 0.0, 2)  # type: ignore[arg-type]
    plans = [Plan((layer,)) for layer in range(4)]
    values = objective(plans)
    assert len(verified) == 2
    best = sorted(range(4), key=lambda i: -brute_force_arr(recordings, plans[i]))[:2]
    assert [i for i, value in enumerate(values) if value > float("-inf")] == sorted(best)
