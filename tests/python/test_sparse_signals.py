"""Signals and selection of sparse verification, each against a plain and independent statement of what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastspec import InvalidArgumentError
from fastspec.sparse.context import over, over_all, pass_rows, read
from fastspec.sparse.lookahead import LongSpecLookahead, StandaloneLookahead
from fastspec.sparse.signals import (
    Budget,
    masses,
    page_bounds,
    page_scores,
    pool_rows,
    recovered,
    select,
    streaming,
)
from fastspec.sparse.trajectories import history_scores, steps_of, true_mass
from fastspec.train.drafter_files import load_drafter
from fastspec.train.offline import draft_trees
from fastspec.train.target import Target, TargetStates

CPU = torch.device("cpu")


def plain_selection(
    history: np.ndarray, lookahead: np.ndarray | None, length: int, budget: Budget, slots: int
) -> list[int]:
    """One list, by sorting."""
    chosen = set(range(budget.sinks)) | set(range(length - budget.recent, length))

    def ranked(scores: np.ndarray) -> list[int]:
        value = [float(s) if s > 0 else 0.0 for s in scores[:length]]
        return sorted((i for i in range(length) if i not in chosen), key=lambda i: (-value[i], i))

    if lookahead is not None:
        chosen |= {i for i in ranked(lookahead)[:slots] if lookahead[i] > 0}
    chosen |= set(ranked(history)[: budget.slots - len(chosen)])
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(20))
def test_selection_equals_sorting(seed: int) -> None:
    generator = np.random.default_rng(seed)
    budget = Budget(int(generator.integers(8, 24)), int(generator.integers(0, 4)), int(generator.integers(0, 4)))
    lengths = [int(n) for n in generator.integers(budget.slots + 1, 60, 5)]
    # Few different values, so that there are ties; zeros and NaN count as nothing.
    history = generator.integers(-1, 4, (5, 60)).astype(np.float32)
    lookahead = generator.integers(-1, 3, (5, 60)).astype(np.float32)
    history[generator.random(history.shape) < 0.05] = np.nan
    slots = int(generator.integers(0, budget.free + 1))
    found = select(torch.from_numpy(history), torch.from_numpy(lookahead), torch.tensor(lengths), budget, slots)
    for row, length in enumerate(lengths):
        assert found[row].tolist() == plain_selection(history[row], lookahead[row], length, budget, slots)


def test_no_lookahead_slots_is_history_alone() -> None:
    torch.manual_seed(0)
    history, lookahead, lengths = torch.rand(4, 50), torch.rand(4, 50), torch.tensor([50, 40, 33, 21])
    budget = Budget(20, 2, 4)
    alone = select(history, None, lengths, budget, 0)
    assert torch.equal(select(history, lookahead, lengths, budget, 0), alone)
    assert not torch.equal(select(history, lookahead, lengths, budget, 5), alone)


def test_selections_keep_sinks_and_recent_and_nothing_recovers_more_than_the_oracle() -> None:
    torch.manual_seed(1)
    lengths, budget = torch.tensor([64, 50, 40]), Budget(24, 3, 5)
    mass = torch.rand(3, 64) * (torch.arange(64) < lengths[:, None])
    mass /= mass.sum(dim=1, keepdim=True)
    best = recovered(mass, select(mass, None, lengths, budget, 0))
    for lists in (
        select(torch.rand(3, 64), torch.rand(3, 64), lengths, budget, 9),
        select(torch.rand(3, 64), None, lengths, budget, 0),
        streaming(lengths, budget),
    ):
        for row, length in zip(lists.tolist(), lengths.tolist(), strict=True):
            assert row == sorted(set(row))
            assert {*range(3), *range(length - 5, length)} <= set(row)
            assert row[-1] == length - 1
        found = recovered(mass, lists)
        assert bool((found <= best).all())
        assert 0 < float(found.min()) <= float(found.max()) <= 1


def test_a_context_that_fits_and_an_impossible_budget_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="fits a budget of 20"):
        select(torch.rand(1, 20), None, torch.tensor([20]), Budget(20, 2, 2), 0)
    with pytest.raises(InvalidArgumentError, match="leaves nothing to choose"):
        Budget(20, 4, 16).validate()


def test_masses_are_softmax_over_each_rows_context() -> None:
    torch.manual_seed(2)
    query, keys = torch.randn(4, 3, 8), torch.randn(2, 12, 8)
    lengths = torch.tensor([5, 12, 1])
    found = masses(query, keys, lengths)
    for head in range(4):
        for row, length in enumerate(lengths.tolist()):
            logits = keys[head // 2, :length] @ query[head, row] / 8**0.5
            torch.testing.assert_close(found[head, row, :length], torch.softmax(logits, 0))
            assert float(found[head, row, length:].sum()) == 0


def test_pooling_weighs_rows() -> None:
    each = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    weights = torch.tensor([1.0, 0.25])
    torch.testing.assert_close(pool_rows(each, weights, "mean"), torch.tensor([0.28, 0.72]))
    torch.testing.assert_close(pool_rows(each, weights, "max"), torch.tensor([0.2, 0.8]))


def test_page_scores_bound_every_inner_product() -> None:
    torch.manual_seed(3)
    query, keys = torch.randn(4, 3, 8), torch.randn(2, 22, 8)
    found = page_scores(query, page_bounds(keys, 4))
    assert found.shape == (4, 3, 6)
    for head in range(4):
        for page in range(6):
            own = keys[head // 2, 4 * page : 4 * page + 4]
            bound = torch.maximum(query[head] * own.amin(0), query[head] * own.amax(0)).sum(-1)
            torch.testing.assert_close(found[head, :, page], bound)
            assert bool((query[head] @ own.T <= found[head, :, page : page + 1] + 1e-5).all())


def test_steps_follow_what_was_committed() -> None:
    # The prompt's pass gives one token, the passes behind it 3, 1 and 2; the last goes beyond what counts.
    assert steps_of(10, 17, [1, 3, 1, 2]) == [(10, 3), (13, 1), (14, 2)]
    assert steps_of(10, 16, [1, 3, 1, 2]) == [(10, 3), (13, 1)]
    assert steps_of(10, 12, [1, 3]) == []


# --- against transformers' own attention ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tiny_model_dir: Path) -> Target:
    return Target(tiny_model_dir, CPU, torch.float32)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(3, 300, (70,), generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def eager(tiny_model_dir: Path, tokens: torch.Tensor) -> Any:
    """Logits, and attention weights [heads, L, L] of every layer."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_model_dir, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model(tokens[None], output_attentions=True)


