"""What `evaluate sparse` does, in order: the engine decodes densely, then the selectors run on what it said."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastspec import LLM, DrafterConfig, RequestSpeculation, SamplingParams, Tokenizer
from fastspec.errors import FastSpecError, InvalidArgumentError
from fastspec.sparse.bars import counting
from fastspec.sparse.inputs import cut, decode_prompts
from fastspec.sparse.lookahead import load_lookahead
from fastspec.sparse.manifest import Manifest
from fastspec.sparse.needles import Haystack, number_needles
from fastspec.sparse.options import QualityOptions
from fastspec.sparse.quality import Question, answered, continuations, dense_answers, with_budgets, worth_asking
from fastspec.sparse.selectors import Selectors
from fastspec.sparse.signals import Budget
from fastspec.sparse.trajectories import Trajectory
from fastspec.train.target import Target
from fastspec.train.texts import Text, joined

Say = Callable[[str], None]
RETRIEVED = ("needle", "multi-key")
RETRIEVED_TOKENS = 16  # of an answer


@dataclass(frozen=True)
class Models:
    """What is evaluated: the target's directory, its drafter, a manifest of the two."""

    target: Path
    drafter: DrafterConfig | None
    manifest: Manifest | None


@dataclass
class Dense:
    """What the engine said: continuations, and questions with its answers."""

    trajectories: list[Trajectory] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)


def retrieval(texts: Sequence[Text], target: Path, options: QualityOptions) -> list[Question]:
    """Numbers hidden in text: one, and one among several; at depths that are spread evenly."""
    if not options.retrieval_lengths:
        return []
    haystack, generator = Haystack(texts, target), random.Random(options.seed)
    questions = []
    for task, keys in zip(RETRIEVED, (1, options.retrieval_keys), strict=True):
        for length in options.retrieval_lengths:
            for index in range(options.retrieval_each):
                depth = (index + 0.5) / options.retrieval_each
                probe = haystack.probe(number_needles(generator, keys), length, depth, generator)
                questions.append(Question(task, length, probe.tokens, RETRIEVED_TOKENS, _has(probe.answer)))
    return questions


def _has(number: str) -> Callable[[str], float]:
    return lambda said: float(number in said.replace(",", ""))


def decode(
    models: Models, texts: Sequence[Text], asked: Sequence[Question], options: QualityOptions, engine: dict[str, Any]
) -> Dense:
    """Everything that the engine is needed for; it is gone when this returns.

    Args:
        models, options: of the report.
        texts: that are continued, and that needles are hidden in.
        asked: questions besides retrieval.
        engine: options of LLM().
    """
    found = Dense(questions=list(asked))
    if texts:
        found.questions = retrieval(joined(texts), models.target, options) + found.questions
    prompts = None
    if texts and options.each:
        prompts = cut(texts, models.target, options.contexts, options.each, options.seed).documents
    with LLM(models.target, drafter=models.drafter, **engine) as llm:
        if prompts is not None:
            found.trajectories = decode_prompts(llm, prompts, options, has_drafter=models.drafter is not None)
        if found.questions:
            params = [SamplingParams(temperature=0.0, max_tokens=question.most) for question in found.questions]
            plain = RequestSpeculation(enabled=False)
            outputs = llm.generate([question.tokens for question in found.questions], params, speculation=plain)
            for output in outputs:
                if output.outputs[0].error:
                    raise FastSpecError(output.outputs[0].error)
            found.answers = dense_answers(found.questions, [output.text for output in outputs])
    return found


def evaluate(
    models: Models,
    dense: Dense,
    load: Callable[[Path], Target],
    names: Sequence[str],
    budgets: Sequence[Budget],
    options: QualityOptions,
    say: Say,
    shown: bool | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(cells of continuations, answers), as quality.py has them.

    Args:
        models, dense, options: of the report.
        load: gives the target.
        names, budgets: of the selectors.
        say: takes lines.
        shown: progress bars; None = where stderr is a terminal.
    """
    target = load(models.target)
    selectors = Selectors(target, load_lookahead(models.drafter, target), models.manifest, options.page)
    with counting(len(dense.trajectories) * len(with_budgets(names, budgets)), "continuations", shown) as bar:
        cells = continuations(selectors, names, budgets, dense.trajectories, bar.update)
    asked, means = worth_asking([q for q in dense.questions if q.task in RETRIEVED], dense.answers)
    for (task, length), mean in means.items():
        if task in RETRIEVED:
            left_out = "" if mean >= 0.8 else ": below 80 %, not asked under selectors"
            say(f"{task}, {length} tokens: dense scores {100 * mean:.0f} %{left_out}")
    asked += [question for question in dense.questions if question.task not in RETRIEVED]
    sparse = [name for name in names if name != "dense"]
    tokenizer = Tokenizer.load(models.target)
    with counting(len(asked) * len(sparse) * len(budgets), "questions", shown) as bar:
        ends = end_tokens(models.target)
        answers = answered(selectors, sparse, budgets, asked, tokenizer.decode, ends, bar.update)
    return cells, dense.answers + answers


def end_tokens(directory: Path) -> list[int]:
    """Tokens that end an answer: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if ends is not None:
                return [ends] if isinstance(ends, int) else list(ends)
    raise InvalidArgumentError(f"{directory}: neither generation_config.json nor config.json has an eos_token_id")
