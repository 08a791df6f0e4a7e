"""Decoding speed of this engine, of a shape or a real model, beside transformers in the same run.

python -m fastspec.bench --shape qwen2.5-7b --device cuda --points 1x1K,1x32K,16x8K --compare transformers --rate 4.2
python -m fastspec.bench --model DIR --drafter ngram --batch 1,8 --context 128 --compare transformers
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastspec import (
    Engine,
    EngineConfig,
    FastSpecError,
    InvalidArgumentError,
    ShapeBenchmark,
    ShapeBenchmarkConfig,
    SparseConfig,
    SpeculationConfig,
    hub,
    plotting,
)
from fastspec.bench import report
from fastspec.bench.engine import LONGEST, HeldPrompts, ModelSide, ShapeSide
from fastspec.bench.prompts import passage_prompts, real_prompts
from fastspec.bench.row_budget import (
    budget_way,
    calibration_json,
    calibration_text,
    draw_calibration,
    parse_variants,
)
from fastspec.bench.sides import PLAIN, Point, Side, Way, measure
from fastspec.bench.sparse import sparse_ways
from fastspec.bench.trace import HEADING, trace_json, trace_text, try_trace

_PASSAGE = (
    "The harbour was quiet that morning. Three grey boats lay at the quay, and an old man mended a net in the pale "
    "light. Nobody spoke. A gull walked along the wall as if it owned the town, turned its head, and looked at the "
    "tide coming in. "
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark. Returns the exit code: 0, 1 for a failure, 2 for bad input, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.shape is None) == (options.model is None):
        parser.error("give --shape or --model, not both")
    try:
        options.points = options.points or [Point(b, c) for b in options.batch for c in options.context]
        _run(options)
    except FastSpecError as error:
        print(f"fastspec.bench: {error}", file=sys.stderr)
        return 1 if error.code in ("internal", "device_failure", "out_of_memory") else 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastspec.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what")
    what.add_argument("--shape", help="random weights of qwen2.5-7b, llama-3.1-8b, qwen3-8b or a config.json")
    what.add_argument("--model", help="directory, hub name or .gguf file")
    what.add_argument("--device", default="cpu", help="cpu, cpu:reference or cuda")
    what.add_argument("--dtype", help="float32, bfloat16, float16; default: the checkpoint's, bfloat16 for a shape")
    what.add_argument("--compare", choices=("transformers",), help="measure it too, taking turns")
    what.add_argument("--num-threads", type=int, default=0)
    where = parser.add_argument_group("where")
    where.add_argument("--batch", type=_list_of(int), default=[1], help="sequences at once: 1,16")
    where.add_argument("--context", type=_list_of(_tokens), default=[128], help="tokens of each prompt: 128,32K")
    where.add_argument("--points", type=_list_of(_point), help="instead of the grid: 1x1K,16x32K")
    how = parser.add_argument_group("how")
    how.add_argument("--repeat", type=int, default=5, help="runs of each side at each point; the median counts")
    how.add_argument("--steps", type=int, default=20, help="with --shape: steps of a run")
    how.add_argument("--max-tokens", type=int, default=64, help="with --model: tokens of each prompt, in the mean")
    how.add_argument("--drafter", default="none", help="with --model: none, or as LLM() takes it")
    how.add_argument("--tree-widths", type=_list_of(int), help="with longspec: nodes of each level; 1,1,1,1 is a chain")
    how.add_argument("--max-batch-rows", type=_tokens, default=2048, help="with --model: rows of a pass, at most")
    how.add_argument("--prompt-file", type=Path, help="with --model: text that fills the prompts, repeated")
    how.add_argument(
        "--prompts", type=Path, help="with --model: real prompts, a file of `train prompts`, cut at the front"
    )
    how.add_argument("--temperature", type=float, default=0.0, help="with --model")
    how.add_argument(
        "--row-budgets",
        type=parse_variants,
        help="variants that take turns on one engine: plain,full,fixed:0.5,auto; with --drafter or --synthetic-rows",
    )
    how.add_argument(
        "--sparse", help="with --model: sparse passes, as LLM() takes them: history, quest, dustin:MANIFEST"
    )
    how.add_argument("--kv-budget", type=_tokens, help=f"cached keys that these read; {SparseConfig().kv_budget}")
    how.add_argument(
        "--sparse-variants",
        help="variants that take turns on one engine: plain,dense,sparse,exact,self (dense, sparse and exact draft; "
        "sparse passes are shown at once in sparse and confirmed in exact and self); with --sparse",
    )
    how.add_argument("--row-budget", help="of those of --sparse-variants that draft: off, auto or fixed:RHO")
    how.add_argument("--reliability", type=Path, help="with these: picture of calibrated chances, .png, .pdf or .svg")
    how.add_argument("--minutes", type=float, help="for all points: runs are left out, first those of the last points")
    how.add_argument("--cpu-time", action="store_true", help="with --model on a CPU that others use: count CPU seconds")
    how.add_argument("--synthetic-rows", type=int, default=0, help="with --shape: drafted rows a sequence")
    how.add_argument("--synthetic-acceptance", type=float, default=0.0, help="of these accepted a step: SYNTHETIC")
    how.add_argument("--synthetic-ranking", type=float, default=0.0, help="AUC of confidences; 0: there are none")
    how.add_argument("--dflash-layers", type=int, default=0, help="of a random DFlash drafter that works beside them")
    how.add_argument("--transformers-way", action="append", help="only this one: graph, static or dynamic; repeatable")
    how.add_argument("--rate", type=float, default=0.0, help="TB/s of the roofline; 0: measured where torch is there")
    how.add_argument("--trace-steps", type=int, default=10, help="on a GPU: steps recorded kernel by kernel; 0: none")
    how.add_argument("--json", action="store_true", help="print one object")
    return parser


def _list_of(item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [item(part) for part in text.split(",")]

    return parse


def _tokens(text: str) -> int:
    thousands = text[-1:] in ("K", "k")
    return int(text[:-1]) * 1024 if thousands else int(text)


def _point(text: str) -> Point:
    batch, _, context = text.partition("x")
    return Point(int(batch), _tokens(context))


def _kv_budget(options: argparse.Namespace) -> int:
    return SparseConfig().kv_budget if options.kv_budget is None else options.kv_budget


def _refuse_idle(options: argparse.Namespace) -> None:
    """Raises InvalidArgumentError for an option that would be ignored, or that another one makes senseless."""
    itself = options.drafter == "self_sparse"
    of_model = [name for name in ("prompts", "prompt_file", "tree_widths") if getattr(options, name)]
    if options.drafter != "none":
        of_model.append("drafter")
    if options.shape and of_model:
        raise InvalidArgumentError(f"--{of_model[0].replace('_', '-')} belongs to --model")
    if options.kv_budget is not None and not options.sparse and not itself:
        raise InvalidArgumentError("--kv-budget: of sparse passes, give --sparse or --drafter self_sparse")
    if itself and options.sparse:
        raise InvalidArgumentError("--drafter self_sparse is what `self` of --sparse-variants does: give one of them")
    if itself and options.row_budgets:
        raise InvalidArgumentError("--row-budgets: self_sparse has no rows to share out")
    if options.row_budget and not options.sparse_variants:
        raise InvalidArgumentError("--row-budget: of --sparse-variants; --row-budgets compares several")
    if options.reliability and not options.row_budgets:
        raise InvalidArgumentError("--reliability: calibration is of the row budget, give --row-budgets")


def _run(options: argparse.Namespace) -> None:
    for name in ("repeat", "steps", "max_tokens"):
        if getattr(options, name) < 1:
            raise InvalidArgumentError(f"--{name.replace('_', '-')}: must be positive")
    if options.model and options.max_tokens < 2:
        raise InvalidArgumentError("--max-tokens: decoding begins with the second")
    if any(point.batch < 1 or point.context < 1 for point in options.points):
        raise InvalidArgumentError("--points, --batch, --context: must be positive")
    _refuse_idle(options)
    if options.trace_steps < 0:
        raise InvalidArgumentError("--trace-steps: must not be negative")
    if options.device.startswith("cpu"):
        options.trace_steps = 0
    if options.row_budgets and not (options.synthetic_rows if options.shape else options.drafter != "none"):
        raise InvalidArgumentError("--row-budgets: needs --drafter, or with --shape --synthetic-rows")
    if bool(options.sparse) != bool(options.sparse_variants):
        raise InvalidArgumentError("--sparse and --sparse-variants: give both")
    if options.sparse and (options.shape or options.row_budgets):
        raise InvalidArgumentError("--sparse-variants belong to --model, and cannot be had with --row-budgets")
    ways = sparse_ways(options.sparse_variants) if options.sparse else []
    if options.drafter == "none" and any(way.speculative for way in ways):
        raise InvalidArgumentError(
            f"--sparse-variants {options.sparse_variants}: dense, sparse and exact need --drafter"
        )
    if options.row_budget and not any(way.speculative for way in ways):
        raise InvalidArgumentError(f"--row-budget: none of --sparse-variants {options.sparse_variants} drafts")
    if options.reliability:
        plotting.check("--reliability", options.reliability)
    if options.cpu_time and not (options.model and options.device.startswith("cpu")):
        raise InvalidArgumentError("--cpu-time: counts what a --model takes of a CPU")
    if options.temperature and options.shape:
        raise InvalidArgumentError("--temperature belongs to --model")
    if options.compare and options.device == "cpu:reference":
        raise InvalidArgumentError("--compare: transformers has no cpu:reference")
    rate = 1e12 * options.rate or _measured_rate(options.device)
    sides = _shape_sides(options) if options.shape else _model_sides(options)
    start = time.monotonic()
    heading = {
        "device": _device_name(options.device),
        "model": options.shape or options.model,
        "dtype": options.dtype or "checkpoint",
        "repetitions": options.repeat,
        "roofline_bytes_per_second": rate,
        "rate_is_measured": options.rate == 0,
        "synthetic_acceptance": options.synthetic_acceptance if options.synthetic_rows else None,
        "synthetic_ranking": options.synthetic_ranking or None,
        "dflash_layers": options.dflash_layers or None,
        "temperature": options.temperature,
        "row_budgets": ", ".join(options.row_budgets) if options.row_budgets else None,
        "sparse": f"{options.sparse}, {_kv_budget(options)} keys" if options.sparse else None,
        "clock": "CPU time" if options.cpu_time else "wall",
    }
    if not options.json:
        print("\n".join(f"{name}: {value}" for name, value in heading.items() if value is not None))
    measured = []
    left_out = 0
    with _progress(len(options.points) * options.repeat * len(sides)) as bar:
        for done, point in enumerate(options.points):
            left = math.inf if options.minutes is None else start + 60 * options.minutes - time.monotonic()
            until = time.monotonic() + left / (len(options.points) - done)
            results = measure(point, sides, options.repeat, bar.update, until)
            left_out += options.repeat - len(results[0].runs)
            measured.append(report.point_json(point, results, rate))
            if not options.json:
                bar.clear()
                print(report.point_text(point, results, rate), flush=True)
    if left_out:
        print(
            f"--minutes {options.minutes:g}: left out {left_out} of --repeat {options.repeat} rounds of "
            f"{len(options.points)} points",
            file=sys.stderr,
        )
    calibration = _calibration(options, sides) if options.row_budgets else None
    if options.trace_steps:
        _trace(options, sides, measured)
    if options.json:
        print(json.dumps({**heading, "points": measured, "calibration": calibration}, indent=2))


def _calibration(options: argparse.Namespace, sides: list[Side]) -> dict[str, Any]:
    """What the engine learned of its drafter's confidences in all runs."""
    side = sides[0]
    assert isinstance(side, (ShapeSide, ModelSide))
    calibration = calibration_json(side.stats().budget)
    if not options.json:
        print(calibration_text(calibration))
    if options.reliability:
        draw_calibration(calibration, options.reliability)
    return calibration


