"""LongBench and PG-19 directories: made files are read and refused, answers are scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastspec import InvalidFileError, NotFoundError
from fastspec.sparse import benchmarks


def test_scores_of_longbench() -> None:
    assert benchmarks.word_f1("The Cat, sat.", "a cat sat down") == pytest.approx(2 * 2 / 5)
    assert benchmarks.word_f1("dog", "cat") == 0.0
    assert benchmarks.rouge_l("a b c d", "a x c d") == pytest.approx(2 * 3 / 8)
    assert benchmarks.edit_similarity("\nreturn x\nmore", "return x") == 1.0
    assert benchmarks.edit_similarity("# note\nabc", "abd") == pytest.approx(2 * 2 / 6)
    classes = ["Date", "Other date", "City"]
    assert benchmarks.class_score("it is a City", "City", classes) == 1.0
    assert benchmarks.class_score("City or Date", "City", classes) == 0.5
    assert benchmarks.class_score("Date", "City", classes) == 0.0
    assert benchmarks.class_score("Other date", "Other date", ["date", "Other date"]) == 1.0
    assert benchmarks.count_score("Paragraph 3 or 4", "Paragraph 3") == 0.5
    assert benchmarks.count_score("none", "Paragraph 3") == 0.0


def write_longbench(directory: Path, name: str = "hotpotqa", **change: Any) -> None:
    record = {"input": "Who?", "context": "word " * 200, "answers": ["the cat", "a dog"], "all_classes": None}
    (directory / "data").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record | change)] * 3
    (directory / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def test_longbench_is_read(tmp_path: Path, tiny_model_dir: Path) -> None:
    write_longbench(tmp_path)
    write_longbench(tmp_path, "trec", input="x", answers=["City"], all_classes=["City", "Date"])
    write_longbench(tmp_path, "dureader")  # not English
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "dataset2prompt.json").write_text(
        json.dumps({"hotpotqa": "Q {input} C {context} Q {input}"})
    )
    (tmp_path / "config" / "dataset2maxlen.json").write_text(json.dumps({"hotpotqa": 9}))
    found = benchmarks.longbench(tmp_path, tiny_model_dir, longest=100, each=2)
    assert [question.task for question in found] == ["longbench hotpotqa"] * 2 + ["longbench trec"] * 2
    hotpot, trec = found[0], found[2]
    assert (hotpot.most, trec.most) == (9, 64)
    assert len(hotpot.tokens) == 91  # with the answer as long as the model takes: the middle was cut
    from fastspec import Tokenizer

    text = Tokenizer.load(tiny_model_dir).decode(hotpot.tokens)
    assert text.startswith("Q Who? C word")
    assert text.endswith("word  Q Who?")
    assert hotpot.score("a dog") == 1.0  # the best of the answers
    assert trec.score("City\nDate") == 1.0  # its first line counts


def test_broken_longbench_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    with pytest.raises(NotFoundError, match="none of LongBench's English data sets"):
        benchmarks.longbench(tmp_path, tiny_model_dir, 100, 2)
    write_longbench(tmp_path, answers=[])
    with pytest.raises(InvalidFileError, match=r"hotpotqa\.jsonl, line 1: no record of LongBench"):
        benchmarks.longbench(tmp_path, tiny_model_dir, 100, 2)


def test_pg19_is_read(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    for name in ("200", "100"):
        (tmp_path / "test" / f"{name}.txt").write_text(f"book {name}")
    assert [(text.kind, text.text) for text in benchmarks.pg19(tmp_path)] == [
        ("pg19", "book 100"),
        ("pg19", "book 200"),
    ]
    with pytest.raises(NotFoundError, match="holds no books"):
        benchmarks.pg19(tmp_path / "none")
