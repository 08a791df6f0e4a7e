"""`python -m fastspec evaluate sparse`: what sparse passes cost in quality, beside dense passes on the same tokens.

Continuations are the target's own, dense and greedy; sparse passes verify them in the engine's steps. Each is measured
twice: with what sparse passes computed left in the cache, which is what the engine does, and with dense keys and values
put in its place, which is the selector's error alone. The difference is drift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastspec.sparse.context import Reading, read
from fastspec.sparse.objectives import divergences
from fastspec.sparse.published import WINDOW
from fastspec.sparse.selectors import Selectors
from fastspec.sparse.session import Selector, Session
from fastspec.sparse.signals import Budget
from fastspec.sparse.trajectories import Trajectory
from fastspec.sparse.triggers import Row
from fastspec.train.target import Target

PARTS = 4  # of a run, to see drift


@dataclass(frozen=True)
class Run:
    """Sums over the rows of one document.

    Attributes:
        rows: how many.
        agreed: with dense's most likely token.
        kl: from dense, nats.
        nll, dense_nll: of the document's own tokens.
        mass: mean recovered share of true attention; None where there is no list.
        parts: (rows, kl) of each quarter of the run.
        triggers: what could have told of each row whether dense agrees.
    """

    rows: int
    agreed: float
    kl: float
    nll: float
    dense_nll: float
    mass: float | None
    parts: list[tuple[int, float]]
    triggers: list[Row]


def read_trajectory(target: Target, trajectory: Trajectory) -> Reading:
    """The dense pass that follow() compares with."""
    start = trajectory.steps[0][0]
    return read(target, torch.tensor(trajectory.tokens), max(0, start - WINDOW))


def follow(
    target: Target,
    trajectory: Trajectory,
    reading: Reading,
    selector: Selector,
    keep_dense: bool = False,
    record_mass: bool = True,
) -> Run:
    """Verifies a trajectory step by step under a selector.

    Args:
        target: the model.
        trajectory: whose tokens are taken whatever the passes say.
        reading: of read_trajectory().
        selector: a new one.
        keep_dense: leave dense keys and values in the cache.
        record_mass: recovered attention costs a dense pass a step.
    """
    start = trajectory.steps[0][0]
    tokens = torch.tensor(trajectory.tokens, device=target.device)
    queries = reading.queries[:, :, : start - reading.first]
    session = Session(target, tokens[: start + 1], reading.context.copy(start), queries, record_mass)
    parts, triggers = [], []
    for root, rows in trajectory.steps:
        behind = trajectory.tokens[root + 1 : root + rows]
        sparse = session.step(selector, behind, reading if keep_dense else None)
        session.advance(trajectory.tokens[root + rows])
        dense = reading.logits[root - reading.first : root - reading.first + rows]
        labels = tokens[root + 1 : root + rows + 1]
        agreements, kls = divergences(dense, sparse)
        parts.append((agreements, kls, _nll(sparse, labels), _nll(dense, labels)))
        best = sparse.float().topk(2, dim=-1).values
        margins = (best[:, 0] - best[:, 1]).tolist()
        triggers += [
            Row(bool(agrees), margin, selector.known_mass)
            for agrees, margin in zip(agreements.tolist(), margins, strict=True)
        ]
    agreed, kl, nll, dense_nll = (torch.cat(column).float().cpu() for column in zip(*parts, strict=True))
    quarters = [(len(part), float(part.sum())) for part in kl.tensor_split(PARTS)]
    mass = sum(session.mass) / len(session.mass) if session.mass else None
    return Run(
        rows=len(kl),
        agreed=float(agreed.sum()),
        kl=float(kl.sum()),
        nll=float(nll.sum()),
        dense_nll=float(dense_nll.sum()),
        mass=mass,
        parts=quarters,
        triggers=triggers,
    )


def _nll(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def continuations(
    selectors: Selectors,
    names: Sequence[str],
    budgets: Sequence[Budget],
    trajectories: Sequence[Trajectory],
    done: Callable[[], Any] = lambda: None,
) -> list[dict[str, Any]]:
    """Every selector with every budget on every trajectory; one dictionary each, of sums for the report.

    Selectors without a budget (`dense`) run once. `done` is told of every dictionary.
    """
    found = []
    target = selectors.target
    for trajectory in trajectories:
        reading = read_trajectory(target, trajectory)
        for name, budget in with_budgets(names, budgets):
            run = follow(target, trajectory, reading, selectors.make(name, budget))
            alone = follow(target, trajectory, reading, selectors.make(name, budget), True, record_mass=False)
            found.append(
                {
                    "selector": name,
                    "budget": None if name == "dense" else budget.slots,
                    "kind": trajectory.kind,
                    "context": trajectory.prompt,
                    **vars(run),
                    "alone": {"agreed": alone.agreed, "kl": alone.kl, "parts": alone.parts},
                }
            )
            done()
    return found


def with_budgets(names: Sequence[str], budgets: Sequence[Budget]) -> list[tuple[str, Budget]]:
    """Every selector with every budget; `dense` once."""
    return [(name, budget) for name in names for budget in (budgets[:1] if name == "dense" else budgets)]


@dataclass(frozen=True)
class Question:
    """A prompt whose answer is scored.

    Attributes:
        task: its name.
        length: tokens of the prompt, as asked for; 0 = as it comes.
        tokens: the prompt.
        most: tokens of the answer.
        score: of the answer's text, 0 to 1.
    """

    task: str
    length: int
    tokens: list[int]
    most: int
    score: Callable[[str], float]


def read_question(target: Target, question: Question) -> Reading:
    """The dense pass over a prompt."""
    return read(target, torch.tensor(question.tokens), max(0, len(question.tokens) - WINDOW), question.most)


def answer(target: Target, question: Question, reading: Reading, selector: Selector, ends: Sequence[int]) -> list[int]:
    """The greedy answer under a selector, a token a pass; `ends` are tokens that end it and are left out."""
    tokens = torch.tensor(question.tokens, device=target.device)
    session = Session(target, tokens, reading.context.copy(len(tokens)), reading.queries)
    token = int(reading.logits[-1].argmax())
    found: list[int] = []
    while token not in ends:
        found.append(token)
        if len(found) == question.most:
            break
        session.advance(token)
        token = int(session.step(selector, [])[0].argmax())
    return found


def answered(
    selectors: Selectors,
    names: Sequence[str],
    budgets: Sequence[Budget],
    questions: Sequence[Question],
    decode: Callable[[list[int]], str],
    ends: Sequence[int],
    done: Callable[[], Any] = lambda: None,
) -> list[dict[str, Any]]:
    """Asks every question under every selector but `dense`, whose answers the engine gives; one dictionary each."""
    found = []
    for question in questions:
        reading = read_question(selectors.target, question)
        for name, budget in with_budgets([name for name in names if name != "dense"], budgets):
            said = decode(answer(selectors.target, question, reading, selectors.make(name, budget), ends))
            found.append(_scored_answer(name, budget.slots, question, said))
            done()
    return found


def _scored_answer(name: str, budget: int | None, question: Question, said: str) -> dict[str, Any]:
    where = {"task": question.task, "length": question.length}
    return {"selector": name, "budget": budget, **where, "score": question.score(said), "answer": said}


def dense_answers(questions: Sequence[Question], texts: Sequence[str]) -> list[dict[str, Any]]:
    """The engine's own answers, as answered() has those of selectors."""
    return [_scored_answer("dense", None, question, text) for question, text in zip(questions, texts, strict=True)]


def worth_asking(
    questions: Sequence[Question], dense: Sequence[dict[str, Any]], least: float = 0.8
) -> tuple[list[Question], dict[tuple[str, int], float]]:
    """(questions of the tasks and lengths at which dense scores `least` or more, dense's score of every one)."""
    groups: dict[tuple[str, int], list[float]] = {}
    for cell in dense:
        groups.setdefault((cell["task"], cell["length"]), []).append(cell["score"])
    means = {group: sum(scores) / len(scores) for group, scores in groups.items()}
    return [q for q in questions if means[q.task, q.length] >= least], means
