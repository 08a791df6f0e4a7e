"""The target's distribution against transformers, position by position, for every model family.

The engine is asked for one token after every prefix of a prompt, with the log-probabilities of the whole vocabulary, all
prefixes in one batch: chunked prompts, ragged rows and the paged cache are all on the way.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import GPU
from make_models import MODELS, make_model

from fastspec import LLM, SamplingParams

TOLERANCE = 1e-4  # largest difference, relative to the range of the logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def engine_log_probabilities(llm: LLM, token_ids: list[int], vocab_size: int, **options: int) -> np.ndarray:
    """Log-probabilities after every prefix, [len(token_ids), vocab_size]."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=vocab_size)
    prefixes = [token_ids[: length + 1] for length in range(len(token_ids))]
    result = np.full((len(token_ids), vocab_size), np.nan)
    for row, output in enumerate(llm.generate(prefixes, params, progress=False)):
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None
        for entry in logprobs[0].top:
            result[row, entry.token] = entry.logprob
    assert not np.isnan(result).any()
    return result


def relative_difference(seen: np.ndarray, logits: np.ndarray) -> float:
    return float(np.abs(seen - log_softmax(logits)).max() / (logits.max() - logits.min()))


@pytest.mark.parametrize("device", ["cpu", "cpu:reference", GPU])
@pytest.mark.parametrize("name", list(MODELS))
def test_meets_transformers(name: str, device: str, tmp_path: Path) -> None:
    directory = make_model(tmp_path, name)
    reference = json.loads((directory / "reference.json").read_text())
    logits = np.array(reference["logits"], dtype=np.float64)
    with LLM(directory, dtype="float32", device=device, max_batch_rows=100) as llm:
        seen = engine_log_probabilities(llm, reference["token_ids"], logits.shape[1])
    assert relative_difference(seen, logits) < TOLERANCE


def test_a_wrong_rotary_base_would_be_seen(tmp_path: Path) -> None:
    directory = make_model(tmp_path, "llama")
    reference = json.loads((directory / "reference.json").read_text())
    logits = np.array(reference["logits"], dtype=np.float64)
    config = json.loads((directory / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 1.05
    (directory / "config.json").write_text(json.dumps(config))
    with LLM(directory, dtype="float32") as llm:
        seen = engine_log_probabilities(llm, reference["token_ids"], logits.shape[1])
    assert relative_difference(seen, logits) > TOLERANCE
