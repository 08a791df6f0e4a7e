"""What training starts from: documents, prompts, rows and the batch of a step, options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fastspec import InvalidArgumentError
from fastspec.train.documents import Documents, concatenate, until_repetition
from fastspec.train.options import PRESETS, TrainOptions, from_preset
from fastspec.train.rows import SHORTEST, Batches, cut_rows, drawn_shifts, most_frequent, padded_length
from fastspec.train.texts import Text, cut_prompts, joined


def test_documents_come_back_from_their_file(tmp_path: Path) -> None:
    made = Documents.of([[1, 2, 3], [4], [5, 6]], [1, 1, 2], ["prose", "code", "prose"])
    made.save(tmp_path / "data.safetensors")
    loaded = Documents.load(tmp_path / "data.safetensors", 7)
    assert [loaded[i] for i in range(3)] == [[1, 2, 3], [4], [5, 6]]
    assert loaded.prompt(0) == [1]
    assert [loaded.kind_name(i) for i in range(3)] == ["prose", "code", "prose"]
    both = concatenate([loaded, loaded.by_kind(1)])
    assert [both[i] for i in range(3, 5)] == [[4], [1, 2, 3]]
    with pytest.raises(InvalidArgumentError, match="has token 6, the target a vocabulary of 6"):
        Documents.load(tmp_path / "data.safetensors", 6)


def test_joined_texts_hold_prompts_longer_than_one() -> None:
    def encode(text: str, _: bool) -> list[int]:
        return list(text.encode())

    texts = [Text("a", f"text {i}\nsecond line") for i in range(9)] + [Text("a", "whole", whole=True), Text("b", "b")]
    with pytest.raises(InvalidArgumentError, match="no prompt of 60 to 60 tokens"):
        cut_prompts(texts[:-2], encode, 4, 60, 60, seed=0)
    long = joined(texts)
    assert [(text.kind, text.whole) for text in long] == [("a", False), ("b", False)]
    assert "second line\n\n\ntext 1\n" in long[0].text
    found = cut_prompts(long[:1], encode, 4, 60, 60, seed=0)
    assert [len(found[i]) for i in range(len(found))] == [60] * 4


def test_repetition_ends_a_continuation() -> None:
    assert until_repetition([1, 2, 3, 4, 1, 2, 3, 4], begin=4, gram=3) == 6
    assert until_repetition([1, 2, 1, 2, 5, 6], begin=4, gram=2) == 6  # repeated in the prompt only
    assert until_repetition([1, 2, 3], begin=1, gram=2) == 3


def test_rows_cover_the_data_and_steps_do_not_depend_on_the_past() -> None:
    documents = Documents.of([list(range(1, 151)), list(range(20)), [1] * 70], [150, 5, 70], ["a", "b", "a"])
    groups = cut_rows([documents], longest=100, step=32)
    assert [(group.length, group.lengths.tolist(), group.prompts.tolist()) for group in groups] == [
        (32, [20], [5]),
        (64, [50], [50]),
        (96, [70], [70]),
        (100, [100], [100]),
    ]
    batches = Batches(groups, batch_tokens=64, multiple=2, seed=3)
    seen = [batches.at(step) for step in range(9)]
    assert sorted(group for group, _ in seen[:4]) == [0, 1, 2, 3]
    again = Batches(groups, batch_tokens=64, multiple=2, seed=3)
    for step in (7, 2):
        group, rows = again.at(step)
        assert group == seen[step][0]
        assert torch.equal(rows, seen[step][1])
        assert len(rows) == 2


@pytest.mark.parametrize("longest", [512, 32768, 30000])
def test_rows_of_all_lengths_make_few_groups(longest: int) -> None:
    padded = {tokens: padded_length(tokens, longest) for tokens in range(SHORTEST, longest + 1)}
    assert all(tokens <= length <= longest for tokens, length in padded.items())
    assert all(length - tokens < max(64, tokens / 8) for tokens, length in padded.items())
    assert len(set(padded.values())) <= 56


def test_the_most_frequent_tokens_are_those_of_the_rows_without_padding() -> None:
    documents = Documents.of([[7] * 20 + [2] * 30, [9] * 21, [4] * 16], [0, 0, 0], ["a"] * 3)
    groups = cut_rows([documents], longest=100)
    assert most_frequent(groups, 2).tolist() == [2, 9]
    assert most_frequent(groups, 9).tolist() == [2, 4, 7, 9]


@pytest.mark.parametrize(("decay", "parts"), [(1.0, 1), (1.0, 3), (0.5, 1), (0.5, 4), (0.5, 9)])
def test_shifts_come_as_often_as_they_matter(decay: float, parts: int) -> None:
    generator = torch.Generator().manual_seed(1)
    draws = [drawn_shifts(4, parts, decay, generator) for _ in range(2000)]
    counts = torch.tensor([shift for draw in draws for shift in draw]).bincount(minlength=5).double()
    wanted = torch.tensor([0, 1, decay, decay**2, decay**3])
    torch.testing.assert_close((counts / counts.sum()).float(), wanted / wanted.sum(), rtol=0, atol=0.03)
    if decay == 1.0:
        assert all(len(set(draw)) == parts for draw in draws)


def test_with_as_many_parts_as_shifts_each_comes_once() -> None:
    generator = torch.Generator().manual_seed(2)
    assert all(sorted(drawn_shifts(5, 5, 1.0, generator)) == [1, 2, 3, 4, 5] for _ in range(500))


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "steps is 0 and minutes 0: give one of them"),
        ({"steps": 5, "labels": "guess"}, "labels is 'guess', expected data or target"),
        ({"steps": 5, "distill": 1.5}, "distill is 1.5, expected 0 to 1"),
        ({"steps": 5, "length": 4096}, "batch_tokens is 32768"),
        ({"steps": 5, "shift_decay": 0.0}, "shift_decay is 0.0, expected 0.01 to 1"),
    ],
)
def test_impossible_options_are_named(changes: dict[str, Any], message: str) -> None:
    if "length" in changes:
        changes = {**changes, "length": 65536}
    with pytest.raises(InvalidArgumentError, match=message):
        from_preset(None, changes, TrainOptions(), PRESETS)


def test_presets_are_valid_and_can_be_changed() -> None:
    for name, preset in PRESETS.items():
        assert from_preset(name, {}, TrainOptions(), PRESETS) == preset
    assert from_preset("smollm2-demo", {"steps": 10}, TrainOptions(), PRESETS).minutes == 0
    assert isinstance(from_preset("short", {"minutes": 1.0}, TrainOptions(), PRESETS), TrainOptions)
    with pytest.raises(InvalidArgumentError, match="preset 'none': expected short, long, sft, smollm2-demo"):
        from_preset("none", {}, TrainOptions(), PRESETS)
