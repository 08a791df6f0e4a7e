"""The demo model itself, SmolLM2-135M-Instruct, against transformers in float32: logits, and 64 greedy tokens on 20 prompts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from fastspec import LLM, SamplingParams

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


@pytest.fixture(scope="module")
def model_dir() -> str:
    fetch = Path(__file__).resolve().parents[2] / "tools" / "fetch_demo_model.py"
    printed = subprocess.run([sys.executable, str(fetch)], check=True, capture_output=True, text=True).stdout
    return printed.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def reference(model_dir: str) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def reference_logits(reference: transformers.PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return reference(torch.tensor([token_ids])).logits[0].double().numpy()


def test_greedy_tokens_equal_transformers(model_dir: str, reference: transformers.PreTrainedModel) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(model_dir, dtype="float32") as llm:
        outputs = llm.generate(PROMPTS, params, progress=False)
    ties = 0
    for output in outputs:
        tokens = output.outputs[0].token_ids
        assert len(tokens) == 64
        # transformers' greedy choice at every position of our own continuation: equal everywhere, or a tie.
        logits = reference_logits(reference, [*output.prompt_token_ids, *tokens[:-1]])[-64:]
        for position, token in enumerate(tokens):
            margin = logits[position].max() - logits[position, token]
            assert margin < TIE, f"{output.prompt!r}: token {position} is {margin} below transformers' choice"
            ties += int(margin > 0)
    print(f"{ties} ties in {64 * len(PROMPTS)} tokens")
    assert ties <= 2


def test_logits_meet_transformers(model_dir: str, reference: transformers.PreTrainedModel) -> None:
    vocab_size = reference.config.vocab_size
    with LLM(model_dir, dtype="float32", max_batch_rows=64) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=vocab_size, ignore_eos=True)
        outputs = llm.generate(PROMPTS[:6], params, progress=False)
    for output in outputs:
        tokens = output.outputs[0].token_ids
        logits = reference_logits(reference, [*output.prompt_token_ids, *tokens[:-1]])[-4:]
        expected = torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()
        assert output.outputs[0].logprobs is not None
        for position, entry in enumerate(output.outputs[0].logprobs):
            seen = np.zeros(vocab_size)
            for top in entry.top:
                seen[top.token] = top.logprob
            difference = np.abs(seen - expected[position]).max()
            assert difference < 1e-4 * (logits[position].max() - logits[position].min())
