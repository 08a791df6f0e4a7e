"""Token sequences with a kind each: prompts, and prompts with their continuations. One safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fastspec.errors import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec.train.files import write_tensors


@dataclass(frozen=True)
class Documents:
    """D token sequences.

    Attributes:
        tokens: int32, all sequences one after the other.
        starts: int64 [D + 1], where each begins and the last one ends.
        prompt_lengths: int32 [D], leading tokens that were given; the rest was generated. A text is all given.
        kind: int32 [D], index into `kinds`.
        kinds: names such as "prose".
    """

    tokens: torch.Tensor
    starts: torch.Tensor
    prompt_lengths: torch.Tensor
    kind: torch.Tensor
    kinds: tuple[str, ...]

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], prompt_lengths: Sequence[int], kinds: Sequence[str]) -> Documents:
        """From lists; `kinds` has one name a sequence."""
        names = tuple(sorted(set(kinds)))
        starts = torch.zeros(len(sequences) + 1, dtype=torch.int64)
        starts[1:] = torch.tensor([len(s) for s in sequences], dtype=torch.int64).cumsum(0)
        flat = [token for sequence in sequences for token in sequence]
        return Documents(
            torch.tensor(flat, dtype=torch.int32),
            starts,
            torch.tensor(prompt_lengths, dtype=torch.int32),
            torch.tensor([names.index(kind) for kind in kinds], dtype=torch.int32),
            names,
        )

    def __len__(self) -> int:
        """Number of sequences."""
        return int(self.kind.numel())

    def __getitem__(self, index: int) -> list[int]:
        """Tokens of one sequence."""
        found: list[int] = self.tokens[int(self.starts[index]) : int(self.starts[index + 1])].tolist()
        return found

    def prompt(self, index: int) -> list[int]:
        """The given tokens of one sequence."""
        return self[index][: int(self.prompt_lengths[index])]

    def kind_name(self, index: int) -> str:
        """Name of one sequence's kind."""
        return self.kinds[int(self.kind[index])]

    def select(self, indices: Iterable[int]) -> Documents:
        """Some of the sequences, in the order given."""
        chosen = list(indices)
        return Documents.of(
            [self[i] for i in chosen],
            [int(self.prompt_lengths[i]) for i in chosen],
            [self.kind_name(i) for i in chosen],
        )

    def by_kind(self, most: int) -> Documents:
        """The first `most` sequences of each kind."""
        return self.select(
            index
            for kind in range(len(self.kinds))
            for index in (self.kind == kind).nonzero().flatten().tolist()[:most]
        )

    def save(self, path: Path) -> None:
        """Writes the file; it appears whole or not at all."""
        tensors = {name: getattr(self, name).contiguous() for name in ("tokens", "starts", "prompt_lengths", "kind")}
        write_tensors(path, tensors, {"format": "fastspec documents 1", "kinds": json.dumps(self.kinds)})

    @staticmethod
    def load(path: Path, vocab_size: int) -> Documents:
        """Reads what save() wrote.

        Raises:
            NotFoundError, InvalidFileError: no such file, or another format.
            InvalidArgumentError: tokens that the target's vocabulary does not have.
        """
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise NotFoundError(f"{path}: no such file")
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != "fastspec documents 1":
                    raise InvalidFileError(f"{path} holds no documents (prompts, or what `train generate` writes)")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except SafetensorError as error:
            raise InvalidFileError(f"{path}: {error}") from error
        documents = Documents(**tensors, kinds=tuple(json.loads(metadata["kinds"])))
        if len(documents) and int(documents.tokens.max()) >= vocab_size:
            raise InvalidArgumentError(
                f"{path} has token {int(documents.tokens.max())}, the target a vocabulary of {vocab_size}: made with "
                "another tokenizer"
            )
        return documents


def concatenate(parts: Sequence[Documents]) -> Documents:
    """All sequences of all parts."""
    if len(parts) == 1:
        return parts[0]
    return Documents.of(
        [part[i] for part in parts for i in range(len(part))],
        [int(length) for part in parts for length in part.prompt_lengths],
        [part.kind_name(i) for part in parts for i in range(len(part))],
    )


def until_repetition(tokens: Sequence[int], begin: int, gram: int = 16) -> int:
    """Length of `tokens` up to where a `gram`-gram that ends behind `begin` occurs a second time; small models loop."""
    seen: set[tuple[int, ...]] = set()
    for end in range(gram, len(tokens) + 1):
        window = tuple(tokens[end - gram : end])
        if window in seen and end > begin:
            return end - 1
        seen.add(window)
    return len(tokens)
