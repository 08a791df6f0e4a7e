"""The quality harness: sessions under a selector, published methods, benchmarks on disk, intervals, the command."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_sparse_benchmarks import write_longbench

from fastspec import LLM, DrafterConfig, Guarantee, InvalidArgumentError, SamplingParams, SparseConfig
from fastspec.__main__ import main
from fastspec.sparse import report
from fastspec.sparse.harness import end_tokens
from fastspec.sparse.lookahead import load_lookahead
from fastspec.sparse.objectives import verified
from fastspec.sparse.options import SELECTORS, QualityOptions
from fastspec.sparse.published import PublishedQuest, PublishedSnapKv
from fastspec.sparse.quality import (
    Question,
    answer,
    dense_answers,
    follow,
    read_question,
    read_trajectory,
    worth_asking,
)
from fastspec.sparse.selectors import Selectors, check_names
from fastspec.sparse.session import Dense, Quest, Scored, Session, Streaming
from fastspec.sparse.signals import Budget, select, streaming
from fastspec.sparse.trajectories import Trajectory, record
from fastspec.sparse.triggers import Row, area, caught, roc, summarise_triggers, trigger_table
from fastspec.train.target import Target
from fastspec.train.texts import Text

CPU = torch.device("cpu")
BUDGET = Budget(24, 4, 8)
LARGE = Budget(1000, 4, 8)
HEADS = {0: (0, 1), 2: (3,)}


@pytest.fixture(scope="module")
def target(tiny_model_dir: Path) -> Target:
    return Target(tiny_model_dir, CPU, torch.float32)


@pytest.fixture(scope="module")
def trajectory() -> Trajectory:
    tokens = torch.randint(3, 300, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    return Trajectory("prose", tokens, 60, [(60, 3), (63, 1), (64, 5), (69, 4), (73, 4)])


@pytest.fixture(scope="module")
def selectors(target: Target, tiny_longspec_dir: Path) -> Selectors:
    drafter: Any = SimpleNamespace(kind="longspec", model=tiny_longspec_dir, tree_widths=[2, 2])
    return Selectors(target, load_lookahead(drafter, target), None, page=4)


@pytest.mark.parametrize("name", [name for name in SELECTORS if name != "dustin"])
def test_a_budget_that_holds_the_context_is_dense(selectors: Selectors, trajectory: Trajectory, name: str) -> None:
    reading = read_trajectory(selectors.target, trajectory)
    run = follow(selectors.target, trajectory, reading, selectors.make(name, LARGE))
    assert (run.rows, run.agreed) == (17, 17.0)
    assert run.kl < 1e-5
    assert run.nll == pytest.approx(run.dense_nll, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in SELECTORS if name not in ("dustin", "dense")])
def test_a_small_budget_is_not_dense(selectors: Selectors, trajectory: Trajectory, name: str) -> None:
    reading = read_trajectory(selectors.target, trajectory)
    run = follow(selectors.target, trajectory, reading, selectors.make(name, BUDGET))
    assert run.kl > 0.01
    assert sum(count for count, _ in run.parts) == run.rows
    assert sum(kl for _, kl in run.parts) == pytest.approx(run.kl, rel=1e-5)
    if run.mass is not None:
        assert 0 < run.mass < 1


def test_nothing_recovers_more_than_the_oracle(selectors: Selectors, trajectory: Trajectory) -> None:
    """On the same cache: dense keys and values are kept."""
    reading = read_trajectory(selectors.target, trajectory)
    mass = {
        name: follow(selectors.target, trajectory, reading, selectors.make(name, BUDGET), keep_dense=True).mass
        for name in ("oracle", "history", "lookahead", "hybrid", "quest", "streaming")
    }
    assert all(mass["oracle"] >= own for own in mass.values() if own is not None)  # type: ignore[operator]


def test_a_session_with_dense_keys_is_what_the_search_verifies(target: Target, trajectory: Trajectory) -> None:
    """Step by step with a growing cache, and all steps of a document at once: the same lists, the same rows."""
    named = {0: (0, 1), 2: (1, 3)}
    one = record(target, None, trajectory, [named.get(layer, (0,)) for layer in range(3)], [], "mean")
    history = one.history[[0, 2]].mean(dim=0)
    reading = read_trajectory(target, trajectory)
    for lists, selector in (
        (select(history, None, one.roots, BUDGET, 0), Scored(BUDGET, named)),
        (streaming(one.roots, BUDGET), Streaming(BUDGET)),
    ):
        agreed, kl = verified(target, one, lists)
        run = follow(target, trajectory, reading, selector, keep_dense=True)
        assert run.agreed == float(agreed.sum())
        assert run.kl == pytest.approx(float(kl.sum()), rel=1e-3)


def test_what_sparse_passes_compute_stays_in_the_cache(target: Target, trajectory: Trajectory) -> None:
    reading = read_trajectory(target, trajectory)
    own = follow(target, trajectory, reading, Streaming(BUDGET))
    alone = follow(target, trajectory, reading, Streaming(BUDGET), keep_dense=True)
    first = trajectory.steps[0][1]
    assert first <= own.parts[0][0]
    assert own.kl != alone.kl  # rows behind the first step see other keys and values
    short = Trajectory("prose", trajectory.tokens, 60, trajectory.steps[:1])
    again = [follow(target, short, reading, Streaming(BUDGET), keep) for keep in (False, True)]
    assert again[0].kl == pytest.approx(again[1].kl, rel=1e-6)


def test_zero_lookahead_slots_are_history(selectors: Selectors, trajectory: Trajectory) -> None:
    reading = read_trajectory(selectors.target, trajectory)
    with_drafter = Scored(BUDGET, HEADS, selectors.lookahead, {0: (0,)}, 0)
    runs = [follow(selectors.target, trajectory, reading, each) for each in (with_drafter, Scored(BUDGET, HEADS))]
    assert runs[0] == runs[1]


def test_answers_equal_the_engines(llm: Any, tiny_model_dir: Path, target: Target) -> None:
    """Free running, a token a pass, dense: what the engine decodes."""
    tokens = torch.randint(3, 300, (50,), generator=torch.Generator().manual_seed(6)).tolist()
    question = Question("any", 50, tokens, 20, lambda said: 0.0)
    expected = llm.generate(tokens, SamplingParams(temperature=0.0, max_tokens=20), progress=False)[0].token_ids
    ends = end_tokens(tiny_model_dir)
    reading = read_question(target, question)
    found = answer(target, question, reading, Dense(), ends)
    assert found == [token for token in expected if token not in ends]
    assert answer(target, question, reading, Scored(LARGE, HEADS), ends) == found
    assert answer(target, question, reading, Streaming(BUDGET), ends) != found
    third = found[2]
    assert answer(target, question, reading, Dense(), [third]) == found[: found.index(third)]


@pytest.mark.parametrize("name", ["history", "quest", "streaming"])
@pytest.mark.parametrize("seed", range(3))
def test_sparse_answers_equal_the_engines(tiny_model_dir: Path, selectors: Selectors, name: str, seed: int) -> None:
    """One definition of what a selector reads, stated twice: here and in the engine."""
    tokens = torch.randint(3, 300, (70,), generator=torch.Generator().manual_seed(seed)).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    passes = SparseConfig(
        selector=name, kv_budget=BUDGET.slots, sinks=BUDGET.sinks, recent=BUDGET.recent, guarantee=Guarantee.SPARSE
    )
    with LLM(tiny_model_dir, dtype="float32", page_size=selectors.page, sparse=passes) as llm:
        expected = llm.generate(tokens, params, progress=False)[0].token_ids
        dense = llm.generate(tokens, params, sparse=False, progress=False)[0].token_ids
    question = Question("any", len(tokens), tokens, 30, lambda said: 0.0)
    reading = read_question(selectors.target, question)
    assert answer(selectors.target, question, reading, selectors.make(name, BUDGET), []) == expected
    assert expected != dense


# --- published forms --------------------------------------------------------------------------------------------------


def test_published_quest_takes_the_best_pages_of_every_head(target: Target, trajectory: Trajectory) -> None:
    """By plain loops, in the first layer that is not left dense."""
    reading = read_trajectory(target, trajectory)
    layer, length, page = 2, 60, 4
    session: Any = SimpleNamespace(root=length, context=reading.context, lengths=lambda: torch.tensor([length]))
    torch.manual_seed(7)
    query, key, value = torch.randn(1, 4, 2, 16), torch.randn(1, 2, 2, 16), torch.randn(1, 2, 2, 16)
    attend = PublishedQuest(Budget(12, 1, 1), page).attend(session, torch.zeros(2))
    found = attend(layer, query, key, value)
    torch.testing.assert_close(
        attend(1, query, key, value), Dense().attend(session, torch.zeros(2))(1, query, key, value)
    )
    assert not torch.allclose(found, Dense().attend(session, torch.zeros(2))(layer, query, key, value))
    keys, values = reading.context.keys[layer], reading.context.values[layer]
    for head in range(4):
        own = head // 2
        for row in range(2):
            q = query[0, head, row]
            pages = [
                float(torch.maximum(q * keys[own, p : p + page].amin(0), q * keys[own, p : p + page].amax(0)).sum())
                for p in range(0, length, page)
            ]
            best = {14, *sorted(range(14), key=lambda p, pages=pages: -pages[p])[:2]}  # the last page, and two more
            places = [p * page + i for p in sorted(best) for i in range(page)]
            k = torch.cat([keys[own, places], key[0, own, : row + 1]])
            v = torch.cat([values[own, places], value[0, own, : row + 1]])
            expected = torch.softmax(k @ q / 4, 0) @ v
            torch.testing.assert_close(found[0, head, row], expected, rtol=1e-4, atol=1e-5)


def test_published_snapkv_keeps_its_first_choice(target: Target, trajectory: Trajectory) -> None:
    reading = read_trajectory(target, trajectory)
    selector = PublishedSnapKv(Budget(40, 4, 4))
    queries = reading.queries[:, :, : 60 - reading.first]
    session: Any = SimpleNamespace(
        root=60, context=reading.context, queries=queries, tokens=torch.tensor(trajectory.tokens[:61])
    )
    selector.attend(session, torch.zeros(1))
    kept = selector._kept
    assert kept is not None
    assert kept.shape == (3, 4, 60)
    assert bool((kept.sum(dim=-1) == 40).all())
    assert bool(kept[:, :, 60 - 32 :].all())  # the rows that voted
    session.root = 64
    selector.attend(session, torch.zeros(1))
    assert selector._kept is kept


# --- figures ----------------------------------------------------------------------------------------------------------


def cell(selector: str, budget: int | None, agreed: float, kl: float) -> dict[str, Any]:
    parts = [(2, kl / 4)] * 4
    own = {"agreed": agreed, "kl": kl, "parts": parts}
    where = {"selector": selector, "budget": budget, "kind": "prose", "context": 60}
    rows = [Row(row < agreed, margin=float(row < 4), mass=0.5) for row in range(8)]
    return where | own | {"triggers": rows, "rows": 8, "nll": 16.0 + kl, "dense_nll": 16.0, "mass": 0.5, "alone": own}


def test_intervals_hold_the_figure_and_shrink_with_documents() -> None:
    few = [cell("history", 32, agreed, 0.8) for agreed in (8, 4)]
    many = few * 20
    wide = report.bootstrap(few, report.STATISTICS["agreement"], 500, 0)
    narrow = report.bootstrap(many, report.STATISTICS["agreement"], 500, 0)
    assert wide.value == narrow.value == 0.75
    assert (wide.low, wide.high) == (0.5, 1.0)
    assert 0.6 < narrow.low < 0.75 < narrow.high < 0.9
    assert report.bootstrap(few, report.STATISTICS["agreement"], 500, 0) == wide


def test_an_interval_leaves_out_a_fortieth_on_each_side() -> None:
    counter = itertools.count()
    found = report.bootstrap([{}, {}], lambda cells: next(counter), 1000, 0)
    assert (found.low, found.high) == (25, 975)


def test_tables_have_a_row_a_selector_and_budget() -> None:
    cells = [cell("history", 32, 8, 0.8), cell("history", 32, 6, 1.6), cell("dense", None, 8, 0.0)]
    entries = report.summarise(cells, 100, 0)
    history = entries[0]
    assert history["agreement"]["value"] == 14 / 16
    assert history["kl"]["value"] == pytest.approx(2.4 / 16)
    assert history["perplexity"]["value"] == pytest.approx(math.exp((32 + 2.4) / 16))
    assert history["drift"][0] == {"kl": pytest.approx(0.6 / 4), "kl_alone": pytest.approx(0.6 / 4)}
    lines = report.continuation_table(entries).split("\n")
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["history", "dense"]
    assert "prose, 60" in report.kind_table(entries)
    answers = dense_answers([Question("needle", 100, [1], 4, lambda said: float(said == "7"))] * 2, ["7", "8"])
    assert report.summarise_answers(answers, 100, 0)[0]["score"]["value"] == 0.5
    assert "needle, 100" in report.answer_table(report.summarise_answers(answers, 100, 0))


def test_a_curve_is_that_of_all_thresholds() -> None:
    values, agrees = [0.1, 0.2, 0.2, 0.3, 0.9], [False, True, False, False, True]
    assert roc(values, agrees) == [(0, 0), (0, 1 / 3), (0.5, 2 / 3), (0.5, 1), (1, 1)]
    pairs = [(bad, good) for bad, b in zip(values, agrees, strict=True) if not b
             for good, g in zip(values, agrees, strict=True) if g]  # fmt: skip
    chance = sum((bad < good) + 0.5 * (bad == good) for bad, good in pairs) / len(pairs)
    assert area(roc(values, agrees)) == pytest.approx(chance)
    assert caught(values, agrees, 0.2) == 1 / 3
    assert caught(values, agrees, 0.8) == 1
    assert caught(values, agrees, 0.4) == pytest.approx((1 + 0.5) / 3)  # one of two equal rows, of which one disagrees
    assert caught([1.0] * 5, agrees, 0.2) == pytest.approx(0.2)
    assert caught(values, agrees, 0.05) == 0
    assert area(roc([1.0] * 5, agrees)) == 0.5
    assert area(roc([-value for value in values], agrees)) == pytest.approx(1 - chance)


def test_triggers_are_summed_over_documents() -> None:
    cells = [cell("history", 32, agreed, 0.8) for agreed in (6, 4)] + [cell("quest", 32, 8, 0.8)]
    entries = summarise_triggers([*cells, cell("dense", None, 8, 0.0)], 100, 0)
    assert [(entry["selector"], entry["signal"]) for entry in entries] == [("history", "margin"), ("history", "mass")]
    margin, mass = entries
    assert (margin["rows"], margin["disagreements"]) == (16, 6)
    assert margin["area"]["value"] == pytest.approx(8 / 10 + 0.5 * 2 / 10)  # 8 of 10 agreeing rows lie above
    assert mass["area"]["value"] == 0.5
    assert "| margin | history | 32 | 6 of 16 | 0.900" in trigger_table(entries)


def test_rows_carry_what_their_pass_knew(selectors: Selectors, trajectory: Trajectory) -> None:
    reading = read_trajectory(selectors.target, trajectory)
    for name, knows in (("history", True), ("hybrid", True), ("quest", True), ("streaming", False), ("dense", False)):
        run = follow(selectors.target, trajectory, reading, selectors.make(name, BUDGET))
        assert sum(row.agrees for row in run.triggers) == run.agreed
        assert len(run.triggers) == run.rows
        assert all(row.margin >= 0 for row in run.triggers)
        assert all((row.mass is not None) == knows for row in run.triggers)
        assert all(0 < row.mass < 1 for row in run.triggers if row.mass is not None)
    every = Scored(Budget(60, 4, 8), HEADS)  # which holds the first step's context
    assert follow(selectors.target, trajectory, reading, every).triggers[0].mass is None


def test_lengths_at_which_dense_fails_are_not_asked() -> None:
    questions = [Question("needle", n, [1], 4, lambda said: float(said == "7")) for n in (100, 100, 200, 200)]
    asked, means = worth_asking(questions, dense_answers(questions, ["7", "7", "7", "no"]))
    assert [question.length for question in asked] == [100, 100]
    assert means == {("needle", 100): 1.0, ("needle", 200): 0.5}


def test_selectors_say_what_they_lack() -> None:
    said = {"dustin": "needs --manifest", "lookahead": "needs --drafter", "hybrid": "needs", "best": "expected dense"}
    for name, reason in said.items():
        with pytest.raises(InvalidArgumentError, match=reason):
            check_names([name], None, DrafterConfig(kind="ngram"))
    check_names(["lookahead", "history", "oracle"], None, DrafterConfig(kind="longspec", model="x"))
    with pytest.raises(InvalidArgumentError, match="no selector"):
        check_names([], None, None)


def test_scores_are_means_over_all_heads(target: Target, trajectory: Trajectory) -> None:
    """Layers with more heads count for more, as in the engine; Quest's are softmax over bounds."""
    reading = read_trajectory(target, trajectory)
    queries = reading.queries[:, :, : 60 - reading.first]
    session = Session(target, torch.tensor(trajectory.tokens[:61]), reading.context.copy(60), queries)
    each = [
        torch.softmax(reading.context.keys[layer, head // 2, :60] @ queries[layer, head, -1] / 4, 0)
        for layer, heads in HEADS.items()
        for head in heads
    ]
    expected = select(torch.stack(each).mean(dim=0)[None], None, torch.tensor([60]), BUDGET, 0)
    assert torch.equal(Scored(BUDGET, HEADS).lists(session, torch.zeros(1)), expected)
    single = Quest(BUDGET, HEADS, 1)  # a page of one token is bounded by itself
    assert torch.equal(single.lists(session, torch.zeros(1)), expected)
    assert not torch.equal(Quest(BUDGET, HEADS, 16).lists(session, torch.zeros(1)), expected)


def test_without_a_manifest_a_few_layers_score(target: Target) -> None:
    names = Selectors(target, None, None, 4)
    assert names._unprofiled(2) == {0: (0, 1, 2, 3), 2: (0, 1, 2, 3)}
    assert list(names._unprofiled(4)) == [0, 1, 2]


# --- the command ------------------------------------------------------------------------------------------------------


def test_report_of_a_tiny_model(tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_longbench(tmp_path / "longbench")
    (tmp_path / "prose.txt").write_text("\n".join(f"line {i} of a text" for i in range(100)))
    given: list[Any] = ["evaluate", "sparse", "--target", tiny_model_dir, "--data", tmp_path / "prose.txt"]
    given += ["--budgets", "32,48", "--contexts", 64, "--each", 2, "--max-tokens", 16, "--samples", 50]
    given += ["--retrieval-lengths", "", "--longbench", tmp_path / "longbench", "--longbench-each", 1]
    given += ["--selectors", "dense,history,streaming", "--json", tmp_path / "quality.json"]
    assert main([str(argument) for argument in given]) == 0
    written = json.loads((tmp_path / "quality.json").read_text())
    everything = [entry for entry in written["continuations"] if entry["kind"] == "all"]
    assert [(e["selector"], e["budget"]) for e in everything] == [
        ("dense", None), ("history", 32), ("history", 48), ("streaming", 32), ("streaming", 48),
    ]  # fmt: skip
    assert everything[0]["agreement"]["value"] == 1.0
    assert everything[1]["agreement"]["value"] < 1.0
    assert [score["task"] for score in written["scores"]] == ["longbench hotpotqa"] * 5
    out = capsys.readouterr().out
    assert "| history | 32 |" in out
    for change, said in (("--selectors", "dense,best"), "expected dense"), (("--budgets", "16"), "nothing to choose"):
        assert main([str(argument) for argument in (*given, *change)]) == 2
        assert said in capsys.readouterr().err
    assert main([str(a) for a in ("evaluate", "sparse", "--target", tiny_model_dir)]) == 2
    assert "nothing to measure" in capsys.readouterr().err


def test_retrieval_alone(tiny_model_dir: Path) -> None:
    """Nothing is continued; a random model finds nothing, so no selector is asked."""
    from fastspec.sparse.harness import Models, decode, evaluate

    texts = [Text("prose", "a cat sat. " * 300)]
    options = QualityOptions(each=0, retrieval_lengths=(122,), retrieval_each=2, retrieval_keys=1)
    models = Models(tiny_model_dir, None, None)
    said: list[str] = []
    dense = decode(models, texts, [], options, {"max_model_len": 128})
    assert [(question.task, len(question.tokens)) for question in dense.questions] == [
        ("needle", 122), ("needle", 122), ("multi-key", 122), ("multi-key", 122),
    ]  # fmt: skip
    cells, answers = evaluate(
        models,
        dense,
        lambda directory: Target(directory, CPU, torch.float32),
        ["history"],
        [BUDGET],
        options,
        said.append,
    )
    assert (cells, [one["selector"] for one in answers]) == ([], ["dense"] * 4)
    assert len(said) == 2
    assert all("below 80 %" in line for line in said)


def test_picture_of_a_report(tmp_path: Path) -> None:
    from fastspec.sparse.pictures import draw_quality

    entries = report.summarise([cell("history", b, 8, 0.8) for b in (32, 64)] + [cell("dense", None, 8, 0.0)], 50, 0)
    score = {"selector": "history", "budget": 32, "task": "needle", "length": 100, "score": {"value": 0.5}}
    triggers = summarise_triggers([cell("history", b, 6, 0.8) for b in (32, 64)], 50, 0)
    draw_quality(entries, triggers, [score], tmp_path / "q.svg")
    assert "triggers, budget 32" in (tmp_path / "q.svg").read_text()
    draw_quality(entries, [], [], tmp_path / "q.svg")
    assert (tmp_path / "q.svg").stat().st_size > 1000
