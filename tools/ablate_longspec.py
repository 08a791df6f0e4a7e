"""What anchor offsets and flash noisy training are worth (LongSpec, sections 3.2 and 3.3): same data, same steps.

    .venv/bin/python tools/ablate_longspec.py --target DIR --data GENERATED --validation CONTINUED --out DIR
        [--steps 800] [--device cuda]

GENERATED and CONTINUED are files of `train generate`. Trains three drafters: with both, without offsets, without
shifts. Writes ablation.json, ablation.png and ablation.md: the loss at high positions (rows moved to the end of what
the model knows, as in a long document) with and without offsets, and in how many steps the one reaches what the other
ends with; the acceptance length at T = 0 with and without shifts. The SmolLM2 drafter's preset, smaller. Where DIR has
an ablation.json it is written up again, without training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastspec import hub
from fastspec.errors import FastSpecError
from fastspec.train import attention
from fastspec.train.block import LongSpecBlock, start_from_target
from fastspec.train.documents import Documents
from fastspec.train.files import write_json
from fastspec.train.longspec_recipe import LongSpecRecipe
from fastspec.train.loss import linear_cross_entropy
from fastspec.train.offline import CHAIN, TREE, offline_acceptance
from fastspec.train.options import PRESETS, TrainOptions
from fastspec.train.ranks import Ranks
from fastspec.train.target import Target, offset_positions
from fastspec.train.trainer import Trainer

BOTH, NO_OFFSETS, NO_SHIFTS = "both", "no anchor offsets", "no shifts"
VARIANTS: dict[str, dict[str, Any]] = {
    BOTH: {},
    NO_OFFSETS: {"anchor_positions": 0},
    NO_SHIFTS: {"depth": 1, "shifts_at_once": 1},
}
POINTS = 10  # of a curve
Point = dict[str, float]


def loss_at(block: LongSpecBlock, target: Target, documents: Documents, offset: int, depth: int) -> float:
    """Mean cross-entropy of the target's tokens, rows moved by `offset`, over all shifts that a tree has."""
    total, count = 0.0, 0
    for index in range(len(documents)):
        tokens = torch.tensor([documents[index]], device=target.device)
        positions = offset_positions(tokens.shape[1], torch.tensor([offset], device=target.device))
        mixed = target.dtype == torch.bfloat16
        with torch.no_grad(), torch.autocast(target.device.type, torch.bfloat16, enabled=mixed):
            states = target.states(tokens, positions, with_hidden=False)
            keys, values = (x.expand(depth, -1, -1, -1) for x in (states.keys, states.values))
            hidden = block(
                target.embed(tokens).expand(depth, -1, -1),
                target.rope(positions),
                lambda q, k, v: attention.windowed(q, k, v, block.shape.window),
                lambda q, k=keys, v=values: attention.shifted(q, k.to(q.dtype), v.to(q.dtype), range(1, depth + 1)),
            )
        begin = max(depth, int(documents.prompt_lengths[index]) - 1)
        asked = states.choices[:, begin:-1].long().expand(depth, -1).flatten()
        loss, _ = linear_cross_entropy(hidden[:, begin:-1].flatten(0, 1), target.head, asked)
        total, count = total + float(loss), count + asked.numel()
    return total / count


