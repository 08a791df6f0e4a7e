"""The demo model itself, SmolLM2-135M-Instruct, against transformers on the same device: logits at prompt positions and
behind them, 64 greedy tokens on 20 prompts, speculation against plain decoding, and how far bfloat16 agrees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import GPU

from fastspec import LLM, DrafterConfig, RequestOutput, RequestSpeculation, SamplingParams

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "Water boils at a temperature of",
    "The three laws of motion are",
    "To bake a loaf of bread, first",
    "SELECT name, age FROM",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8,",
    "The main difference between a list and a tuple in Python is",
    "In 1969, the first humans",
    "Q: What is photosynthesis?\nA:",
    "<html>\n<head>\n<title>",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Translate to French: Good morning.\n",
    "import numpy as np\n\nx = np.",
    "A haiku about autumn:\n",
    "The patient was admitted with",
    "for (int i = 0; i < n; i++) {",
    "Il était une fois",
]
TIE = 1e-3  # logits closer than this are a tie in float32
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module", params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model_dir() -> str:
    fetch = Path(__file__).resolve().parents[2] / "tools" / "fetch_demo_model.py"
    printed = subprocess.run([sys.executable, str(fetch)], check=True, capture_output=True, text=True).stdout
    return printed.strip().splitlines()[-1]


def load_reference(model_dir: str, device: str, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Without TF32, whose products have 10 bits."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager")
    return model.eval().to(device)


@pytest.fixture(scope="module")
def reference(model_dir: str, device: str) -> transformers.PreTrainedModel:
    return load_reference(model_dir, device, torch.float32)


def reference_logits(reference: transformers.PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return reference(torch.tensor([token_ids], device=reference.device)).logits[0].double().cpu().numpy()


def continuation_logits(reference: transformers.PreTrainedModel, output: RequestOutput) -> np.ndarray:
    """transformers' logits for every token of an output, given the tokens before it."""
    count = len(output.token_ids)
    return reference_logits(reference, [*output.prompt_token_ids, *output.token_ids[:-1]])[-count:]


def log_probabilities(output: RequestOutput, vocab_size: int) -> np.ndarray:
    """[tokens, vocab_size] of an output that asked for all of them."""
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    seen = np.full((len(logprobs), vocab_size), np.nan)
    for position, entry in enumerate(logprobs):
        seen[position, [top.token for top in entry.top]] = [top.logprob for top in entry.top]
    return seen


def assert_close(seen: np.ndarray, logits: np.ndarray) -> None:
    expected = torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()
    difference = np.abs(seen - expected).max(axis=-1) / (logits.max(axis=-1) - logits.min(axis=-1))
    print(f"largest difference {difference.max():.2e} of the logits' range")
    assert (difference < 1e-4).all()


def test_greedy_tokens_equal_transformers(model_dir: str, device: str, reference: transformers.PreTrainedModel) -> None:
    with LLM(model_dir, dtype="float32", device=device) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, progress=False)
    ties = 0
    for output in outputs:
        assert len(output.token_ids) == 64
        # transformers' greedy choice at every position of our own continuation: equal everywhere, or a tie.
        logits = continuation_logits(reference, output)
        for position, token in enumerate(output.token_ids):
            margin = logits[position].max() - logits[position, token]
            assert margin < TIE, f"{output.prompt!r}: token {position} is {margin} below transformers' choice"
            ties += int(margin > 0)
    print(f"{ties} ties in {64 * len(PROMPTS)} tokens")
    assert ties <= 2


def test_logits_meet_transformers(model_dir: str, device: str, reference: transformers.PreTrainedModel) -> None:
    vocab_size = reference.config.vocab_size
    with LLM(model_dir, dtype="float32", device=device, max_batch_rows=64) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=vocab_size, ignore_eos=True)
        for output in llm.generate(PROMPTS[:6], params, progress=False):
            assert_close(log_probabilities(output, vocab_size), continuation_logits(reference, output))


