"""What a model is given in a benchmark: a passage that fills any context, or real prompts from a file."""

from __future__ import annotations

from pathlib import Path

from fastspec import Tokenizer
from fastspec.bench.engine import Prompts
from fastspec.bench.sides import Point
from fastspec.errors import InvalidArgumentError


def passage_prompts(tokenizer: Tokenizer | None, text: str) -> Prompts:
    """The text over and over, for every sequence of a batch from another token on."""
    passage = list(range(3, 80)) if tokenizer is None else tokenizer.encode(text, False)

    def prompts(point: Point) -> list[list[int]]:
        rotated = [passage[i % len(passage) :] + passage[: i % len(passage)] for i in range(point.batch)]
        return [(ids * (1 + point.context // len(ids)))[: point.context] for ids in rotated]

    return prompts


def real_prompts(file: Path, vocab_size: int) -> Prompts:
    """The last tokens of the prompts of a file that `train prompts` wrote, kinds taking turns.

    Raises:
        InvalidArgumentError: when the file has too few prompts of a point's context.
    """
    from fastspec.train.documents import Documents

    documents = Documents.load(file, vocab_size)
    places = [(documents.kind == kind).nonzero().flatten().tolist() for kind in range(len(documents.kinds))]

    def prompts(point: Point) -> list[list[int]]:
        by_kind = [[ids for ids in map(documents.prompt, of_kind) if len(ids) >= point.context] for of_kind in places]
        longest = max(map(len, by_kind))
        turns = [of_kind[i] for i in range(longest) for of_kind in by_kind if i < len(of_kind)]
        if len(turns) < point.batch:
            raise InvalidArgumentError(
                f"{file} has {len(turns)} prompts of {point.context} tokens or more, a batch of {point.batch} asked for"
            )
        return [ids[-point.context :] for ids in turns[: point.batch]]

    return prompts
