"""The engine's DFlash blocks against dflash.py, on small random models.

    python check_dflash.py PROGRAM [CASE]

PROGRAM is fastspec_print_trees; CASE is part of a case's name. Every token that was proposed must be the reference's
wherever its score and the next lie further apart than rounding. Exits with 77 where torch or transformers is missing.
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

from dflash import Context, DFlash
from longspec import Rule

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from make_dflash import make_random

transformers.utils.logging.disable_progress_bar()

VOCAB_SIZE = 320
LAYERS, HIDDEN, INNER = 7, 64, 96
ROUNDING = 5e-5  # of a score, from float32 logits


@dataclass
class Case:
    name: str
    drafter: dict[str, Any] = field(default_factory=dict)  # of make_random
    prompts: list[int] = field(default_factory=lambda: [40])  # lengths
    max_tokens: int = 24
    engine: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    preempts: bool = False

    def context(self) -> Context:
        names = {"window": "window", "sinks": "sinks", "rebase_positions": "rebases"}
        return Context(**{names[key]: value for key, value in self.speculation.items() if key in names})


NOISE = {"temperature": 0.8}
SLIDING = {"layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
           "sliding_window": 40}  # fmt: skip
SMALL_POOL = {"kv_cache_bytes": 23 * 16 * (896 + 256), "max_model_len": 160}  # of target and drafter
CASES = [
    Case("two layers"),
    Case("two layers, coupled", sampling=NOISE),
    Case("one layer, names with a prefix", drafter={"layers": 1, "prefix": "model."}),
    Case("shape of its own", drafter={"layers": 3, "block": 16, "num_attention_heads": 6, "num_key_value_heads": 3,
                                      "head_dim": 24, "intermediate_size": 80,
                                      "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}),
    Case("one K/V head, biases", drafter={"num_key_value_heads": 1, "attention_bias": True}),
    Case("other features", drafter={"target_layers": [0, 2, 3, 5]}, sampling=NOISE),
    Case("prompts in chunks", prompts=[350, 70, 3, 1], engine={"max_batch_rows": 50}),
    Case("several together, coupled", prompts=[1, 2, 40, 17, 90], sampling=NOISE),
    Case("sliding layers", drafter=SLIDING, prompts=[30, 150], max_tokens=40),
    Case("window", prompts=[5, 100, 33], max_tokens=60, speculation={"window": 32}),
    Case("window and sinks", prompts=[5, 100, 30], max_tokens=60, speculation={"window": 21, "sinks": 5}),
    Case("rebased positions", prompts=[2, 100, 24], max_tokens=60, engine={"max_batch_rows": 40},
         speculation={"window": 21, "sinks": 5, "rebase_positions": True}),
    Case("sliding layers under a window", drafter=SLIDING, prompts=[80], max_tokens=40, speculation={"window": 32}),
    Case("fewer proposals than the block has", drafter={"block": 12}, speculation={"max_draft_tokens": 5}),
    Case("samples of a prompt", prompts=[50], sampling={**NOISE, "n": 3}),
    Case("samples of a prompt, window", prompts=[50], sampling={**NOISE, "n": 3}, engine={"max_num_seqs": 2},
         speculation={"window": 20, "sinks": 3, "rebase_positions": True}),
    Case("filters", sampling={"temperature": 1.0, "top_k": 50, "top_p": 0.95, "min_p": 0.001}),
    Case("penalties and bias", sampling={
        "temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2,
        "logit_bias": [[5, 2.0], [17, -1.0], [40, 1.5]]}),
    Case("preemption and resume", prompts=[60, 75, 50], max_tokens=60, preempts=True, engine=SMALL_POOL),
    Case("preemption and resume, window", prompts=[60, 75, 50], max_tokens=60, preempts=True,
         engine={"kv_cache_bytes": 23 * 16 * 896, "max_model_len": 160}, speculation={"window": 20, "sinks": 3}),
]  # fmt: skip


def make_target(directory: Path) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, max_position_embeddings=1024,
        initializer_range=0.15, bos_token_id=None, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
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
    config = {"model": str(work / "target"), "device": "cpu:reference", "max_num_seqs": 2 * len(case.prompts),
              "speculation": {"drafter": f"dflash:{work / 'drafter'}", **case.speculation}}  # fmt: skip
    (work / "config.json").write_text(json.dumps({**config, **case.engine}))
    (work / "requests.json").write_text(json.dumps(requests))
    command = [program, str(work / "config.json"), str(work / "requests.json")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return requests, [json.loads(line) for line in result.stdout.splitlines()]


@dataclass
class Seen:
    equal: int = 0
    undecided: int = 0  # by float32
    blocks: int = 0


def compare(drafter: DFlash, case: Case, request: dict[str, Any], output: dict[str, Any],
            trees: list[dict[str, Any]], seen: Seen) -> str:  # fmt: skip
    """Empty, or what is wrong with the trees of one sample."""
    prompt = request["prompt_token_ids"]
    tokens = prompt + output["output"]
    features = drafter.features(tokens)
    names = {name: value for name, value in request.items() if name not in ("prompt_token_ids", "max_tokens", "n")}
    rule = Rule(prompt=prompt, sample=output["sample"], **names)
    most = min(drafter.block_size - 1, case.speculation.get("max_draft_tokens", drafter.block_size))
    for tree in trees:
        length = tree["root_position"] + 1
        count = min(most, case.max_tokens - (length - len(prompt)) - 1)
        proposed = tree["tokens"][1:]
        if length == len(prompt) or count == 0:
            continue  # the last chunk of a prompt: nothing is drafted behind it
        # Small engines cut proposals for want of rows or pages.
        if len(proposed) > count or (len(proposed) < count and not case.engine):
            return f"root at {length - 1}: {len(proposed)} proposals, expected {count}"
        if tree["parents"] != list(range(-1, len(proposed))):
            return f"root at {length - 1}: no chain: {tree['parents']}"
        expected = drafter.draft(tokens[:length], features, count, rule)
        seen.blocks += 1
        for token, wanted, gap in zip(proposed, expected.tokens, expected.gaps, strict=False):
            if gap < ROUNDING:
                seen.undecided += 1
            elif token != wanted:
                return f"root at {length - 1}: seen {proposed}, expected {expected.tokens} (gap {gap:.1e})"
            else:
                seen.equal += 1
    return ""


@torch.no_grad()
def check(program: str, case: Case) -> str:
    """Empty, or what is wrong."""
    torch.manual_seed(len(case.name))
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        target = make_target(work / "target")
        make_random(work / "drafter", json.loads((work / "target" / "config.json").read_text()), **case.drafter)
        requests, lines = run_engine(program, case, work)
        drafter = DFlash(work / "drafter", target, case.context())
    preemptions = next(line["preemptions"] for line in lines if "preemptions" in line)
    if case.preempts and preemptions == 0:
        return "nothing was preempted"
    for request in requests:
        for output in (line for line in lines if "output" in line and line["seed"] == request["seed"]):
            trees = [tree for tree in lines if "tokens" in tree and tree["seed"] == request["seed"]
                     and tree["sample"] == output["sample"]]  # fmt: skip
            fault = compare(drafter, case, request, output, trees, seen)
            if fault:
                return fault
    print(f"{case.name}: {seen.equal} tokens of {seen.blocks} blocks equal, {seen.undecided} undecided by float32, "
          f"{preemptions} preemptions", flush=True)  # fmt: skip
    return "" if seen.equal > 50 * max(1, seen.undecided) else "too few tokens"


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
