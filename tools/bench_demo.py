"""Decoding speed on the demo model beside transformers, in one run, variants interleaved, medians.

    .venv/bin/python tools/bench_demo.py [--dtype float32 bfloat16] [--repeat 5] [--tokens 64]

Prints tokens/s of decoding (prompt excluded), the ratio to transformers, and for plain decoding the bytes of weights
read a second as a share of the machine's read rate, measured in the same run by a plain sum over memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from fetch_demo_model import fetch

from fastspec import LLM, SamplingParams

PASSAGE = (
    "The harbour was quiet that morning. Three grey boats lay at the quay, and an old man mended a net in the pale "
    "light. Nobody spoke. A gull walked along the wall as if it owned the town, turned its head, and looked at the "
    "tide coming in."
)
MESSAGES = [{"role": "user", "content": f"Repeat this passage, but write 'evening' instead of 'morning':\n\n{PASSAGE}"}]


def read_rate() -> float:
    """Bytes a second that a sum over 1 GiB reads, best of five."""
    block = torch.ones(1 << 28, dtype=torch.float32)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        block.sum()
        seconds.append(time.perf_counter() - started)
    return float(block.numel() * 4 / min(seconds))


def decode_seconds(run: Callable[[int], None], tokens: int) -> float:
    """Seconds that `tokens` further tokens take: a run of tokens + 1 less a run of one, so the prompt drops out."""
    started = time.perf_counter()
    run(1)
    one = time.perf_counter() - started
    started = time.perf_counter()
    run(tokens + 1)
    return time.perf_counter() - started - one


def compare(directory: Path, dtype: str, tokens: int, repeat: int, rate: float) -> None:
    """One table: transformers, plain, n-gram."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    ids = prompt["input_ids"][0].tolist()

    def run_transformers(count: int) -> None:
        with torch.no_grad():
            reference.generate(**prompt, do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0)

    def run_ours(llm: LLM) -> Callable[[int], None]:
        def run(count: int) -> None:
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
            llm.generate([ids], params, progress=False)

        return run

    with (
        LLM(directory, dtype=dtype, max_model_len=2048, max_num_seqs=1) as plain,
        LLM(directory, dtype=dtype, drafter="ngram", max_model_len=2048, max_num_seqs=1) as ngram,
    ):
        variants = {"transformers": run_transformers, "plain": run_ours(plain), "n-gram": run_ours(ngram)}
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for run in variants.values():
            run(4)
        for _ in range(repeat):
            for name, run in variants.items():
                seconds[name].append(decode_seconds(run, tokens))
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        stats = ngram.generate([ids], params, progress=False)[0].outputs[0].stats
        tau = stats.acceptance_length if stats is not None else float("nan")
        weight_bytes = plain.info.weight_bytes
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"\n{dtype}, prompt of {len(ids)} tokens, {tokens} tokens decoded, median of {repeat}")
    for name, value in median.items():
        note = ""
        if name == "plain":
            note = f", weights read at {100 * weight_bytes * tokens / value / rate:.0f} % of the read rate"
        if name == "n-gram":
            note = f", {median['plain'] / value:.2f} x plain, acceptance length {tau:.2f} (bonus included)"
        print(f"  {name:13s}{tokens / value:8.1f} tokens/s  {median['transformers'] / value:5.2f} x transformers{note}")


def main() -> int:
    """Prints one table a dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    directory = fetch()
    rate = read_rate()
    print(f"SmolLM2-135M-Instruct, {os.cpu_count()} cores, torch {torch.__version__}, reads {rate / 1e9:.1f} GB/s")
    for dtype in arguments.dtype:
        compare(directory, dtype, arguments.tokens, arguments.repeat, rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
