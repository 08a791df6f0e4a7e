"""`python -m fastspec evaluate acceptance`: acceptance lengths of a drafter, measured by decoding with the engine.

Prompts are decoded plainly first; a continuation counts up to where a 16-gram repeats, because small
models loop, and the drafter then decodes exactly these tokens.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastspec import LLM, DrafterConfig, EngineStats, RequestSpeculation, SamplingParams
from fastspec.errors import FastSpecError
from fastspec.train.documents import until_repetition

Log = Callable[[str], None]
CHAIN, UNCOUPLED = "chain", "uncoupled"


def variants(drafters: Sequence[str]) -> dict[str, DrafterConfig]:
    """What there is to measure of drafters that are named as LLM() takes them: by name, each as it is.

    A LongSpec drafter comes as a chain of four, too, and without the target's noise.
    """
    found: dict[str, DrafterConfig] = {}
    for name in drafters:
        config = found[name] = DrafterConfig.parse(name)
        if config.kind == "longspec":
            found[f"{name}, {CHAIN}"] = DrafterConfig(kind=config.kind, model=config.model, tree_widths=[1] * 4)
            found[f"{name}, {UNCOUPLED}"] = DrafterConfig(kind=config.kind, model=config.model, coupled=False)
    return found


@dataclass(frozen=True)
class Prompt:
    """Token ids with the kind of text that they are from."""

    kind: str
    tokens: list[int]


@dataclass
class Measured:
    """Sums over the sequences of one cell of a table.

    Attributes:
        sequences: continuations.
        passes: decoding passes; prompt passes are not counted.
        tokens: committed by them, bonus tokens included.
        offered, accepted: drafted tokens by their place in the draft.
    """

    sequences: int = 0
    passes: int = 0
    tokens: int = 0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @property
    def tau(self) -> float:
        """Committed tokens per decoding pass."""
        return self.tokens / self.passes if self.passes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `by_position` is accepted over offered."""
        rates = [round(a / o, 4) if o else None for a, o in zip(self.accepted, self.offered, strict=True)]
        return {"tau": round(self.tau, 4), "sequences": self.sequences, "tokens": self.tokens, "by_position": rates}


def measure(
    model: str | os.PathLike[str],
    drafters: Mapping[str, DrafterConfig],
    prompts: Sequence[Prompt],
    *,
    contexts: Sequence[int] = (),
    temperatures: Sequence[float] = (0.0, 1.0),
    max_tokens: int = 128,
    seed: int = 0,
    log: Log = print,
    **options: Any,
) -> list[dict[str, Any]]:
    """Decodes every prompt with every drafter.

    Args:
        model: the target.
        drafters: by the name that they have in the result; one that is not coupled is left out at temperature 0, where
            there is no noise.
        prompts: at least one.
        contexts: prompts are cut to their last N tokens for each of these; () = as they are.
        temperatures: 0 = greedy.
        max_tokens: longest continuation.
        seed: of the noise at temperatures above 0; request i has seed + i.
        log: takes lines.
        **options: device, dtype and engine options of LLM().

    Returns:
        One dictionary a cell: drafter, temperature, context, kind, and Measured.to_dict().
    """
    cells: list[dict[str, Any]] = []
    lengths: dict[tuple[float, int], list[int]] = {}
    for name, drafter in drafters.items():
        asked = [temperature for temperature in temperatures if temperature > 0 or drafter.coupled]
        if not asked:
            continue
        with LLM(model, drafter=drafter, **options) as llm:
            for temperature, context in itertools.product(asked, contexts or (0,)):
                cut = [(p.kind, p.tokens[-context:]) for p in prompts if len(p.tokens) >= context]
                key = (temperature, context)
                if key not in lengths:  # the plain run is the same for all drafters
                    lengths[key] = _plain_lengths(llm, cut, temperature, max_tokens, seed)
                for kind in sorted({kind for kind, _ in cut}):
                    chosen = [
                        (i, tokens, lengths[key][i])
                        for i, (own, tokens) in enumerate(cut)
                        if own == kind and lengths[key][i] >= 2
                    ]
                    found = _speculative(llm, chosen, temperature, seed)
                    cell = {"drafter": name, "temperature": temperature, "context": context, "kind": kind}
                    cells.append(cell | found.to_dict())
                    log(_line(cells[-1]))
    return cells