def test_logits_at_prompt_positions_meet_transformers(
    model_dir: str, device: str, reference: transformers.PreTrainedModel
) -> None:
    vocab_size = reference.config.vocab_size
    with LLM(model_dir, dtype="float32", device=device, max_batch_rows=64) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=vocab_size)
        for prompt in (PROMPTS[2], PROMPTS[9]):
            token_ids = llm.tokenizer.encode(prompt)
            prefixes = [token_ids[: length + 1] for length in range(len(token_ids))]
            outputs = llm.generate(prefixes, params, progress=False)
            seen = np.concatenate([log_probabilities(output, vocab_size) for output in outputs])
            assert_close(seen, reference_logits(reference, token_ids))


def test_ngram_speculation_equals_plain_decoding(model_dir: str, device: str) -> None:
    params = [
        GREEDY if i % 2 == 0 else SamplingParams(temperature=0.8, seed=i, max_tokens=64, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]
    with LLM(model_dir, dtype="float32", device=device) as llm:
        plain = llm.generate(PROMPTS, params, progress=False)
    with LLM(model_dir, DrafterConfig(kind="ngram", ngram_min=1), dtype="float32", device=device) as llm:
        drafted = llm.generate(PROMPTS, params, progress=False)
        stats = llm.stats()
    print(stats)
    parted = [a for a, b in zip(plain, drafted, strict=True) if a.token_ids != b.token_ids]
    print(f"{len(parted)} of {len(PROMPTS)} outputs part at a near-tie")
    assert all(output.outputs[0].min_margin < TIE for output in parted)
    assert len(parted) <= 1
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    if device != "cpu":
        assert stats.graph_replays > stats.graph_captures > 0


def test_the_shipped_drafter_drafts_and_changes_nothing(model_dir: str, device: str) -> None:
    params = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=32) for i in range(6)]
    with LLM(model_dir, "longspec:SmolLM2-135M-Instruct", dtype="float32", device=device, max_batch_rows=1024) as llm:
        without = RequestSpeculation(enabled=False)
        plain = llm.generate(PROMPTS[:6], params, speculation=without, progress=False)
        drafted = llm.generate(PROMPTS[:6], params, progress=False)
        print(llm.stats())
    parted = [a for a, b in zip(plain, drafted, strict=True) if a.token_ids != b.token_ids]
    assert all(output.outputs[0].min_margin < TIE for output in parted)
    assert len(parted) <= 1
    stats = [output.outputs[0].stats for output in drafted]
    tau = sum(s.decoding_tokens for s in stats if s) / sum(s.decoding_passes for s in stats if s)
    assert tau > 2  # weights that have learned nothing: 1.0 to 1.2


def test_bfloat16_agrees(model_dir: str, device: str, reference: transformers.PreTrainedModel) -> None:
    with LLM(model_dir, dtype="bfloat16", device=device) as llm:
        outputs = llm.generate(PROMPTS if device != "cpu" else PROMPTS[:3], GREEDY, progress=False)
    narrow = load_reference(model_dir, device, torch.bfloat16)
    count = 64 * len(outputs)
    agreed = {"float32": 0, "bfloat16": 0}
    both = 0  # transformers with itself in the two types
    for output in outputs:
        tokens = np.array(output.token_ids)
        wide_choice = continuation_logits(reference, output).argmax(axis=-1)
        narrow_choice = continuation_logits(narrow, output).argmax(axis=-1)
        agreed["float32"] += int((wide_choice == tokens).sum())
        agreed["bfloat16"] += int((narrow_choice == tokens).sum())
        both += int((wide_choice == narrow_choice).sum())
    print(f"greedy choices of transformers that are ours in bfloat16: {agreed} of {count}; its own two types: {both}")
    # We are as near to float32 as transformers' own bfloat16 is, up to chance.
    assert agreed["float32"] >= both - 0.03 * count
    assert min(agreed.values()) > 0.9 * count
