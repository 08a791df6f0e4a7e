"""`python -m fastspec profile srh`: from texts and a pair of models to a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastspec import LLM, DrafterConfig, RequestSpeculation, SamplingParams
from fastspec._fastspec import model_fingerprint
from fastspec.sparse import bars, objectives
from fastspec.sparse.inputs import cut, decode_prompts, hay_probes, split
from fastspec.sparse.lookahead import Lookahead, load_lookahead
from fastspec.sparse.manifest import Heads, Manifest
from fastspec.sparse.needles import Probe, sentence_needle
from fastspec.sparse.options import RECOVERY, ProfileOptions
from fastspec.sparse.ranking import HeadMap, NeedleRanking, recovery_merits
from fastspec.sparse.search import Plan, Search, search
from fastspec.sparse.signals import Budget, select, streaming
from fastspec.sparse.trajectories import (
    Recording,
    Trajectory,
    history_scores,
    read_steps,
    record,
    true_mass,
)
from fastspec.train.target import Target
from fastspec.train.texts import Text

ANSWER_TOKENS = 24
SEARCHED_SHARE = 0.75  # of each kind's text; the rest is held out
_RANKED_BY = 8  # trajectories, where heads are ranked by recovery


@dataclass(frozen=True)
class Decoded:
    """What the engine did: answers of probes (tokens, text), trajectories for the search, and those held out."""

    probes: list[Probe]
    answers: list[tuple[list[int], str]]
    trajectories: list[Trajectory]
    held_out: list[Trajectory]


@dataclass(frozen=True)
class Profile:
    """A profile with what its pictures and its report need."""

    manifest: Manifest
    heads: HeadMap
    search: Search
    recovered: dict[str, list[tuple[int, float]]]
    held_out: dict[str, objectives.Figures]


def decode(
    target: Path, drafter: DrafterConfig | None, texts: Sequence[Text], options: ProfileOptions, **engine: Any
) -> Decoded:
    """Everything that the engine is needed for; it is gone when this returns."""
    shown, hidden = split(texts, SEARCHED_SHARE)
    parts = [
        cut(part, target, options.contexts, each, options.seed).documents
        for part, each in ((shown, options.each), (hidden, options.held_out))
    ]
    probes: list[Probe] = []
    if options.ranking != RECOVERY:
        probes = hay_probes(
            shown,
            target,
            options.probe_lengths,
            options.probe_depths,
            options.probes,
            lambda generator: [sentence_needle(generator)],
            options.seed,
        )
    with LLM(target, drafter=drafter, **engine) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS)
        plain = RequestSpeculation(enabled=False)
        outputs = llm.generate([probe.tokens for probe in probes], params, speculation=plain) if probes else []
        answers = [(output.token_ids, output.text) for output in outputs]
        found, held_out = (decode_prompts(llm, part, options, has_drafter=drafter is not None) for part in parts)
    return Decoded(probes, answers, found, held_out)


def rank_heads(
    target: Target, lookahead: Lookahead | None, decoded: Decoded, options: ProfileOptions, shown: bool | None
) -> tuple[HeadMap, str]:
    """The merit of every head, and in words what it is of."""
    if options.ranking == RECOVERY:
        chosen = decoded.trajectories[:_RANKED_BY]
        bar = bars.over(chosen, len(chosen), "ranking heads", shown)
        maps = [_recovery_map(target, lookahead, trajectory, options) for trajectory in bar]
        drafter = [found.drafter for found in maps if found.drafter is not None]
        means = (
            torch.stack([found.target for found in maps]).mean(dim=0),
            torch.stack(drafter).mean(dim=0) if drafter else None,
        )
        return HeadMap(*means), f"recovery, {len(maps)} trajectories"
    ranking = NeedleRanking(target, lookahead)
    pairs = list(zip(decoded.probes, decoded.answers, strict=True))
    for probe, (answer, text) in bars.over(pairs, len(pairs), "ranking heads", shown):
        ranking.add(probe, answer, text)
    return ranking.result(), f"needle, {ranking.kept} of {ranking.asked} probes answered"


def _recovery_map(
    target: Target, lookahead: Lookahead | None, trajectory: Trajectory, options: ProfileOptions
) -> HeadMap:
    reading, roots, _, counted = read_steps(target, trajectory)
    mass = true_mass(reading, roots, counted)
    layers = range(reading.queries.shape[0])
    own = [recovery_merits(history_scores(reading, layer, roots), mass, options.budget) for layer in layers]
    if lookahead is None:
        return HeadMap(torch.stack(own).cpu(), None)
    tokens = torch.tensor(trajectory.tokens, device=target.device)
    scores = lookahead.scores(tokens, reading.context, roots, options.pooling)
    drafters = [recovery_merits(each, mass, options.budget) for _, each in scores]
    return HeadMap(torch.stack(own).cpu(), torch.stack(drafters).cpu())


def plan_cost(
    heads: Sequence[Sequence[int]],
    group: int,
    draft_heads: Sequence[Sequence[int]],
    draft_group: int,
    head_cost: float,
) -> Callable[[Plan], float]:
    """What the K/V heads of a plan cost; those of a drafter that takes no slots are not read."""

    def read(layers: Iterable[int], of: Sequence[Sequence[int]], size: int) -> int:
        return sum(len({head // size for head in of[layer]}) for layer in layers)

    def cost(plan: Plan) -> float:
        drafters = read(plan.draft_layers, draft_heads, draft_group) if plan.lookahead_slots else 0
        return head_cost * (read(plan.layers, heads, group) + drafters)

    return cost


def comparison(best: Plan, draft_layers: int, budget: Budget) -> dict[str, objectives.Lists]:
    """Selections by name that are reported beside each other on held-out text."""
    found = {
        "profiled": objectives.lists_of(best, budget),
        "history of the profiled heads": objectives.lists_of(Plan(best.layers), budget),
        "history of all heads": lambda recording: select(recording.everywhere, None, recording.roots, budget, 0),
        "streaming": lambda recording: streaming(recording.roots, budget),
        "oracle": objectives.oracle_lists(budget),
    }
    if draft_layers:
        chosen = best.draft_layers or tuple(range(draft_layers))
        ahead = Plan(best.layers, chosen, budget.free)
        found["lookahead"] = objectives.lists_of(ahead, budget)
    return found


def profile(
    target: Target,
    drafter: DrafterConfig | None,
    decoded: Decoded,
    options: ProfileOptions,
    notes: dict[str, Any],
    shown: bool | None = None,
) -> Profile:
    """Ranks heads, records signals, searches, measures on held-out text."""
    lookahead = load_lookahead(drafter, target)
    budget = Budget(options.budget, options.sinks, options.recent)
    seen, kept = decoded.trajectories, decoded.held_out
    ranked, basis = rank_heads(target, lookahead, decoded, options, shown)
    heads = HeadMap.first(ranked.target, options.heads)
    draft_heads = [] if ranked.drafter is None else HeadMap.first(ranked.drafter, options.heads)
    bar = bars.over([*seen, *kept], len(seen) + len(kept), "recording", shown)
    recordings = [record(target, lookahead, each, heads, draft_heads, options.pooling) for each in bar]
    searched, held = recordings[: len(seen)], recordings[len(seen) :]

    shape = target.block_shape(False, 1, None)
    group, draft_group = shape.num_heads // shape.num_kv_heads, lookahead.group if lookahead else 1
    cost = plan_cost(heads, group, draft_heads, draft_group, options.head_cost)
    found = _searched(target, searched, budget, cost, (len(heads), len(draft_heads)), options, shown)
    best = found.best.plan
    named = comparison(best, len(draft_heads), budget)
    figures = {
        name: objectives.figures(target, held, lists)
        for name, lists in bars.over(named.items(), len(named), "held out", shown)
    }
    recovered = {
        name: [
            (s.plan.lookahead_slots, objectives.recovery(of, objectives.lists_of(s.plan, budget)))
            for s in found.divisions
        ]
        for name, of in (("search", searched), ("held out", held))
    }
    manifest = Manifest(
        target=Heads(model_fingerprint(str(target.directory)), {layer: heads[layer] for layer in best.layers}),
        drafter=_draft_heads(drafter, best, draft_heads),
        drafter_kind=lookahead.kind if lookahead and best.lookahead_slots else "",
        budget=budget,
        lookahead_slots=best.lookahead_slots,
        pooling=options.pooling,
        arr=figures["profiled"].arr,
        objective=options.objective,
        notes=notes | _notes(options, basis, searched, held, figures),
    )
    return Profile(manifest, ranked, found, recovered, figures)


def _searched(
    target: Target,
    recordings: Sequence[Recording],
    budget: Budget,
    cost: Callable[[Plan], float],
    layers: tuple[int, int],
    options: ProfileOptions,
    shown: bool | None,
) -> Search:
    with bars.counting(None, "searching", shown) as bar:
        objective = objectives.Objective(
            options.objective, target, recordings, budget, cost, options.prefilter, bar.update
        )
        return search(
            range(layers[0]),
            range(layers[1]),
            budget.free,
            options.target_layers,
            options.draft_layers,
            objective,
            half=min(budget.free, budget.slots // 2),
        )


def _draft_heads(drafter: DrafterConfig | None, best: Plan, heads: Sequence[tuple[int, ...]]) -> Heads | None:
    if drafter is None or not best.lookahead_slots:
        return None
    return Heads(model_fingerprint(str(drafter.model)), {layer: heads[layer] for layer in best.draft_layers})


def _notes(
    options: ProfileOptions,
    basis: str,
    searched: Sequence[Recording],
    held: Sequence[Recording],
    figures: dict[str, objectives.Figures],
) -> dict[str, Any]:
    steps = [sum(len(recording.roots) for recording in part) for part in (searched, held)]
    return {
        "ranking": basis,
        "steps": {"search": steps[0], "held out": steps[1]},
        "held_out": {name: found.to_dict() for name, found in figures.items()},
        "options": {name: list(v) if isinstance(v, tuple) else v for name, v in vars(options).items()},
    }


def table(figures: dict[str, objectives.Figures]) -> str:
    """All objectives of all selections, as Markdown."""
    lines = ["| selection | ARR | agreement | KL |", "|---|---|---|---|"]
    lines += [f"| {name} | {f.arr:.4f} | {f.agreement:.4f} | {f.kl:.4f} |" for name, f in figures.items()]
    return "\n".join(lines)