def test_reading_gives_transformers_logits_and_attention(target: Target, tokens: torch.Tensor, eager: Any) -> None:
    reading = read(target, tokens, 40)
    torch.testing.assert_close(reading.logits, eager.logits[0, 40:], rtol=1e-4, atol=1e-4)
    roots = torch.tensor([41, 55, 70])
    for layer, weights in enumerate(eager.attentions):
        found = history_scores(reading, layer, roots)
        for index, root in enumerate(roots.tolist()):
            torch.testing.assert_close(found[:, index, :root], weights[0, :, root - 1, :root], rtol=1e-4, atol=1e-6)


def test_true_mass_is_the_rows_attention_to_their_context(target: Target, tokens: torch.Tensor, eager: Any) -> None:
    roots, sizes = torch.tensor([45, 52, 60]), torch.tensor([3, 1, 4])
    counted = torch.arange(4) < sizes[:, None]
    found = true_mass(read(target, tokens, 44), roots, counted)
    for index, (root, rows) in enumerate(zip(roots.tolist(), sizes.tolist(), strict=True)):
        weights = torch.stack([w[0, :, root : root + rows, :root] for w in eager.attentions])
        own = weights / weights.sum(dim=-1, keepdim=True)  # what rows see of each other is no context
        torch.testing.assert_close(found[index, :root], own.mean(dim=(0, 1, 2)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(3))


def test_rows_over_the_whole_context_are_dense(target: Target, tokens: torch.Tensor) -> None:
    """Two branches of the same sequence, by a list of all tokens and by lengths; a shorter list differs."""
    reading = read(target, tokens, 50)
    rows, roots = torch.stack([tokens[50:54], tokens[50:54]]), torch.tensor([50, 50])
    everything = torch.arange(50).repeat(2, 1)
    for attend in (over(reading.context, everything), over_all(reading.context, roots)):
        found = pass_rows(target, rows, roots, attend)
        for branch in range(2):
            torch.testing.assert_close(found.logits[branch], reading.logits[:4], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.keys[:, 0], reading.context.keys[:, :, 50:54], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.queries[:, 1], reading.queries[:, :, :4], rtol=1e-4, atol=1e-4)
    fewer = pass_rows(target, rows, roots, over(reading.context, everything[:, 10:]))
    assert float((fewer.logits[0] - reading.logits[:4]).abs().max()) > 0.01


def test_branches_have_contexts_of_their_own_length(target: Target, tokens: torch.Tensor) -> None:
    reading = read(target, tokens, 30)
    roots = torch.tensor([30, 61])
    rows = torch.stack([tokens[30:33], tokens[61:64]])
    found = pass_rows(target, rows, roots, over_all(reading.context, roots))
    for branch, root in enumerate(roots.tolist()):
        torch.testing.assert_close(found.logits[branch], reading.logits[root - 30 : root - 27], rtol=1e-4, atol=1e-4)


# --- lookahead --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_longspec_lookahead_equals_a_tree_drafted_alone(
    target: Target, tiny_longspec_dir: Path, tokens: torch.Tensor, pooling: str
) -> None:
    """Scores of a root do not depend on what is drafted beside it or on what is behind it."""
    block = load_drafter(tiny_longspec_dir, target)
    lookahead = LongSpecLookahead(target, block, (2, 3, 3))
    context = read(target, tokens, 69).context
    roots = torch.arange(30, 48)  # more than are drafted at once
    ((_, together),) = lookahead.scores(tokens, context, roots, pooling)
    assert together.shape == (4, 18, 47)
    for index in (0, 9, 17):
        root = int(roots[index])
        ((_, alone),) = lookahead.scores(tokens[: root + 1], context, roots[index : index + 1], pooling)
        torch.testing.assert_close(together[:, index, :root], alone[:, 0, :root], rtol=1e-4, atol=1e-6)
        assert float(together[:, index, root:].abs().sum()) == 0
    if pooling == "mean":
        torch.testing.assert_close(together.sum(dim=-1), torch.ones(4, 18))


