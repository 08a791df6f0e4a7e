"""LongBench and PG-19 as directories on disk: what their files hold, and how answers are scored. English only.

LongBench (arXiv 2308.14508): `NAME.jsonl`, or `data/NAME.jsonl`, with "input", "context", "answers", "all_classes";
its authors' prompts and lengths of answers, `config/dataset2prompt.json` and `config/dataset2maxlen.json`, are taken
where they are there. PG-19 (arXiv 1911.05507): books as `test/*.txt`, or `*.txt`.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastspec import Tokenizer
from fastspec.errors import InvalidFileError, NotFoundError
from fastspec.sparse.needles import chat_frame
from fastspec.sparse.quality import Question
from fastspec.train.texts import Text

Metric = Callable[[str, str, Sequence[str]], float]
"""(answer, expected, all classes) -> 0 to 1."""

_PLAIN_PROMPT = "{context}\n\n{input}"
_PLAIN_MOST = 64
_NO_CHAT = ("trec", "triviaqa", "samsum", "lcc", "repobench-p")  # few-shot and code: continued, not asked
_FIRST_LINE = ("trec", "triviaqa", "samsum")


def normalised(text: str) -> list[str]:
    """Lower-case words without punctuation and articles, as question answering is scored."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def word_f1(answer: str, expected: str, _classes: Sequence[str] = ()) -> float:
    """F1 over normalised words."""
    found, wanted = normalised(answer), normalised(expected)
    same = sum((Counter(found) & Counter(wanted)).values())
    return 2 * same / (len(found) + len(wanted)) if same else 0.0


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def rouge_l(answer: str, expected: str, _classes: Sequence[str] = ()) -> float:
    """F1 of the longest common subsequence of words."""
    found, wanted = answer.split(), expected.split()
    return 2 * _common(found, wanted) / (len(found) + len(wanted)) if found and wanted else 0.0


def edit_similarity(answer: str, expected: str, _classes: Sequence[str] = ()) -> float:
    """Of the first line that is code: 1 less the insertions and deletions that make it the expected one, by length."""
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    total = len(line) + len(expected)
    return 2 * _common(line, expected) / total if total else 0.0


def class_score(answer: str, expected: str, classes: Sequence[str]) -> float:
    """1 over the number of classes that the answer names, where the right one is among them."""
    named = [name for name in classes if name in answer]
    named = [name for name in named if name == expected or name not in expected]
    return 1.0 / len(named) if expected in named else 0.0


def count_score(answer: str, expected: str, _classes: Sequence[str] = ()) -> float:
    """Share of the numbers in the answer that are the expected one."""
    numbers = re.findall(r"\d+", answer)
    wanted = re.findall(r"\d+", expected)
    return sum(number == wanted[0] for number in numbers) / len(numbers) if numbers and wanted else 0.0


METRICS: dict[str, Metric] = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"), word_f1),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), rouge_l),
    **dict.fromkeys(("passage_count", "passage_retrieval_en"), count_score),
    **dict.fromkeys(("lcc", "repobench-p"), edit_similarity),
    "trec": class_score,
    "triviaqa": word_f1,
}


def longbench(directory: Path, model: Path, longest: int, each: int) -> list[Question]:
    """The first `each` questions of every data set that is there.

    Args:
        directory: of LongBench.
        model: whose tokenizer and chat template are used.
        longest: tokens of prompt and answer; a longer prompt loses its middle.
        each: of a data set.

    Raises:
        NotFoundError: there is none of its data sets.
        InvalidFileError: a line that is no record of it.
    """
    folder = directory / "data" if (directory / "data").is_dir() else directory
    paths = [path for path in sorted(folder.glob("*.jsonl")) if _name(path) in METRICS]
    if not paths:
        raise NotFoundError(f"{folder} has none of LongBench's English data sets ({', '.join(METRICS)})")
    prompts, lengths = (_config(directory / "config" / f"dataset2{name}.json") for name in ("prompt", "maxlen"))
    tokenizer = Tokenizer.load(model)
    frame = chat_frame(model)
    questions = []
    for path in paths:
        name = _name(path)
        most = int(lengths.get(name, _PLAIN_MOST))
        form = str(prompts.get(name, _PLAIN_PROMPT))
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:each], 1):
            if line.strip():
                record = _record(line, f"{path}, line {number}")
                asked = form.format(context=record["context"], input=record["input"])
                tokens = _tokens(asked, tokenizer, None if name in _NO_CHAT else frame, longest - most)
                questions.append(Question(f"longbench {name}", 0, tokens, most, _scorer(name, record)))
    return questions


def pg19(directory: Path) -> list[Text]:
    """The books of a directory, of its `test` part where it has one.

    Raises:
        NotFoundError: it holds none.
    """
    folder = directory / "test" if (directory / "test").is_dir() else directory
    books = [Text("pg19", path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.txt"))]
    if not books:
        raise NotFoundError(f"{folder} holds no books of PG-19 (*.txt)")
    return books


def _name(path: Path) -> str:
    return path.stem.removesuffix("_e")


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(found)
    except (ValueError, TypeError) as error:
        raise InvalidFileError(f"{path}: {error}") from error


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if not all(isinstance(record[name], str) for name in ("context", "input")):
            raise ValueError("context and input are to be texts")
        if not record["answers"] or not all(isinstance(each, str) for each in record["answers"]):
            raise ValueError("answers is to be a list of texts")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFileError(f"{where}: no record of LongBench: {type(error).__name__}: {error}") from None
    return dict(record)


def _tokens(asked: str, tokenizer: Tokenizer, frame: tuple[str, str] | None, longest: int) -> list[int]:
    """The prompt; one that is too long keeps its beginning and its end, the instructions being there."""
    tokens = list(tokenizer.encode(asked, False))
    before, after = tokenizer.encode("", True), list[int]()
    if frame is not None:
        before, after = (tokenizer.encode(part, False) for part in frame)
    room = longest - len(before) - len(after)
    if len(tokens) > room:
        tokens = tokens[: room - room // 2] + tokens[len(tokens) - room // 2 :]
    return [*before, *tokens, *after]


def _scorer(name: str, record: dict[str, Any]) -> Callable[[str], float]:
    classes = record.get("all_classes") or []

    def score(answer: str) -> float:
        said = answer.lstrip("\n").split("\n")[0] if name in _FIRST_LINE else answer
        return max(METRICS[name](said, expected, classes) for expected in record["answers"])

    return score
