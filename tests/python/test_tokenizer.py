"""fastspec.Tokenizer gives exactly what the `tokenizers` package gives: ids, text, and text piece by piece.

Text and files are built from what Python ships (tests/support/tokenizer_fixtures.py). FASTSPEC_TEST_MODEL may name a
model directory whose tokenizer.json is compared too, on 10 MB.
"""

import os
import random
import sys
import time
from functools import cache
from pathlib import Path

import pytest

import fastspec

tokenizers = pytest.importorskip("tokenizers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import tokenizer_fixtures as fixtures  # noqa: E402

LONG = 10_000_000  # bytes, for one file of each family
SHORT = 1_000_000
FAMILIES = ["smollm2", "llama3", "qwen2", "gpt2", "llama2", "llama2_metaspace_first"]

text_of_size = cache(fixtures.mixed_text)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(params=list(fixtures.KINDS), scope="module")
def pair(request: pytest.FixtureRequest, directory: Path):
    """The kind's name, our tokenizer and the reference, for every kind of file."""
    return load_pair(request.param, fixtures.build(request.param, directory))


def load_pair(kind: str, target: Path):
    ours = fastspec.Tokenizer.load(str(target))
    return kind, ours, tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))


def assert_same_ids(ours, reference, text: str) -> list[int]:
    mine, expected = ours.encode(text), reference.encode(text).ids
    if mine != expected:
        place = next(i for i in range(len(expected) + 1) if mine[i : i + 1] != expected[i : i + 1])
        around = slice(max(0, place - 3), place + 5)
        spelled = [[reference.id_to_token(i) for i in ids[around]] for ids in (mine, expected)]
        pytest.fail(f"ids differ from number {place} on: {spelled[0]} instead of {spelled[1]}")
    return mine


def plain_ids(ours, reference) -> list[int]:
    """All ids but the added tokens whose spelling normalization changes.

    Recent versions of the reference decode those by the normalized spelling, so that a special token is no longer
    recognised as special ("<s>" becomes "▁<s>"). Ours decodes them as the file spells them.
    """
    return [i for i in range(ours.vocab_size) if ours.id_to_token(i) == (reference.id_to_token(i) or "")]


def test_ids_of_mixed_text(pair) -> None:
    kind, ours, reference = pair
    assert_same_ids(ours, reference, text_of_size(LONG if kind in FAMILIES else SHORT))


def test_ids_of_short_texts(pair) -> None:
    _, ours, reference = pair
    text = text_of_size(SHORT)
    rng = random.Random(3)
    for _ in range(3000):
        begin = rng.randrange(len(text))
        piece = text[begin : begin + rng.randrange(40)]
        assert ours.encode(piece) == reference.encode(piece).ids, repr(piece)
        without = reference.encode(piece, add_special_tokens=False).ids
        assert ours.encode(piece, add_special_tokens=False) == without, repr(piece)


def test_added_tokens_next_to_anything(pair) -> None:
    _, ours, reference = pair
    around = ["", " ", "  ", "\n", "a", "_", ".", "e\u0301", "日", "\u3000", "<", "|", "1", "²", "\u200d"]
    for token in [*fixtures.ADDED, "e\u0301te\u0301", "self", "\u00e9t\u00e9"]:
        for before in around:
            for after in around:
                piece = before + token + after
                assert ours.encode(piece) == reference.encode(piece).ids, repr(piece)


def test_text_of_ids(pair) -> None:
    _, ours, reference = pair
    allowed = set(plain_ids(ours, reference))
    ids = [i for i in ours.encode(text_of_size(SHORT)) if i in allowed]
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


def test_text_of_random_ids_whole_and_piece_by_piece(pair) -> None:
    _, ours, reference = pair
    rng = random.Random(5)
    allowed = plain_ids(ours, reference)
    for round_number in range(3000):
        ids = rng.choices(allowed, k=rng.randrange(14))
        skip = round_number % 2 == 0
        expected = reference.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == expected, ids
        stream = ours.stream(skip)
        assert "".join([*map(stream.push, ids), stream.finish()]) == expected, ids


def test_streaming_long_text_holds_back_no_more_than_a_character(directory: Path) -> None:
    _, ours, _ = load_pair("smollm2", fixtures.build("smollm2", directory))
    text = text_of_size(200_000).replace("<|", "< |")
    stream = ours.stream()
    written = pushed = 0
    for token_id in ours.encode(text):
        pushed += len(ours.id_to_token(token_id))  # one character of the alphabet is one byte
        written += len(stream.push(token_id).encode())
        assert pushed - written < 4
    assert stream.finish() == ""
    assert written == len(text.encode())


def test_vocabulary(pair) -> None:
    _, ours, reference = pair
    vocabulary = reference.get_vocab(with_added_tokens=True)
    assert ours.vocab_size == max(vocabulary.values()) + 1
    for token, token_id in vocabulary.items():
        assert ours.token_to_id(token) == token_id or reference.id_to_token(token_id) != token
    assert ours.token_to_id("no such token at all") is None
    with pytest.raises(Exception, match="outside of the vocabulary"):
        ours.decode([ours.vocab_size])


def test_nul_is_a_character_like_any_other(directory: Path) -> None:
    _, ours, reference = load_pair("gpt2", fixtures.build("gpt2", directory))
    assert ours.encode("a\0b") == reference.encode("a\0b").ids
    assert ours.decode(ours.encode("a\0b")) == "a\0b"


@pytest.mark.skipif("FASTSPEC_TEST_MODEL" not in os.environ, reason="FASTSPEC_TEST_MODEL names no model directory")
def test_model_file_on_ten_megabytes() -> None:
    _, ours, reference = load_pair("model", Path(os.environ["FASTSPEC_TEST_MODEL"]))
    text = text_of_size(LONG)
    start = time.perf_counter()
    ids = ours.encode(text)
    print(f"\n{len(text.encode()) / 1e6 / (time.perf_counter() - start):.1f} MB/s")
    assert ids == assert_same_ids(ours, reference, text)
    assert ours.decode(ids, skip_special_tokens=False) == reference.decode(ids, skip_special_tokens=False)
