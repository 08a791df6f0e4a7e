"""Texts for training and evaluation: .txt and .jsonl files, token by token or as prompts cut from them.

A line of a .jsonl file is an object with "text", "prompt" or "messages" (a conversation, for the chat template), and
optionally "kind"; without one the kind is the file's name without its ending.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastspec.chat import ChatTemplate
from fastspec.errors import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec.train.documents import Documents

Encode = Callable[[str, bool], Sequence[int]]
"""(text, add special tokens) -> token ids."""


@dataclass(frozen=True)
class Text:
    """One record. `whole`: a prompt as it is, not a text to cut prompts from."""

    kind: str
    text: str
    whole: bool = False


def read_texts(paths: Iterable[Path], target: Path) -> list[Text]:
    """Reads files; conversations are rendered by the target's chat template.

    Raises:
        NotFoundError: a file is not there, or there are conversations and the target has no template.
        InvalidFileError: a file is malformed or empty; names the line.
        InvalidArgumentError: a file of another kind.
    """
    template: ChatTemplate | None = None
    texts: list[Text] = []
    for path in paths:
        if not path.is_file():
            raise NotFoundError(f"{path}: no such file")
        if path.suffix not in (".txt", ".jsonl"):
            raise InvalidArgumentError(f"{path}: expected .txt, .jsonl or .safetensors")
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidFileError(f"{path}: no UTF-8 text: {error}") from error
        found: list[Text] = []
        if path.suffix == ".txt":
            found.append(Text(path.stem, content))
        else:
            for number, line in enumerate(content.split("\n"), 1):
                if line.strip():
                    record = _record(line, f"{path}, line {number}")
                    if "messages" in record and template is None:
                        template = ChatTemplate.load(target)
                    found.append(_text(record, path.stem, template, f"{path}, line {number}"))
        if not any(text.text.strip() for text in found):
            raise InvalidFileError(f"{path} is empty")
        texts += [text for text in found if text.text.strip()]
    return texts


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{where}: {error}") from error
    if not isinstance(record, dict):
        raise InvalidFileError(f"{where}: expected an object")
    return record


def _text(record: dict[str, Any], stem: str, template: ChatTemplate | None, where: str) -> Text:
    kind = record.get("kind", stem)
    if not isinstance(kind, str):
        raise InvalidFileError(f"{where}: kind is no text")
    if "messages" in record:
        assert template is not None
        try:
            return Text(kind, template.render(record["messages"]), whole=True)
        except (InvalidArgumentError, TypeError) as error:
            raise InvalidFileError(f"{where}: {error}") from error
    for name in ("prompt", "text"):
        if name in record:
            if not isinstance(record[name], str):
                raise InvalidFileError(f"{where}: {name} is no text")
            return Text(kind, record[name], whole=name == "prompt")
    raise InvalidFileError(f'{where}: expected "text", "prompt" or "messages"')


def joined(texts: Sequence[Text]) -> list[Text]:
    """The texts of each kind as one, in the order given, so that long prompts can be cut. Leaves out whole prompts."""
    kinds = sorted({text.kind for text in texts if not text.whole})
    parts = {kind: [text.text for text in texts if text.kind == kind and not text.whole] for kind in kinds}
    return [Text(kind, "\n\n\n".join(parts[kind])) for kind in kinds]


def whole_documents(texts: Sequence[Text], encode: Encode) -> Documents:
    """Every text as one document, all of it given."""
    sequences = [list(encode(text.text, not text.whole)) for text in texts]
    return Documents.of(sequences, [len(s) for s in sequences], [text.kind for text in texts])


def cut_prompts(
    texts: Sequence[Text], encode: Encode, each: int, shortest: int, longest: int, seed: int, repeat: bool = False
) -> Documents:
    """Prompts of every kind, in an order in which the kinds alternate.

    Texts are cut at line starts drawn evenly over all their characters; prompts that are whole stay whole and are left
    out when they are longer than `longest`.

    Args:
        texts: the sources.
        encode: the target's tokenizer.
        each: prompts of each kind; there may be fewer, where the texts do not hold as many.
        shortest, longest: tokens of a prompt.
        seed: of the choice.
        repeat: take whole prompts more than once where there are fewer than `each`.

    Raises:
        InvalidArgumentError: no prompt at all.
    """
    generator = random.Random(seed)
    by_kind: dict[str, list[list[int]]] = {}
    for kind in sorted({text.kind for text in texts}):
        whole = [text.text for text in texts if text.kind == kind and text.whole]
        longer = [text.text for text in texts if text.kind == kind and not text.whole]
        # Where a kind has both, each gives in proportion to what it holds, a text counting as many prompts as fit.
        fitting = sum(len(text) // (4 * longest) + 1 for text in longer)
        from_whole = each if not longer else round(each * len(whole) / (len(whole) + fitting))
        prompts = _whole_prompts(whole, encode, from_whole, longest, generator, repeat)
        prompts += _cut(longer, encode, each - len(prompts), shortest, longest, generator)
        generator.shuffle(prompts)
        by_kind[kind] = prompts
    most = max((len(prompts) for prompts in by_kind.values()), default=0)
    chosen = [(kind, prompts[i]) for i in range(most) for kind, prompts in by_kind.items() if i < len(prompts)]
    if not chosen:
        raise InvalidArgumentError(f"the texts hold no prompt of {shortest} to {longest} tokens")
    return Documents.of([p for _, p in chosen], [len(p) for _, p in chosen], [kind for kind, _ in chosen])


def _whole_prompts(
    texts: Sequence[str], encode: Encode, wanted: int, longest: int, generator: random.Random, repeat: bool
) -> list[list[int]]:
    order = list(texts)
    generator.shuffle(order)
    found: list[list[int]] = []
    for text in order:
        if len(found) == wanted:
            break
        tokens = list(encode(text, False))
        if len(tokens) <= longest:
            found.append(tokens)
    while repeat and found and len(found) < wanted:
        found += found[: wanted - len(found)]
    return found


def _cut(
    texts: Sequence[str], encode: Encode, wanted: int, shortest: int, longest: int, generator: random.Random
) -> list[list[int]]:
    if not texts or wanted <= 0:
        return []
    found: list[list[int]] = []
    chosen = generator.choices(texts, weights=[len(text) for text in texts], k=4 * wanted)
    for text in chosen:
        if len(found) == wanted:
            break
        place = generator.randrange(len(text))
        begin = text.rfind("\n", 0, place) + 1
        length = generator.randint(shortest, longest)
        tokens = list(encode(text[begin : begin + 8 * length], True))[:length]
        if len(tokens) == length:
            found.append(tokens)
    return found
