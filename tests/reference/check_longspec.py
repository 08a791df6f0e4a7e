"""The engine's LongSpec trees against longspec.py, on small random models.

    python check_longspec.py PROGRAM [CASE]

PROGRAM is fastspec_print_trees; CASE is part of a case's name. Every tree that was verified must be the reference's, tokens and parents, wherever the
scores that decide it lie further apart than rounding. Exits with 77 where torch or transformers is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from longspec import LongSpec, Rule

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from make_longspec import make_random

transformers.utils.logging.disable_progress_bar()

VOCAB_SIZE = 320
HIDDEN, HEADS, KV_HEADS, INNER = 64, 4, 2, 96
TREE = [4, 16, 16, 16, 16]
ROUNDING = 5e-5  # of a score: a sum of five logarithms from float32 logits


@dataclass
class Case:
    name: str
    family: str = "llama"
    widths: list[int] = field(default_factory=lambda: TREE)
    prompts: list[int] = field(default_factory=lambda: [40])  # lengths
    max_tokens: int = 16
    engine: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    longspec: dict[str, Any] | None = None
    vocabulary: int = 0  # tokens of a draft vocabulary; 0 = none
    prefix: str = ""
    preempts: bool = False


NOISE = {"temperature": 0.8}
CASES = [
    Case("default tree"),
    Case("default tree, coupled", sampling=NOISE),
    Case("chain", widths=[1, 1, 1, 1], max_tokens=40),
    Case("chain, coupled", widths=[1, 1, 1, 1], max_tokens=40, sampling=NOISE),
    Case("Qwen2 target, names with a prefix", family="qwen2", prefix="draft_model."),
    Case("Qwen2 target, coupled", family="qwen2", sampling=NOISE),
    Case("prompt longer than the window, in chunks", prompts=[611], engine={"max_batch_rows": 100}),
    Case("growing over the window, coupled", prompts=[500], max_tokens=40, sampling=NOISE),
    Case("short window and final norm", longspec={"version": 1, "window": 9, "final_norm": True}, max_tokens=30),
    Case("draft vocabulary", vocabulary=90),
    Case("draft vocabulary, coupled, final norm", vocabulary=90, sampling=NOISE,
         longspec={"version": 1, "final_norm": True}),
    Case("filters", sampling={"temperature": 1.0, "top_k": 50, "top_p": 0.95, "min_p": 0.001}),
    Case("penalties and bias", vocabulary=200, sampling={
        "temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2,
        "logit_bias": [[5, 2.0], [17, -1.0], [40, 1.5]]}),
    Case("penalties and bias, greedy", sampling={
        "temperature": 0, "repetition_penalty": 1.2, "presence_penalty": 0.3, "logit_bias": [[5, 2.0]]}),
    Case("preemption and resume", widths=[3, 5, 4], prompts=[60, 75, 50], max_tokens=60, preempts=True,
         engine={"kv_cache_bytes": 19 * 16 * 768, "max_model_len": 160}),
    Case("preemption and resume, coupled", widths=[3, 5, 4], prompts=[60, 75, 50], max_tokens=60, preempts=True,
         sampling=NOISE, engine={"kv_cache_bytes": 19 * 16 * 768, "max_model_len": 160}),
]  # fmt: skip


def make_target(family: str, directory: Path) -> Any:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}  # fmt: skip
    options = {
        "vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 3,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 1024, "initializer_range": 0.15, "bos_token_id": None, "eos_token_id": 0,
        "tie_word_embeddings": family == "qwen2",
    }  # fmt: skip
    if family == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options, rope_parameters=rope))
    else:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**options))
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name.endswith("proj.bias"):
                    value.normal_(0, 0.3)
    model.eval().save_pretrained(directory)
    return model


def run_engine(program: str, case: Case, work: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Requests and the program's lines."""
    random = np.random.default_rng(len(case.name))
    requests = [
        {"temperature": 0, "seed": 7 + i, "max_tokens": case.max_tokens,
         "prompt_token_ids": random.integers(1, VOCAB_SIZE, length).tolist(), **case.sampling}
        for i, length in enumerate(case.prompts)
    ]  # fmt: skip
    config = {"model": str(work / "target"), "device": "cpu:reference", "max_num_seqs": len(case.prompts),
              "speculation": {"drafter": f"longspec:{work / 'drafter'}", "tree_widths": case.widths}}  # fmt: skip
    (work / "config.json").write_text(json.dumps({**config, **case.engine}))
    (work / "requests.json").write_text(json.dumps(requests))
    command = [program, str(work / "config.json"), str(work / "requests.json")]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return requests, [json.loads(line) for line in result.stdout.splitlines()]


@torch.no_grad()
def check(program: str, case: Case) -> str:
    """Empty, or what is wrong."""
    torch.manual_seed(len(case.name))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        target = make_target(case.family, work / "target")
        config = json.loads((work / "target" / "config.json").read_text())
        make_random(work / "drafter", config, case.longspec, case.vocabulary, case.prefix)
        requests, lines = run_engine(program, case, work)
        drafter = LongSpec(work / "drafter", target)
    outputs = {line["seed"]: line["output"] for line in lines if "output" in line}
    preemptions = next(line["preemptions"] for line in lines if "preemptions" in line)
    if case.preempts and preemptions == 0:
        return "nothing was preempted"
    compared = ties = 0
    for request in requests:
        prompt = request["prompt_token_ids"]
        tokens = prompt + outputs[request["seed"]]
        target_kv = drafter.target_kv(tokens)
        names = {name: value for name, value in request.items() if name not in ("prompt_token_ids", "max_tokens")}
        rule = Rule(prompt=prompt, **names)
        for tree in lines:
            if tree.get("seed") != request["seed"] or len(tree.get("tokens", [])) < 2:
                continue
            length = tree["root_position"] + 1
            depth = min(len(case.widths), case.max_tokens - (length - len(prompt)) - 1)
            expected = drafter.draft(tokens[:length], target_kv, case.widths[:depth], rule)
            if len(tree["tokens"]) < len(expected.tokens) and case.preempts:
                continue  # cut for want of rows or pages
            if expected.smallest_gap < ROUNDING:
                ties += 1
            elif (tree["tokens"], tree["parents"]) != (expected.tokens, expected.parents):
                return (
                    f"root at {length - 1}: seen {tree['tokens']} below {tree['parents']}, "
                    f"expected {expected.tokens} below {expected.parents} (gap {expected.smallest_gap:.1e})"
                )
            else:
                compared += 1
    print(f"{case.name}: {compared} trees equal, {ties} undecided by float32, {preemptions} preemptions", flush=True)
    return "" if compared > 4 * max(1, ties) else "too few trees"


def main() -> int:
    torch.set_num_threads(1)
    failed = False
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    for case in (case for case in CASES if wanted in case.name):
        fault = check(sys.argv[1], case)
        if fault:
            print(f"{case.name}: FAILED: {fault}", flush=True)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
