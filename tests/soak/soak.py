"""Soak: random callers at the memory limit for minutes, and nothing may be lost, wrong or left behind.

    python tests/soak/soak.py --minutes 30 --device cpu

Two LLMs of one model, one drafting with n-grams and one with a noisy copy of the model, have pages for little more
than one sequence of the largest length and many callers each, so that preemption never stops. Checked: every request ends as it must; a random sample
of outputs is computed again alone and is the same; whenever all callers pause, every page is back; memory, threads and
open files stay flat after warm-up; nothing is written to the log. Prints a line every 10 s and a summary; exit code 1
where anything failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recompute import Recomputer
from traffic import Client, Findings, Gate
from watch import Limits, Reading, judge, take_reading

from fastspec import LLM, DrafterConfig, EngineConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

MAX_NUM_SEQS, MAX_DRAFT_TOKENS, PAGE_SIZE, MAX_LENGTH = 8, 4, 16, 256
REPORT_SECONDS = 10.0
PATIENCE = 120.0  # seconds that callers may take to end what they began


def kv_bytes_per_token(directory: Path, dtype: str) -> int:
    """Of all layers of a model, from its config.json."""
    config = json.loads((directory / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    elements = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    return int(elements * (4 if dtype == "float32" else 2))


def noisy_copy(directory: Path, target: Path, noise: float = 0.02) -> Path:
    """The model with noise on its weights: a draft that is often right and often wrong."""
    import shutil

    import numpy as np
    from safetensors.numpy import load_file, save_file

    shutil.copytree(directory, target)
    generator = np.random.default_rng(5)
    for file in target.glob("*.safetensors"):
        tensors = load_file(file)
        for name, values in tensors.items():
            scale = np.float32(noise * values.std())
            tensors[name] = values + scale * generator.standard_normal(values.shape, dtype=np.float32)
        save_file(tensors, file, metadata={"format": "pt"})
    return target


def make_llm(model: Path, drafter: DrafterConfig, draft: Path | None, arguments: argparse.Namespace) -> LLM:
    """An LLM with pages for one and a half sequences of the largest length."""
    config = json.loads((model / "config.json").read_text())
    length = min(MAX_LENGTH, config["max_position_embeddings"])
    per_token = kv_bytes_per_token(model, arguments.dtype)
    if draft is not None:
        per_token += kv_bytes_per_token(draft, arguments.dtype)
    pages = math.ceil((MAX_NUM_SEQS * MAX_DRAFT_TOKENS + 1) / PAGE_SIZE) + math.ceil(1.5 * length / PAGE_SIZE)
    return LLM(
        model,
        drafter=drafter,
        dtype=arguments.dtype,
        device=arguments.device,
        max_model_len=length,
        max_num_seqs=MAX_NUM_SEQS,
        max_batch_rows=64,
        page_size=PAGE_SIZE,
        kv_cache_bytes=pages * PAGE_SIZE * per_token,
        num_threads=1,
        max_draft_tokens=MAX_DRAFT_TOKENS,
    )


@contextmanager
def log_in(path: Path) -> Iterator[None]:
    """Sends what the process writes to stderr, the engine's log included, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