def _plain_lengths(
    llm: LLM,
    prompts: Sequence[tuple[str, list[int]]],
    temperature: float,
    max_tokens: int,
    seed: int,
) -> list[int]:
    """Tokens of each plain continuation that count."""
    params = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed + i) for i in range(len(prompts))
    ]
    plain = RequestSpeculation(enabled=False)
    outputs = llm.generate([tokens for _, tokens in prompts], params, speculation=plain, progress=False)
    _refuse_errors(outputs)
    return [
        until_repetition([*output.prompt_token_ids, *output.token_ids], len(output.prompt_token_ids))
        - len(output.prompt_token_ids)
        for output in outputs
    ]


def _speculative(llm: LLM, chosen: Sequence[tuple[int, list[int], int]], temperature: float, seed: int) -> Measured:
    """Decodes (number, prompt, length of the continuation) with the drafter."""
    before = llm.stats()
    params = [
        SamplingParams(temperature=temperature, max_tokens=length, seed=seed + number) for number, _, length in chosen
    ]
    outputs = llm.generate([tokens for _, tokens, _ in chosen], params, progress=False)
    _refuse_errors(outputs)
    result = Measured(sequences=len(outputs))
    for output in outputs:
        stats = output.outputs[0].stats
        assert stats is not None
        result.passes += stats.decoding_passes
        result.tokens += stats.decoding_tokens
    after = llm.stats()
    result.offered = _difference(before, after, "offered_by_position")
    result.accepted = _difference(before, after, "accepted_by_position")
    return result


def _difference(before: EngineStats, after: EngineStats, name: str) -> list[int]:
    old, new = getattr(before, name), getattr(after, name)
    return [value - (old[i] if i < len(old) else 0) for i, value in enumerate(new)]


def _refuse_errors(outputs: Sequence[Any]) -> None:
    for output in outputs:
        if output.outputs[0].error:
            raise FastSpecError(output.outputs[0].error)


def _line(cell: dict[str, Any]) -> str:
    rates = " ".join("-" if rate is None else f"{rate:.2f}" for rate in cell["by_position"])
    context = f"  context {cell['context']}" if cell["context"] else ""
    return (
        f"{cell['drafter']}  T = {cell['temperature']:g}{context}  {cell['kind']}: tau {cell['tau']:.3f} "
        f"({cell['sequences']} continuations, {cell['tokens']} tokens; accepted by position: {rates})"
    )


def _means(cells: Sequence[dict[str, Any]]) -> dict[tuple[str, float, int], dict[str, float]]:
    """tau of each kind by drafter, temperature and context."""
    rows: dict[tuple[str, float, int], dict[str, float]] = {}
    for cell in cells:
        rows.setdefault((cell["drafter"], cell["temperature"], cell["context"]), {})[cell["kind"]] = cell["tau"]
    return rows


def _mean(found: Mapping[str, float]) -> float:
    return sum(found.values()) / len(found)


def table(cells: Sequence[dict[str, Any]]) -> str:
    """tau as a Markdown table: a row a drafter, temperature and context, a column a kind, and the mean over kinds."""
    kinds = sorted({cell["kind"] for cell in cells})
    lines = [
        f"| drafter | T | context | {' | '.join(kinds)} | mean |",
        "|---" * (len(kinds) + 4) + "|",
    ]
    for (drafter, temperature, context), found in _means(cells).items():
        each = " | ".join(f"{found[kind]:.2f}" if kind in found else "" for kind in kinds)
        lines.append(f"| {drafter} | {temperature:g} | {context or 'whole'} | {each} | {_mean(found):.2f} |")
    return "\n".join(lines)


def coupling_table(cells: Sequence[dict[str, Any]]) -> str:
    """What coupled drafting is worth, a row a drafter, temperature and context; "" where nothing was left uncoupled."""
    rows = _means(cells)
    lines = []
    for (name, temperature, context), found in rows.items():
        if (without := rows.get((f"{name}, {UNCOUPLED}", temperature, context))) is None:
            continue
        tau, alone = _mean(found), _mean(without)
        greedy = rows.get((name, 0.0, context))
        share = "" if greedy is None else f"{100 * tau / _mean(greedy):.0f} %"
        cut = context or "whole"
        lines.append(f"| {name} | {temperature:g} | {cut} | {tau:.2f} | {alone:.2f} | {tau / alone:.2f} | {share} |")
    head = ["| drafter | T | context | tau | uncoupled | ratio | of tau at T = 0 |", "|---" * 7 + "|"]
    return "\n".join(head + lines) if lines else ""
