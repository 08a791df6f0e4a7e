"""Prompts of profiles and quality reports: cut from texts, with needles in them, continued by the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastspec import LLM, Tokenizer
from fastspec.errors import InvalidArgumentError
from fastspec.sparse.bars import over
from fastspec.sparse.needles import Haystack, Needle, Probe
from fastspec.sparse.options import ProfileOptions, QualityOptions
from fastspec.sparse.trajectories import ROWS, Trajectory, decode
from fastspec.train.documents import Documents, concatenate
from fastspec.train.texts import Text, cut_prompts, joined


@dataclass(frozen=True)
class Prompts:
    """Texts, one of each kind, and prompts cut from them."""

    texts: list[Text]
    documents: Documents


def cut(texts: Sequence[Text], target: Path, contexts: Sequence[int], each: int, seed: int) -> Prompts:
    """`each` prompts of every kind and length, cut across the texts of a kind."""
    whole = joined(texts)
    if not whole:
        raise InvalidArgumentError("the texts hold prompts only: long contexts are cut from texts")
    tokenizer = Tokenizer.load(target)
    parts = [cut_prompts(whole, tokenizer.encode, each, length, length, seed) for length in contexts]
    return Prompts(whole, concatenate(parts))


def split(texts: Sequence[Text], share: float) -> tuple[list[Text], list[Text]]:
    """Each kind's text, cut in two at a line: `share` of it, and the rest."""
    parts: tuple[list[Text], list[Text]] = ([], [])
    for text in joined(texts):
        place = text.text.find("\n", int(share * len(text.text))) + 1
        parts[0].append(Text(text.kind, text.text[:place]))
        parts[1].append(Text(text.kind, text.text[place:]))
    return parts


def hay_probes(
    texts: Sequence[Text],
    target: Path,
    lengths: Sequence[int],
    depths: Sequence[float],
    each: int,
    needles: Callable[[random.Random], list[Needle]],
    seed: int,
) -> list[Probe]:
    """`each` probes of every length and depth, their hay cut anywhere from the texts."""
    haystack = Haystack(texts, target)
    generator = random.Random(seed)
    return [
        haystack.probe(needles(generator), length, depth, generator)
        for length in lengths
        for depth in depths
        for _ in range(each)
    ]


def decode_prompts(
    llm: LLM,
    documents: Documents,
    options: ProfileOptions | QualityOptions,
    has_drafter: bool,
    shown: bool | None = None,
) -> list[Trajectory]:
    """Trajectories with the steps that the options ask for, behind a progress bar.

    Raises:
        InvalidArgumentError: no continuation is long enough for a step.
    """
    rows = options.rows or (0 if has_drafter else ROWS)
    found = list(over(decode(llm, documents, options.max_tokens, rows), len(documents), "decoding", shown))
    if not found:
        raise InvalidArgumentError("no continuation is long enough for a step: raise --max-tokens")
    return found