def _trace(options: argparse.Namespace, sides: list[Side], measured: list[dict[str, Any]]) -> None:
    """Behind all timed runs, so that nothing of CUPTI is in the process while they run."""
    if not options.json:
        print(HEADING)
    for point, result in zip(options.points, measured, strict=True):
        for side in sides:
            if not isinstance(side, (ShapeSide, ModelSide)):
                continue
            traced = try_trace(partial(side.trace, point, options.trace_steps))
            result["sides"][side.name]["trace"] = trace_json(traced)
            if not options.json:
                print(trace_text(point, side.name, traced), flush=True)


def _progress(total: int) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

    return tqdm(total=total, desc="benchmark", unit="run", leave=False, disable=None)


def _measured_rate(device: str) -> float:
    try:
        from fastspec.bench.peer import measured_rate
    except FastSpecError:
        return 0.0
    return measured_rate(device)


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        try:
            import torch
        except ImportError:
            return device
        return str(torch.cuda.get_device_name(device))
    return f"{device}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores"


# --- sides ------------------------------------------------------------------------------------------------------------


def _shape_sides(options: argparse.Namespace) -> list[Side]:
    options.dtype = options.dtype or "bfloat16"
    config = ShapeBenchmarkConfig(
        shape=options.shape,
        device=options.device,
        dtype=options.dtype,
        num_threads=options.num_threads,
        synthetic_rows=options.synthetic_rows,
        synthetic_acceptance=options.synthetic_acceptance,
        synthetic_ranking=options.synthetic_ranking,
        dflash_layers=options.dflash_layers,
    )
    growth = max(config.growth(options.steps, 1), config.growth(options.trace_steps, 1))
    config.max_batch = max(point.batch for point in options.points)
    config.max_length = max(point.context for point in options.points) + growth
    config.max_num_slots = max(point.batch * (point.context + growth) for point in options.points)
    benchmark = ShapeBenchmark(config)
    variants = options.row_budgets or []
    sides: list[Side] = [ShapeSide(benchmark, options.steps, variant=variant) for variant in variants]
    sides = sides or [ShapeSide(benchmark, options.steps)]
    if options.synthetic_rows and not variants:
        sides.append(ShapeSide(benchmark, options.steps, speculative=True))
    if options.compare:
        from fastspec.bench import peer

        model = peer.random_model(options.shape, options.device, options.dtype)
        sides.append(peer.TransformersSide(model, options.steps, options.repeat, None, _ways(options)))
    return sides