def test_longspec_rows_count_by_their_chance(target: Target, tiny_longspec_dir: Path, tokens: torch.Tensor) -> None:
    """A row weighs exp of its cumulative log-probability; the last level's nodes are drafted, but not computed."""
    block, context, root = load_drafter(tiny_longspec_dir, target), read(target, tokens, 69).context, 50
    keys, values = context.keys[-1:], context.values[-1:]
    states = TargetStates(keys, values, None, None, tokens[None].int())
    total, weight, chances = torch.zeros(4, root), 0.0, [1.0]
    for level in draft_trees(block, target, tokens[None], states, torch.tensor([[root]]), (2, 3, 3)):
        assert level.queries is not None
        for row, chance in enumerate(chances):
            for head in range(4):
                logits = keys[0, head // 2, :root] @ level.queries[0, head, 0, row] / 4
                total[head] += chance * torch.softmax(logits, 0)
            weight += chance
        chances = level.scores[0, 0].exp().tolist()
    ((_, found),) = LongSpecLookahead(target, block, (2, 3, 3)).scores(tokens, context, torch.tensor([root]), "mean")
    torch.testing.assert_close(found[:, 0], total / weight, rtol=1e-4, atol=1e-6)


def test_a_single_root_attends_as_the_lookahead_of_nothing_drafted(
    target: Target, tiny_longspec_dir: Path, tokens: torch.Tensor
) -> None:
    lookahead = LongSpecLookahead(target, load_drafter(tiny_longspec_dir, target), (1,))
    context = read(target, tokens, 69).context
    ((_, scores),) = lookahead.scores(tokens, context, torch.arange(60, 70), "mean")
    ((_, attended),) = lookahead.attended(tokens, context, 60)
    torch.testing.assert_close(scores, attended)


def test_standalone_lookahead_equals_decoding_step_by_step(tiny_draft_dir: Path, tokens: torch.Tensor) -> None:
    """The drafted chain, its chances and its attention, by whole passes of transformers' own model."""
    import transformers

    model = Target(tiny_draft_dir, CPU, torch.float32)
    lookahead = StandaloneLookahead(model, drafted=3)
    eager = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_draft_dir, dtype=torch.float32, attn_implementation="eager"
    )
    root, chance = 41, 1.0
    sequence, weights, rows = tokens[: root + 1].tolist(), [], []
    for _ in range(3):
        with torch.no_grad():
            out = eager(torch.tensor([sequence]), output_attentions=True)
        rows.append([a[0, :, -1, :root] / a[0, :, -1, :root].sum(-1, keepdim=True) for a in out.attentions])
        weights.append(chance)
        probability, token = out.logits[0, -1].softmax(-1).max(-1)
        chance *= float(probability)
        sequence.append(int(token))
    scores = dict(lookahead.scores(tokens, None, torch.tensor([30, root]), "mean"))  # type: ignore[arg-type]
    assert sorted(scores) == list(range(lookahead.layers))
    for layer, found in scores.items():
        expected = sum(w * row[layer] for w, row in zip(weights, rows, strict=True)) / sum(weights)
        torch.testing.assert_close(found[:, 1, :root], expected, rtol=1e-3, atol=1e-5)


def test_standalone_lookahead_reads_on_where_a_sequence_grows(tiny_draft_dir: Path, tokens: torch.Tensor) -> None:
    """As a session asks: root after root; the same scores as of a model that has read nothing."""
    model = Target(tiny_draft_dir, CPU, torch.float32)
    grown = StandaloneLookahead(model, drafted=2)
    other = torch.cat([tokens[:35], torch.randint(3, 300, (35,), generator=torch.Generator().manual_seed(8))])
    new = other.flip(0)
    for sequence, root in (
        (tokens, 40),
        (tokens, 43),
        (tokens, 43),
        (tokens, 30),
        (other, 45),
        (tokens, 60),
        (new, 50),
    ):
        given = sequence[: root + 1], None, torch.tensor([root]), "mean"
        fresh = StandaloneLookahead(model, drafted=2)
        pairs = zip(grown.scores(*given), fresh.scores(*given), strict=True)  # type: ignore[arg-type]
        for (_, found), (_, expected) in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