def train(
    target: Target, data: Documents, validation: Documents, options: TrainOptions, out: Path, depth: int
) -> list[Point]:
    """One drafter; a point of its curves every 1 / POINTS of its steps."""
    torch.manual_seed(options.seed)
    block = LongSpecBlock(target.block_shape(options.final_norm, options.window, None))
    start_from_target(block, target.model)
    block.to(target.device)
    recipe = LongSpecRecipe(target, block, options)
    run = Trainer(recipe, [data], None, options, out, Ranks(0, 1, target.device), log=lambda _: None)
    high = target.max_positions - max(validation.starts.diff().tolist())
    points: list[Point] = []
    for part in range(1, POINTS + 1):
        run.run(until=options.steps * part // POINTS)
        found = offline_acceptance(block, target, validation, {"chain": CHAIN, "tree": TREE})
        tau = {shape: sum(tally[shape].tau for tally in found.values()) / len(found) for shape in ("chain", "tree")}
        points.append(
            {"step": run.progress.step, "high": loss_at(block, target, validation, high, depth)}
            | {"low": loss_at(block, target, validation, 0, depth)}
            | tau
        )
        print("  " + "  ".join(f"{name} {value:.4g}" for name, value in points[-1].items()), flush=True)
    return points


def steps_to(points: Sequence[Point], loss: float) -> float | None:
    """Steps after which the loss at high positions is down to `loss`, between points on a straight line."""
    previous: Point | None = None
    for point in points:
        if point["high"] <= loss:
            if previous is None or previous["high"] == point["high"]:
                return point["step"]
            share = (previous["high"] - loss) / (previous["high"] - point["high"])
            return previous["step"] + share * (point["step"] - previous["step"])
        previous = point
    return None


def table(curves: dict[str, list[Point]]) -> str:
    """The last points, and what the two are worth."""
    lines = ["| trained with | loss, high positions | loss, low positions | τ, chain | τ, tree |", "|---" * 5 + "|"]
    for name, points in curves.items():
        last = points[-1]
        lines.append(f"| {name} | {last['high']:.3f} | {last['low']:.3f} | {last['chain']:.2f} | {last['tree']:.2f} |")
    end = curves[NO_OFFSETS][-1]
    reached = steps_to(curves[BOTH], end["high"])
    sooner = "never" if reached is None else f"in {reached:.0f}, {end['step'] / reached:.2f} times as soon"
    with_shifts, without = curves[BOTH][-1], curves[NO_SHIFTS][-1]
    gains = ", ".join(
        f"{shape} {100 * (with_shifts[shape] / without[shape] - 1):+.1f} %" for shape in ("chain", "tree")
    )
    return "\n".join(
        [
            *lines,
            "",
            f"Without anchor offsets the loss at high positions is {end['high']:.3f} after {end['step']:.0f} steps; "
            f"with them it gets there {sooner} (the paper: 3.93 times). τ with shifts against without: {gains} "
            "(the paper: +14.7 %).",
            "",
        ]
    )


def draw(path: Path, curves: dict[str, list[Point]]) -> bool:
    """The curves as a picture. Returns False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name in (BOTH, NO_OFFSETS):
        left.plot([p["step"] for p in curves[name]], [p["high"] for p in curves[name]], marker=".", label=name)
    for name in (BOTH, NO_SHIFTS):
        for shape, style in (("chain", "--"), ("tree", "-")):
            ys = [p[shape] for p in curves[name]]
            right.plot([p["step"] for p in curves[name]], ys, style, marker=".", label=f"{name}, {shape}")
    left.set(xlabel="step", ylabel="cross-entropy", title="validation loss at high positions")
    right.set(xlabel="step", ylabel="τ, bonus included", title="acceptance length, T = 0")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    return True


def run(options: argparse.Namespace, log: Callable[[str], None] = print) -> dict[str, list[Point]]:
    """The three trainings; raises FastSpecError on bad input."""
    directory = hub.resolve_model(options.target)
    target = Target(directory, Ranks.join(options.device).device, getattr(torch, options.dtype))
    data = Documents.load(options.data, target.vocab_size).by_kind(options.documents)
    validation = Documents.load(options.validation, target.vocab_size).by_kind(options.validation_documents)
    base = replace(
        PRESETS["smollm2-demo"],
        minutes=0.0,
        steps=options.steps,
        length=min(512, target.max_positions),
        batch_tokens=options.batch_tokens,
        lr=2e-3,  # of the smaller batch
        distill=0.5,
        warmup_steps=options.steps // 20,
        anchor_share=1.0,
        shift_decay=1.0,
        shifts_at_once=5,
        average=0.0,
        dtype=options.dtype,
        save_seconds=0.0,
    )
    curves: dict[str, list[Point]] = {}
    for number, (name, changes) in enumerate(VARIANTS.items()):
        log(f"{name}:")
        changed = replace(base, **changes)
        changed.validate()
        curves[name] = train(target, data, validation, changed, options.out / f"run{number}", base.depth)
    return curves


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--documents", type=int, default=4000, help="of each kind, to train on")
    parser.add_argument("--validation-documents", type=int, default=12, help="of each kind")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args(arguments)
    kept = options.out / "ablation.json"
    try:
        curves = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else run(options)
    except FastSpecError as error:
        print(f"ablate_longspec: {error}", file=sys.stderr)
        return 2
    write_json(kept, curves)
    (options.out / "ablation.md").write_text(table(curves), encoding="utf-8")
    if not draw(options.out / "ablation.png", curves):
        print("no picture without matplotlib: run this again where it is installed", file=sys.stderr)
    print(table(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