def _model_sides(options: argparse.Namespace) -> list[Side]:
    if options.synthetic_rows:
        raise InvalidArgumentError("--synthetic-rows belongs to --shape; --model has real drafters")
    if options.prompts and options.prompt_file:
        raise InvalidArgumentError("--prompts and --prompt-file: give one of them")
    directory = hub.resolve_model(options.model)
    drafter = hub.resolve_drafter(options.drafter)
    if options.tree_widths:
        drafter.tree_widths = options.tree_widths
    engine = Engine(
        EngineConfig(
            model=str(directory),
            device=options.device,
            dtype=options.dtype,
            num_threads=options.num_threads,
            max_num_seqs=2 * max(point.batch for point in options.points),  # half of them held
            max_batch_rows=options.max_batch_rows,
            max_model_len=_longest(options, directory),
            speculation=SpeculationConfig(drafter=drafter),
            sparse=SparseConfig(selector=hub.expand_selector(options.sparse or "none"), kv_budget=_kv_budget(options)),
        )
    )
    if "auto" in (options.row_budgets or [options.row_budget]):
        engine.set_row_budget("auto")  # measures costs, for which no prompt may be held
    options.dtype = engine.info.dtype
    if options.prompts:
        prompts = real_prompts(options.prompts, engine.info.vocab_size)
    else:
        prompts = passage_prompts(
            engine.tokenizer, options.prompt_file.read_text() if options.prompt_file else _PASSAGE
        )
    held = HeldPrompts(engine, prompts, time.process_time if options.cpu_time else time.perf_counter)
    sides: list[Side] = [
        ModelSide(held, options.max_tokens, way, temperature=options.temperature) for way in _ways_of(options, engine)
    ]
    if options.compare:
        from fastspec.bench import peer

        model = peer.load_model(directory, options.device, options.dtype)
        # The first token comes with the prompt.
        sides.append(peer.TransformersSide(model, options.max_tokens - 1, options.repeat, prompts, _ways(options)))
    return sides


