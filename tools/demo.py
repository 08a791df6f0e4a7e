"""Lets a model write, plain and speculative, and compares: the text, then a table of speed and equality.

    .venv/bin/python tools/demo.py --model DIR [--draft DIR] [--tree-widths 1,1,1] [--device cpu|cuda]
        [--dtype float32|bfloat16] [--max-tokens N]

Where a LongSpec drafter comes with FastSpec for the model, it is in the table. Greedy decoding. In float32 on the CPU
the speculative tokens must be the plain ones, and the exit code says so. In bfloat16, and on a GPU, the rounding of a
row depends on how many rows are computed together, so a near-tie may be decided otherwise: the first difference is
shown with its margin. Uses the public Python API only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fastspec import LLM, CompletionOutput, DrafterConfig, SamplingParams, hub

PASSAGE = (
    "The lighthouse stood at the end of the long stone pier. Every evening the keeper climbed the narrow stairs, "
    "lit the great lamp and looked out over the dark water. Ships passed far away, and their small lights moved "
    "slowly along the horizon. When the fog came, the keeper rang the old bronze bell once a minute until morning."
)
ROUNDS = 3
CPU_WIDTHS = [1, 1, 1]  # what cost least a token on two busy cores: tools/RESULTS.md
PROMPTS = {
    "copying": f"Repeat this passage word for word:\n\n{PASSAGE}",
    "story": "Write a short story about a fisherman and his daughter.",
    "code": "Write a Python function that returns the largest number of a list.",
}


@dataclass
class Run:
    """One generation and how fast its decoding passes were."""

    prompt: str
    drafter: str
    output: CompletionOutput
    tokens_per_second: float


def say(text: str) -> None:
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def drafters(args: argparse.Namespace) -> dict[str, DrafterConfig | None]:
    """By the name that they have in the table."""
    found: dict[str, DrafterConfig | None] = {"plain": None, "ngram": DrafterConfig(kind="ngram")}
    name = Path(args.model).resolve().name
    if name in hub.shipped_drafters():
        longspec = found["longspec"] = DrafterConfig(kind="longspec", model=name)
        if widths := args.tree_widths or (CPU_WIDTHS if args.device.startswith("cpu") else []):
            longspec.tree_widths = widths
    if args.draft:
        found["standalone"] = DrafterConfig(kind="standalone", model=args.draft)
    return found


def generate_all(args: argparse.Namespace, drafters: dict[str, DrafterConfig | None]) -> list[Run]:
    """Every prompt with every drafter, in rounds so that all meet the same machine; the median speed counts."""
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    outputs: dict[tuple[str, str], CompletionOutput] = {}
    speeds: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        engines = {}
        for label, drafter in drafters.items():
            say(f"loading {args.model} ({label})")
            engines[label] = stack.enter_context(
                LLM(
                    args.model,
                    drafter=drafter,
                    dtype=args.dtype,
                    device=args.device,
                    max_num_seqs=1,
                    max_model_len=2048,
                )
            )
        say(f"writing, {ROUNDS} rounds")
        for _ in range(ROUNDS):
            for name, text in PROMPTS.items():
                for label, llm in engines.items():
                    output = llm.chat([{"role": "user", "content": text}], params, progress=False)[0].outputs[0]
                    stats = output.stats
                    assert stats is not None
                    decoding = stats.seconds - stats.seconds_to_first_token
                    outputs[name, label] = output
                    speeds.setdefault((name, label), []).append(stats.decoding_tokens / max(decoding, 1e-9))
    return [Run(*key, output, statistics.median(speeds[key])) for key, output in outputs.items()]


def first_difference(plain: list[int], other: list[int]) -> int | None:
    """Index of the first token that differs, or None."""
    if plain == other:
        return None
    for index, (left, right) in enumerate(zip(plain, other, strict=False)):
        if left != right:
            return index
    return min(len(plain), len(other))


def margin_at(args: argparse.Namespace, prompt: str, index: int) -> float:
    """By how much plain decoding preferred its token number `index` to the next best, in logits."""
    params = SamplingParams(temperature=0, max_tokens=index + 1, logprobs=2)
    with LLM(args.model, dtype=args.dtype, device=args.device) as llm:
        output = llm.chat([{"role": "user", "content": PROMPTS[prompt]}], params, progress=False)[0].outputs[0]
    assert output.logprobs is not None
    best, second = output.logprobs[index].top[:2]
    return best.logprob - second.logprob


def verdict(args: argparse.Namespace, plain: Run, run: Run) -> str:
    """What the table says about a run's tokens beside plain decoding's."""
    if run is plain:
        return "-"
    index = first_difference(plain.output.token_ids, run.output.token_ids)
    if index is None:
        return "yes"
    return f"first difference at token {index}, margin {margin_at(args, run.prompt, index):.3g}"


def explanation(found: dict[str, DrafterConfig | None]) -> str:
    """What the table shows, for people."""
    text = (
        "\nn-gram lookup proposes what followed the same words before: it pays where text repeats (quoting, editing),\n"
        "costs a little where it does not, and changes no word: what the small model says is its own."
    )
    if longspec := found.get("longspec"):
        widths = ",".join(str(width) for width in longspec.tree_widths)
        text += (
            "\nLongSpec drafts for any text, with one block that was trained for this model, here a tree with\n"
            f"{widths} nodes a level. On a CPU each level reads the model's head once more, and each node costs\n"
            "arithmetic when it is checked, so the tree is small there (1,1,1 is a chain). A GPU takes 68 nodes.\n"
            f"fastspec-cli takes it as --drafter longspec:{hub.resolve_drafter(longspec).model} --tree-widths {widths}"
        )
    return text


def main() -> int:
    """Command line: see the module's text."""
    parser = argparse.ArgumentParser(description="Plain and speculative decoding side by side.")
    parser.add_argument("--model", required=True, help="Hugging Face directory of the target model")
    parser.add_argument("--draft", help="directory of a smaller model with the same tokenizer")
    parser.add_argument(
        "--tree-widths", type=lambda text: [int(part) for part in text.split(",")], help="of LongSpec's tree, by level"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--max-tokens", type=int, default=96)
    args = parser.parse_args()

    started = time.perf_counter()
    found = drafters(args)
    runs = generate_all(args, found)
    plain = {run.prompt: run for run in runs if run.drafter == "plain"}

    for name, run in plain.items():
        print(f"\n--- {name} prompt ---\n{PROMPTS[name]}\n--- answer ---\n{run.output.text.strip()}")

    print(f"\n{args.device}, {args.dtype}, greedy, median of {ROUNDS}.")
    print("tau = tokens per decoding pass of the target, bonus included.")
    header = f"{'prompt':<10} {'drafter':<11} {'tokens':>6} {'tokens/s':>9} {'speed-up':>9} {'tau':>6}  equal to plain"
    print(header + "\n" + "-" * len(header))
    different = 0
    for name, first in plain.items():
        for run in (run for run in runs if run.prompt == name):
            equal = verdict(args, first, run)
            different += equal not in ("-", "yes")
            stats = run.output.stats
            assert stats is not None
            speed_up = run.tokens_per_second / first.tokens_per_second if first.tokens_per_second else 0.0
            print(
                f"{name:<10} {run.drafter:<11} {len(run.output.token_ids):>6} {run.tokens_per_second:>9.1f} "
                f"{speed_up:>8.2f}x {stats.acceptance_length:>6.2f}  {equal}"
            )
    print(explanation(found))
    if os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
        print("Other programs keep this machine busy: take the speeds with a grain of salt.")
    say(f"\n{time.perf_counter() - started:.0f} s in all")
    if different and args.dtype == "float32" and args.device == "cpu":
        say(f"{different} of {len(runs)} runs differ from plain decoding in float32")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
