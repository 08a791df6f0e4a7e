"""Continuations by the target itself, through the engine: what a drafter of that target should learn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fastspec import LLM, SamplingParams
from fastspec.errors import InvalidArgumentError
from fastspec.train.documents import Documents, until_repetition
from fastspec.train.options import GenerateOptions
from fastspec.train.rows import seeded

_WAVE = 8  # prompts of a call of generate(), in multiples of the sequences that run at once


def continue_prompts(
    target: Path, prompts: Documents, options: GenerateOptions, log: Callable[[str], None], progress: bool = True
) -> Documents:
    """Prompts with the target's continuations. Prompts without a continuation of two tokens are left out.

    Args:
        target: directory of the model.
        prompts: their given tokens are continued.
        options: see GenerateOptions.
        log: takes lines.
        progress: show the engine's progress bar.
    """
    longest = int(prompts.prompt_lengths.max()) + options.opening + options.max_new
    limit = json.loads((target / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    sequences: list[list[int]] = []
    given: list[int] = []
    kinds: list[str] = []
    with LLM(
        target,
        device=options.device,
        dtype=options.dtype,
        max_num_seqs=options.concurrency,
        max_batch_rows=max(512, 2 * options.concurrency),
        max_model_len=min(longest, limit),
    ) as llm:
        begun = previous = time.monotonic()
        wave = _WAVE * options.concurrency
        for first in range(0, len(prompts), wave):
            now = time.monotonic()
            # A wave that would end after the limit is not begun.
            if options.minutes and first and now - begun + (now - previous) > 60 * options.minutes:
                break
            previous = now
            indices = range(first, min(first + wave, len(prompts)))
            starts, continued = _wave(llm, prompts, list(indices), options, progress)
            for index, start, tokens in zip(indices, starts, continued, strict=True):
                end = until_repetition([*start, *tokens], len(start))
                if end - len(start) >= 2:
                    sequences.append([*start, *tokens][:end])
                    given.append(len(start))
                    kinds.append(prompts.kind_name(index))
            made = sum(map(len, sequences)) - sum(given)
            log(
                f"{indices.stop} of {len(prompts)} prompts, {made / 1e6:.2f}M tokens kept, "
                f"{made / (time.monotonic() - begun) / 1e3:.1f}K tokens/s"
            )
    if not sequences:
        raise InvalidArgumentError("no prompt has a continuation of two tokens or more")
    return Documents.of(sequences, given, kinds)


def _wave(
    llm: LLM, prompts: Documents, indices: list[int], options: GenerateOptions, progress: bool
) -> tuple[list[list[int]], list[list[int]]]:
    """(given tokens, continuation) of some prompts."""
    draws = [torch.rand(3, generator=seeded(options.seed, 6, index)).tolist() for index in indices]
    sampled = [draw[0] < options.sampled_share for draw in draws]
    starts = [prompts.prompt(index) for index in indices]
    if options.opening:
        opened = [i for i in range(len(indices)) if not sampled[i] and draws[i][2] < 0.5]
        params = [
            SamplingParams(
                temperature=1.0,
                seed=options.seed + indices[i],
                max_tokens=1 + int(draws[i][1] * options.opening),
            )
            for i in opened
        ]
        for i, output in zip(opened, llm.generate([starts[i] for i in opened], params, progress=progress), strict=True):
            if output.outputs[0].finish_reason == "length":
                starts[i] = starts[i] + output.token_ids
    params = [
        SamplingParams(
            temperature=options.temperature if is_sampled else 0.0,
            seed=options.seed + index,
            max_tokens=options.max_new,
        )
        for index, is_sampled in zip(indices, sampled, strict=True)
    ]
    outputs = llm.generate(starts, params, progress=progress)
    return starts, [output.token_ids for output in outputs]