def _longest(options: argparse.Namespace, model: Path) -> int:
    """Tokens of a sequence: as many as ModelSide may decode, if the model can."""
    context = max(point.context for point in options.points)
    config = json.loads((model / "config.json").read_text())
    limit = int(config.get("max_position_embeddings", 0)) or context + LONGEST * options.max_tokens
    return int(max(context + options.max_tokens, min(context + LONGEST * options.max_tokens, limit)))


def _ways_of(options: argparse.Namespace, engine: Engine) -> list[Way]:
    """The ways in which the engine decodes, taking turns."""
    if options.row_budgets:
        return [budget_way(variant) for variant in options.row_budgets]
    if options.sparse:
        return sparse_ways(options.sparse_variants, options.row_budget)
    if options.drafter == "none":
        return [Way(PLAIN)]
    # Of an engine without --sparse only self_sparse has sparse passes.
    drafter = options.drafter.partition(":")[0]
    return [Way(PLAIN), Way(drafter, speculative=True, sparse=engine.info.selector != "none")]


def _ways(options: argparse.Namespace) -> list[str]:
    from fastspec.bench import peer

    names = {"graph": peer.GRAPH, "static": peer.STATIC, "dynamic": peer.DYNAMIC}
    unknown = [way for way in options.transformers_way or () if way not in names]
    if unknown:
        raise InvalidArgumentError(f"--transformers-way {unknown[0]}: expected one of {', '.join(names)}")
    return [names[way] for way in options.transformers_way or names]


if __name__ == "__main__":
    sys.exit(main())
