"""The commands `profile srh` and `evaluate sparse`. Bad input is refused before long work; torch is imported inside."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastspec import DrafterConfig, hub, plotting
from fastspec.errors import InvalidArgumentError
from fastspec.sparse.options import SELECTORS, ProfileOptions, QualityOptions
from fastspec.train.arguments import (
    FILES_HELP,
    TARGET_HELP,
    add_fields,
    changes,
    check_files,
    longest_sequence,
    need_torch,
    say,
)

if TYPE_CHECKING:
    from fastspec.sparse.harness import Models
    from fastspec.sparse.quality import Question
    from fastspec.sparse.signals import Budget
    from fastspec.train.target import Target

_DRAFTER_HELP = "longspec:DIR or NAME, or standalone:MODEL, for lookahead; others only say how many rows a step has"


def add_srh(actions: Any) -> None:
    """Adds `srh` to the actions of `profile`."""
    parser = actions.add_parser(
        "srh", help="choose the heads that score the context for sparse verification; writes a manifest ([train])"
    )
    _add_models(parser)
    parser.add_argument(
        "--data", nargs="+", type=Path, required=True, help=f"{FILES_HELP}, joined to long texts by kind"
    )
    parser.add_argument("--out", type=Path, required=True, help="manifest to write, .json")
    parser.add_argument("--plot", type=Path, help="picture of the heads and of recovered attention against m")
    add_fields(parser, ProfileOptions)
    parser.set_defaults(run=_srh)


def add_sparse(measures: Any) -> None:
    """Adds `sparse` to what `evaluate` measures."""
    parser = measures.add_parser("sparse", help="what sparse verification costs in quality, by selector and budget")
    _add_models(parser)
    parser.add_argument("--manifest", type=Path, help="of `profile srh`; history and lookahead use its heads too")
    parser.add_argument(
        "--selectors", default="dense,history,quest,streaming,oracle", help=f"of {', '.join(SELECTORS)}, with commas"
    )
    parser.add_argument("--data", nargs="+", type=Path, default=[], help=f"{FILES_HELP}, joined to long texts by kind")
    parser.add_argument("--pg19", type=Path, help="directory of PG-19: its books are continued too")
    parser.add_argument("--longbench", type=Path, help="directory of LongBench: its questions are asked too")
    parser.add_argument("--longbench-each", type=int, default=20, help="questions of each of its data sets")
    parser.add_argument("--json", type=Path, help="file for all figures and answers")
    parser.add_argument("--plot", type=Path, help="picture of agreement, divergence and retrieval by budget")
    add_fields(parser, QualityOptions)
    parser.set_defaults(run=_sparse)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, help=TARGET_HELP)
    parser.add_argument("--drafter", help=_DRAFTER_HELP)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or auto (the checkpoint's)")
    parser.add_argument("--concurrency", type=int, default=8, help="sequences that the engine continues at once")


def _load(options: argparse.Namespace, directory: Path) -> Target:
    import torch
    import transformers

    from fastspec.train.target import Target

    dtype = options.dtype
    if dtype == "auto":
        config = transformers.AutoConfig.from_pretrained(directory)
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise InvalidArgumentError(f"--dtype {dtype}: expected float32, bfloat16, float16 or auto")
    return Target(directory, torch.device(options.device), getattr(torch, dtype))


def _engine(options: argparse.Namespace, longest: int, target: Path) -> dict[str, Any]:
    """Options of LLM(). Raises InvalidArgumentError where the longest sequence is more than the target takes."""
    if longest > (limit := longest_sequence(target)):
        raise InvalidArgumentError(f"the longest sequence would have {longest} tokens; {target} takes {limit}")
    return {
        "max_model_len": longest,
        "device": options.device,
        "dtype": options.dtype,
        "max_num_seqs": options.concurrency,
        "max_batch_rows": max(512, 80 * options.concurrency),  # every sequence's whole tree
    }


def _drafter(options: argparse.Namespace) -> DrafterConfig | None:
    return hub.resolve_drafter(options.drafter) if options.drafter is not None else None


# --- profile srh ------------------------------------------------------------------------------------------------------


def _srh(options: argparse.Namespace) -> int:
    need_torch()
    from fastspec.sparse import pictures
    from fastspec.sparse.context import refuse_windows
    from fastspec.sparse.profile import ANSWER_TOKENS, decode, profile, table
    from fastspec.sparse.signals import Budget
    from fastspec.train.files import check_output
    from fastspec.train.texts import read_texts

    chosen = ProfileOptions(**changes(options, ProfileOptions))
    chosen.validate()
    Budget(chosen.budget, chosen.sinks, chosen.recent).validate()
    check_files(options.data)
    check_output(options.out)
    if options.plot is not None:
        plotting.check("--plot", options.plot)
    directory, drafter = hub.resolve_model(options.target), _drafter(options)
    refuse_windows(directory)
    probes = max(chosen.probe_lengths) + ANSWER_TOKENS if chosen.ranking == "needle" else 0
    engine = _engine(options, max(max(chosen.contexts) + chosen.max_tokens, probes), directory)
    decoded = decode(directory, drafter, read_texts(options.data, directory), chosen, **engine)
    for name, part in (("search", decoded.trajectories), ("held out", decoded.held_out)):
        say(f"{name}: {len(part)} trajectories with {sum(len(each.steps) for each in part)} steps")
    notes = {"data": [path.name for path in options.data], "target": directory.name}
    if drafter is not None and drafter.model:
        notes["drafter"] = Path(drafter.model).name
    found = profile(_load(options, directory), drafter, decoded, chosen, notes)
    manifest = found.manifest
    manifest.save(options.out)
    say(f"heads ranked by {manifest.notes['ranking']}; on held-out text, budget {manifest.budget.slots}:")
    say(table(found.held_out))
    layers = {layer: list(heads) for layer, heads in manifest.target.layers.items()}
    say(f"{options.out}: target {layers}, m = {manifest.lookahead_slots}, {_described_drafter(manifest.drafter)}")
    if options.plot is not None:
        pictures.draw_profile(found, options.plot)
        say(str(options.plot))
    return 0


def _described_drafter(heads: Any) -> str:
    if heads is None:
        return "history alone: lookahead did not pay, or there is none"
    return "drafter " + str({layer: list(named) for layer, named in heads.layers.items()})


# --- evaluate sparse --------------------------------------------------------------------------------------------------


def _sparse(options: argparse.Namespace) -> int:
    need_torch()
    from fastspec.sparse import pictures, report
    from fastspec.sparse.selectors import check_names
    from fastspec.sparse.signals import Budget
    from fastspec.sparse.triggers import summarise_triggers, trigger_table
    from fastspec.train.files import check_output, write_json

    chosen = QualityOptions(**changes(options, QualityOptions))
    chosen.validate()
    names = [name for name in options.selectors.split(",") if name]
    budgets = [Budget(slots, chosen.sinks, chosen.recent) for slots in sorted(set(chosen.budgets))]
    for budget in budgets:
        budget.validate()
    check_files(options.data)
    if options.json is not None:
        check_output(options.json)
    if options.plot is not None:
        plotting.check("--plot", options.plot)
    models = _models(options)
    check_names(names, models.manifest, models.drafter)
    cells, answers = _measured(options, chosen, models, names, budgets)
    entries = report.summarise(cells, chosen.samples, chosen.seed)
    triggers = summarise_triggers(cells, chosen.samples, chosen.seed)
    scores = report.summarise_answers(answers, chosen.samples, chosen.seed)
    if entries:
        say("\n" + report.continuation_table(entries) + "\n\n" + report.kind_table(entries))
    if triggers:
        say("\n" + trigger_table(triggers))
    if scores:
        say("\n" + report.answer_table(scores))
    say("95 % intervals of a bootstrap over documents and questions; perplexity of dense continuations")
    if options.json is not None:
        arguments = {"target": models.target.name, "drafter": options.drafter, "options": vars(chosen)}
        write_json(
            options.json,
            {**arguments, "continuations": entries, "triggers": triggers, "scores": scores, "answers": answers},
        )
    if options.plot is not None:
        pictures.draw_quality(entries, triggers, scores, options.plot)
    return 0


def _models(options: argparse.Namespace) -> Models:
    from fastspec.sparse.context import refuse_windows
    from fastspec.sparse.harness import Models
    from fastspec.sparse.manifest import Manifest

    target, drafter = hub.resolve_model(options.target), _drafter(options)
    refuse_windows(target)
    manifest = None
    if options.manifest is not None:
        manifest = Manifest.load(options.manifest)
        own = Path(drafter.model) if drafter is not None and drafter.model else None
        manifest.check(options.manifest, target, own)
    return Models(target, drafter, manifest)


def _measured(
    options: argparse.Namespace, chosen: QualityOptions, models: Models, names: list[str], budgets: list[Budget]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from fastspec.sparse.benchmarks import longbench, pg19
    from fastspec.sparse.harness import RETRIEVED_TOKENS, decode, evaluate
    from fastspec.train.texts import read_texts

    texts = read_texts(options.data, models.target) if options.data else []
    if options.pg19 is not None:
        texts += pg19(options.pg19)
    lengths = [length + chosen.max_tokens for length in chosen.contexts if chosen.each]
    lengths += [length + RETRIEVED_TOKENS for length in chosen.retrieval_lengths]
    longest = max(lengths, default=0) if texts else 0
    asked: list[Question] = []
    if options.longbench is not None:
        longest = longest_sequence(models.target)
        asked = longbench(options.longbench, models.target, longest, options.longbench_each)
    if not (texts and lengths) and not asked:
        raise InvalidArgumentError(
            "nothing to measure: give --data or --pg19 with --each or --retrieval-lengths, or --longbench"
        )
    engine = _engine(options, longest, models.target)
    dense = decode(models, texts, asked, chosen, engine)
    return evaluate(models, dense, lambda directory: _load(options, directory), names, budgets, chosen, say)