class Soak:
    """The engines, their callers and what was found."""

    def __init__(self, model: Path, draft: Path, arguments: argparse.Namespace) -> None:
        self._device = arguments.device
        self.findings = Findings()
        self.readings: list[Reading] = []
        self.llms = {
            "ngram": make_llm(model, DrafterConfig(kind="ngram", ngram_min=1), None, arguments),
            "standalone": make_llm(model, DrafterConfig(kind="standalone", model=str(draft)), draft, arguments),
        }
        config = EngineConfig(
            model=str(model),
            device=arguments.device,
            dtype=arguments.dtype,
            max_model_len=self.llms["ngram"].info.max_model_len,
            max_num_seqs=4,
            num_threads=1,
        )
        self.recomputer = Recomputer(config, arguments.device == "cpu:reference", self.findings)
        self.recomputer.calibrate(self.llms["ngram"])
        self._gate = Gate()
        seeds = random.Random(arguments.seed)
        self._clients = [
            Client(llm, lane, seeds.getrandbits(32), self._gate, self.findings, self.recomputer.offer)
            for lane, llm in self.llms.items()
            for _ in range(arguments.clients)
        ]

    def run(self, seconds: float) -> None:
        self.recomputer.start()
        start = time.monotonic()
        for client in self._clients:
            client.start()
        while (passed := time.monotonic() - start) < seconds:
            time.sleep(min(REPORT_SECONDS, seconds - passed))
            if not self._rest(time.monotonic() - start):
                break
        self._gate.close()
        if not all(client.join(PATIENCE) for client in self._clients):
            self.findings.fail(f"a caller did not end within {PATIENCE:.0f} s")
        if not self.recomputer.finish(PATIENCE):
            self.findings.fail(f"recomputation did not end within {PATIENCE:.0f} s")

    def _rest(self, seconds: float) -> bool:
        """Parks the callers, looks at what is left, reports, and lets them go on."""
        if not self._gate.pause(PATIENCE):
            self.findings.fail(f"callers do not come back: nothing ended within {PATIENCE:.0f} s")
            return False
        for lane, llm in self.llms.items():
            stats = llm.stats()
            left = (stats.pages_used, stats.sequences_running, stats.sequences_waiting)
            if left != (0, 0, 0):
                self.findings.fail(f"{lane}: idle, and (pages, running, waiting) are {left}")
        reading = take_reading(seconds, self._device)
        self.readings.append(reading)
        self._gate.resume()
        counts = self.findings.counts
        print(
            f"{seconds:7.0f} s  {counts['requests']} requests, {counts['tokens']} tokens, {self.preemptions()} "
            f"preemptions, {counts['recomputed samples']} recomputed, {counts['near-ties']} near-ties, "
            f"{counts['failures']} failures; {reading.resident_mib:.1f} MiB, device {reading.device_mib:.0f} MiB, "
            f"{reading.threads} threads, {reading.files} files",
            flush=True,
        )
        return True

    def preemptions(self) -> int:
        return sum(llm.stats().preemptions for llm in self.llms.values())

    def check_reach(self) -> None:
        """A soak is worth what it reached."""
        counts = self.findings.counts
        for name in ("batches", "streams", "dropped streams", "refused", "recomputed samples", "preempted samples"):
            if counts[name] == 0:
                self.findings.fail(f"the soak reached no {name}")
        for lane, llm in self.llms.items():
            stats = llm.stats()
            if stats.preemptions == 0 or stats.accepted_tokens == 0 or stats.accepted_tokens == stats.drafted_tokens:
                self.findings.fail(f"{lane}: nothing preempted, accepted or rejected: {stats}")
            if stats.draft_failures:
                self.findings.fail(f"{lane}: {stats.draft_failures} failures of the drafter")


def report(soak: Soak, seconds: float, log: str) -> int:
    """Prints the summary. Returns the exit code."""
    findings = soak.findings
    soak.check_reach()
    line, grown = judge(soak.readings, warm_up_seconds=min(0.2 * seconds, 120.0), limits=Limits())
    for failure in grown:
        findings.fail(failure)
    if log.strip():
        findings.fail("written to the log: " + log.strip()[:2000])
    print("\n=== summary")
    for name in sorted(findings.counts):
        print(f"{name:20s} {findings.counts[name]}")
    for lane, llm in soak.llms.items():
        stats = llm.stats()
        print(
            f"{lane}: {stats.steps} steps, acceptance length {stats.acceptance_length:.2f}, {stats.preemptions} "
            f"preemptions, graphs: {stats.graph_replays} replays, {stats.graph_captures} captures, "
            f"{stats.graph_eager_passes} eager"
        )
    print(f"tolerance of a near-tie: {soak.recomputer.tolerance:.3g}")
    print(line)
    print("FAILED" if findings.failures else "passed")
    return 1 if findings.failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--device", default="cpu", help="cpu, cpu:reference or cuda:N")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--model", type=Path, help="a Hugging Face directory in float32; default: a small random model")
    parser.add_argument("--clients", type=int, default=6, help="callers of each LLM")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch_name:
        scratch = Path(scratch_name)
        model = arguments.model
        if model is None:
            from make_models import make_model

            model = make_model(scratch, "llama")
        draft = noisy_copy(model, scratch / "draft")
        log = scratch / "log"
        with log_in(log):
            soak = Soak(model, draft, arguments)
            print(f"{soak.llms['ngram'].info}\n{seconds:.0f} s, {2 * arguments.clients} callers", flush=True)
            soak.run(seconds)
        code = report(soak, seconds, log.read_text())
        for llm in soak.llms.values():
            llm.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
