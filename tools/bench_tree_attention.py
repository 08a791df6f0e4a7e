"""Hybrid tree attention beside other ways to verify a draft tree: one process, taking turns, medians.

    python tools/bench_tree_attention.py [--library SO] [--batch 1 16] [--context 2048 ... 32768] [--repeat 11]

ours     the engine's attention kernel over pages, plan included (built with the tests of a CUDA build)
eager    all scores in memory under a full mask, K/V heads repeated: transformers' eager attention, the paper's baseline
paths    flash attention without trees: paths from root to leaf as sequences of their own, prefix read once for all
hybrid   flash attention over the prefix, a Triton kernel for the tree, merged by log-sum-exp

The others are given gathered K/V and packed queries beforehand; over the prefix they use the faster of torch's flash
attention and cuDNN's. Layers have K/V of their own, so that none is found in a cache, and a way's layers are one CUDA
graph. Every way is first compared with double precision. The roofline is the time to read K, V and queries and to write
outputs at --rate, or that of the visible scores at --tflops where it is longer. Needs torch with CUDA; `hybrid` needs
Triton.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tree_attention.problem import Case, Problem, relative_error
from tree_attention.ways import Dense, Eager, Hybrid, Ours, Paths, Way, cudnn, flash, packed_heads

ROOT = Path(__file__).resolve().parents[1]
HEADS = ((28, 4), (32, 8))
CACHE_BYTES = 600e6  # of K/V in all layers: many times what a cache holds
MAX_LAYERS = 64
REPLAYS = 4
# Outputs are rounded to bf16, and weights too; eager rounds scores and weights before their sums.
TOLERANCES = {"ours": 6e-3, "eager": 3e-2, "paths": 8e-3, "hybrid": 6e-3}
LSE_TOLERANCE = 1e-5
COLUMNS = ["heads", "batch", "context", "ours", "roofline", "share", "rates", "eager", "paths", "hybrid", "prefix"]
COLUMNS += ["spread", "error"]


@dataclass
class Outcome:
    """Of one way in one case."""

    error: float
    wrong: bool
    microseconds: list[float]  # of a layer, one a round

    @property
    def median(self) -> float:
        """Microseconds of a layer."""
        return statistics.median(self.microseconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles over the median."""
        quartiles = statistics.quantiles(self.microseconds, n=4)
        return (quartiles[2] - quartiles[0]) / self.median


def captured(run: Callable[[], Any]) -> Any:
    """A CUDA graph of what `run` launches, warmed up."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def replay_microseconds(graph: Any) -> float:
    """Of one of REPLAYS in a row, on the device: the host's way to the first is shared by all."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    stop.record()
    stop.synchronize()
    return 1000.0 * float(start.elapsed_time(stop)) / REPLAYS


def run_layers(way: Way, layers: int) -> None:
    """A step."""
    way.step()
    for layer in range(layers):
        way.layer(layer)


def check(way: Way, problem: Problem, expected: tuple[Any, Any]) -> Outcome:
    """Compares the last layer, so that a wrong address of a layer shows."""
    way.step()
    outputs = way.rows(way.layer(problem.layers - 1))
    error = relative_error(outputs, expected[0])
    wrong = not error < TOLERANCES[way.name]
    if isinstance(way, Ours):
        wrong = wrong or not relative_error(way.lse, expected[1]) < LSE_TOLERANCE
    return Outcome(error, wrong, [])


def prefix_attention(problem: Problem) -> tuple[str, Dense]:
    """The faster dense attention over the prefix with packed heads, among those that agree."""
    case = problem.case
    query = packed_heads(problem.query, case.num_kv_heads)
    found: dict[str, tuple[float, Dense]] = {}
    expected: tuple[Any, Any] | None = None
    for name, dense in (("flash", flash), ("cudnn", cudnn)):

        def run(dense: Dense = dense) -> tuple[Any, Any]:
            for layer in range(problem.layers):
                keys, values = problem.keys[layer], problem.values[layer]
                result = dense(query, keys[:, :, : case.context], values[:, :, : case.context], case.scale, False)
            return result

        try:
            seen = run()
            expected = expected or seen
            errors = [relative_error(a, b.double()) for a, b in zip(seen, expected, strict=True)]
            if not max(errors) < TOLERANCES["hybrid"]:
                raise RuntimeError(f"differs from flash by {errors[0]:.1e}, log-sum-exp {errors[1]:.1e}")
            graph = captured(run)
            replay_microseconds(graph)
            found[name] = (min(replay_microseconds(graph) for _ in range(3)), dense)
        except RuntimeError as error:
            print(f"# {name} over the prefix is left out: {str(error).splitlines()[0]}")
    fastest = min(found, key=lambda name: found[name][0])
    return fastest, found[fastest][1]


def make_ways(problem: Problem, library: Path, prefix: Dense) -> list[Way]:
    """Those that this machine can run; prints the others."""
    ways: list[Way] = []
    makers: tuple[Callable[[], Way], ...] = (
        partial(Ours, problem, library),
        partial(Eager, problem),
        partial(Paths, problem, prefix),
        partial(Hybrid, problem, prefix),
    )
    for make in makers:
        try:
            ways.append(make())
        except (ImportError, torch.cuda.OutOfMemoryError) as error:
            print(f"# left out: {str(error).splitlines()[0]}")
    return ways


def measure(problem: Problem, ways: list[Way], repeat: int) -> dict[str, Outcome]:
    """Checks every way, then times those that are right, taking turns; the order turns too."""
    expected = problem.reference(problem.layers - 1)
    outcomes: dict[str, Outcome] = {}
    graphs = {}
    for way in ways:
        try:
            outcomes[way.name] = check(way, problem, expected)
            if not outcomes[way.name].wrong:
                graphs[way.name] = captured(partial(run_layers, way, problem.layers))
        except torch.cuda.OutOfMemoryError:
            print(f"# {way.name}: not enough memory")
            outcomes.pop(way.name, None)
    for graph in graphs.values():
        replay_microseconds(graph)
    for turn in range(repeat):
        names = list(graphs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            outcomes[name].microseconds.append(replay_microseconds(graphs[name]) / problem.layers)
    return outcomes


def print_case(problem: Problem, outcomes: dict[str, Outcome], prefix: str, rate: float, tflops: float) -> None:
    """One row of the table, and what went wrong."""
    case = problem.case
    memory = case.needed_bytes() / rate * 1e-6
    math = case.needed_flops(int(problem.mask.sum())) / tflops * 1e-6
    ours = outcomes["ours"]
    cells = [f"{case.num_heads}/{case.num_kv_heads}", str(case.batch), f"{case.context // 1024}K"]
    if ours.microseconds:
        share = max(memory, math) / ours.median
        rates = f"{case.needed_bytes() / ours.median * 1e-6:.2f} TB/s, {math * tflops / ours.median:.0f} TFLOP/s"
        bound = "memory" if memory > math else "arithmetic"
        cells += [f"{ours.median:.1f}", f"{max(memory, math):.1f} ({bound})", f"{100 * share:.0f} %", rates]
    else:
        cells += ["wrong", "", "", ""]
    for name in ("eager", "paths", "hybrid"):
        other = outcomes.get(name)
        if other is None or not other.microseconds or not ours.microseconds:
            cells.append("-")
            continue
        cell = f"{other.median:.1f} ({other.median / ours.median:.2f})"
        cells.append(cell + (f" -{100 * (1 - ours.median / other.median):.1f} %" if name == "eager" else ""))
    spread = max((outcome.spread for outcome in outcomes.values() if outcome.microseconds), default=0.0)
    errors = ", ".join(f"{name} {o.error:.1e}{' WRONG' if o.wrong else ''}" for name, o in outcomes.items())
    print("| " + " | ".join([*cells, prefix, f"{100 * spread:.1f} %", errors]) + " |", flush=True)


def run_case(case: Case, library: Path, options: argparse.Namespace) -> bool:
    """False where a result is wrong."""
    layers = int(min(MAX_LAYERS, max(2, CACHE_BYTES // case.layer_bytes + 1)))
    problem = Problem(case, layers, "cuda")
    prefix, dense = prefix_attention(problem)
    outcomes = measure(problem, make_ways(problem, library, dense), options.repeat)
    print_case(problem, outcomes, prefix, options.rate, options.tflops)
    return not any(outcome.wrong for outcome in outcomes.values())


def find_library() -> Path | None:
    """The newest of this tree's builds."""
    built = sorted(ROOT.glob("build/**/libfastspec_tree_attention.so"), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else None


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="libfastspec_tree_attention.so (default: newest below build/)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 16, 16, 16, 16], help="of the tree's levels")
    parser.add_argument("--repeat", type=int, default=11, help="rounds; at least 5")
    parser.add_argument("--rate", type=float, default=4.2, help="TB/s that the device reads")
    parser.add_argument("--tflops", type=float, default=989, help="bf16 TFLOP/s of the device, dense")
    options = parser.parse_args()
    library = options.library or find_library()
    if not torch.cuda.is_available() or library is None or options.repeat < 5:
        why = "no GPU" if not torch.cuda.is_available() else "no library: build fastspec_tree_attention"
        print(f"bench_tree_attention: {why if options.repeat >= 5 else '--repeat is at least 5'}", file=sys.stderr)
        return 2
    device = torch.cuda.get_device_properties(0)
    widths = tuple(options.widths)
    tree = f"tree {','.join(map(str, widths))} of {1 + sum(widths)} rows"
    print(f"# {device.name}, torch {torch.__version__}, {tree}, bf16, heads of 128, median of {options.repeat}")
    print(f"# roofline at {options.rate} TB/s and {options.tflops} TFLOP/s; us a layer, in brackets the ratio to ours")
    print("# spread is the largest distance between quartiles over the median")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    all_right = True
    for num_heads, num_kv_heads in HEADS:
        for batch in options.batch:
            for context in options.context:
                case = Case(batch, context, num_heads, num_kv_heads, widths=widths)
                all_right = run_case(case, library, options) and all_right
                torch.cuda.empty_cache()
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
