"""Small tokenizer.json files of every kind that FastSpec reads, and text that is hard on them.

Trained with the `tokenizers` package on text that Python itself ships, so nothing is fetched. Run as a script to write
the files: ``python tokenizer_fixtures.py DIRECTORY``.
"""

from __future__ import annotations

import json
import random
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
O200K_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ODD_SPACES = "\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff\x0b\x0c\x1c\x1f\x85"
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "🏳️‍🌈", "❤️", "🫠"]
WORDS = [
    "हिन्दी", "ภาษาไทย", "العربية", "עברית", "Ελληνικά", "русский", "日本語の文", "中文字符", "한국어", "각각", "naïve",
    "e\u0301te\u0301", "A\u030a\u0323", "q\u0307\u0323", "\u1e9b\u0323", "\u212b", "ﬁne", "Ⅻ", "x²y³", "½", "௧௨௩",
    "ſmall", "it'ſ", "I'LL", "we'Ve", "K", "\u0f71\u0f72\u0f74", "\u0d4d\u200d", "ǆ", "߷", "𝔘𝔫𝔦", "𠀀𪛖", "\U0001d165\U0001d16e",
]  # fmt: skip
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im", "im_end|>", "<s>", "</s>", "<tool>", "  ", "Qx"]


def source_files() -> list[Path]:
    """Python's own library: prose (doc strings, pydoc topics) and code."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py")) + sorted(library.glob("[a-z]*/*.py"))
    return [path for path in files if "site-packages" not in path.parts]


def plain_text(num_bytes: int) -> str:
    parts, total = [], 0
    for path in source_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        parts.append(text)
        total += len(text.encode())
        if total >= num_bytes:
            break
    return "".join(parts).encode()[:num_bytes].decode("utf-8", "ignore")


def mixed_text(num_bytes: int, seed: int = 1) -> str:
    """Prose and code with scripts, emoji, control characters, odd spaces, combining marks and added tokens inside."""
    rng = random.Random(seed)
    source = plain_text(num_bytes)
    out: list[str] = []
    size = position = 0
    while size < num_bytes:
        length = rng.randrange(20, 1500)
        if position + length > len(source):
            position = 0
        piece = source[position : position + length] + hard_text(rng)
        position += length
        out.append(piece)
        size += len(piece.encode())
    return "".join(out)


def hard_text(rng: random.Random) -> str:
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice(EMOJI) * rng.randrange(1, 4)
    if kind == 1:
        return "".join(chr(rng.randrange(0x4E00, 0x9FA6)) for _ in range(rng.randrange(1, 30)))
    if kind == 2:
        return "".join(rng.choice(ODD_SPACES + " \t\n\r") for _ in range(rng.randrange(1, 9)))
    if kind == 3:
        return "".join(chr(rng.randrange(0, 0x20)) for _ in range(rng.randrange(1, 6)))
    if kind == 4:
        return rng.choice(["", " ", "\t", "x", "\n"]) + rng.choice(ADDED) + rng.choice(["", " ", "  ", "y", "\n "])
    if kind == 5:
        return "".join(rng.choice("aeoAEO") + marks(rng) for _ in range(rng.randrange(1, 6)))
    if kind == 6:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 8)))
    if kind == 7:
        return str(rng.randrange(10 ** rng.randrange(1, 20))) + rng.choice(["", ".", ",", "%", "²", "٣"])
    if kind == 8:
        return "".join(chr(rng.randrange(0xAC00, 0xD7A4)) for _ in range(rng.randrange(1, 12)))
    if kind == 9:
        return rng.choice(["▁", " ▁", "▁▁ x", "<0x41>", "<0xE2><0x82>", "\ufffd", "Ġ", "ĠĊ", "\u1100\u1161\u11a8"])
    if kind == 10:
        return rng.choice("\n\r\t -=#*_/.") * rng.randrange(1, 60)
    return rng.choice(["\U0010ffff", "\ue000", "\uffff", "\ud7ff", "\U000e0041", "ۖۗ", "𐀀"]) + rng.choice("aZ 0")


def marks(rng: random.Random) -> str:
    return "".join(
        rng.choice("\u0300\u0301\u0302\u0307\u0308\u030a\u031b\u0323\u0327\u0328\u0345\u0334") for _ in range(3)
    )


def train(tokenizer: Tokenizer, vocab_size: int, alphabet: list[str], special: list[str | AddedToken]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([plain_text(400_000), " ".join(WORDS) * 20, mixed_text(100_000, seed=7)], trainer)
    return tokenizer


def byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, 3000, pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def split_then_bytes(regex: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def gpt2() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_prefix_space() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def smollm2() -> Tokenizer:
    return byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    )


def llama3() -> Tokenizer:
    tokenizer = byte_level(split_then_bytes(LLAMA3_SPLIT))
    data = tokenizer.to_str().replace('"ignore_merges":false', '"ignore_merges":true')
    # A token that no merge reaches: only ignore_merges finds it.
    assert "Ġzzyzx" not in data
    data = data.replace('"vocab":{', '"vocab":{"Ġzzyzx":3000,')
    tokenizer = Tokenizer.from_str(data)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|endoftext|> $A", pair=None, special_tokens=[("<|endoftext|>", 0)]),
        ]
    )
    return tokenizer


def qwen2() -> Tokenizer:
    tokenizer = byte_level(split_then_bytes(QWEN2_SPLIT), normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("e\u0301te\u0301", normalized=True)])
    return tokenizer


def o200k() -> Tokenizer:
    return byte_level(split_then_bytes(O200K_SPLIT))


def split_behaviors() -> Tokenizer:
    split = pre_tokenizers.Split
    return byte_level(
        pre_tokenizers.Sequence(
            [
                split("\n", "merged_with_previous"),
                split(Regex(r"[A-Z]"), "merged_with_next"),
                split(Regex(r"\d"), "contiguous"),
                split(Regex(r"[\s\S]{1,40}"), "removed", invert=True),
                split(Regex(r"\t"), "removed"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    )


def added_flags() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_tokens(
        [
            AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<|im", rstrip=True, normalized=True),
            AddedToken("im_end|>", lstrip=True, normalized=False),
            AddedToken("Qx", single_word=True, normalized=False),
            AddedToken("self", single_word=True, normalized=True),
            AddedToken("  ", normalized=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    return tokenizer


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
MARK = "▁"


def sentencepiece(special_normalized: bool = False, **parts: Any) -> Tokenizer:
    """Byte fallback and ▁, as converted from SentencePiece: characters outside the vocabulary become byte tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")  # words, for the trainer only
    special = [AddedToken(token, normalized=special_normalized) for token in ("<unk>", "<s>", "</s>")]
    trainer = trainers.BpeTrainer(
        vocab_size=2500, special_tokens=special + BYTE_TOKENS, limit_alphabet=300, show_progress=False
    )
    tokenizer.train_from_iterator([plain_text(400_000), " ".join(WORDS) * 20], trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in BYTE_TOKENS]
    data.update({"normalizer": None, "pre_tokenizer": None} | parts)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return tokenizer


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


LLAMA2_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": MARK}, replace(" ", MARK)],
}
LLAMA2_DECODER = {
    "type": "Sequence",
    "decoders": [
        replace(MARK, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def metaspace(scheme: str, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def llama2() -> Tokenizer:
    return sentencepiece(normalizer=LLAMA2_NORMALIZER, decoder=LLAMA2_DECODER)


def llama2_normalized_specials() -> Tokenizer:
    return sentencepiece(special_normalized=True, normalizer=LLAMA2_NORMALIZER, decoder=LLAMA2_DECODER)


def llama2_metaspace_first() -> Tokenizer:
    return sentencepiece(pre_tokenizer=metaspace("first", False), decoder=LLAMA2_DECODER)


def llama2_metaspace_always() -> Tokenizer:
    return sentencepiece(pre_tokenizer=metaspace("always", True), decoder=metaspace("always", True))


def llama2_strip() -> Tokenizer:
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    normalizer = {"type": "Sequence", "normalizers": [strip, *LLAMA2_NORMALIZER["normalizers"]]}
    return sentencepiece(normalizer=normalizer, decoder=metaspace("first", False))


def unknown_tokens() -> Tokenizer:
    """No byte fallback: characters outside the vocabulary become <unk>, one for each."""
    tokenizer = json.loads(sentencepiece(normalizer=LLAMA2_NORMALIZER, decoder=None).to_str())
    tokenizer["model"].update({"byte_fallback": False, "fuse_unk": False})
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(tokenizer))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind
    for kind in (
        gpt2,
        gpt2_prefix_space,
        smollm2,
        llama3,
        qwen2,
        o200k,
        split_behaviors,
        added_flags,
        llama2,
        llama2_normalized_specials,
        llama2_metaspace_first,
        llama2_metaspace_always,
        llama2_strip,
        unknown_tokens,
    )
}


def build(kind: str, directory: Path) -> Path:
    """Writes directory/kind/tokenizer.json and returns the directory it is in."""
    target = directory / kind
    target.mkdir(parents=True, exist_ok=True)
    KINDS[kind]().save(str(target / "tokenizer.json"))
    return target


if __name__ == "__main__":
    for name in KINDS:
        print(build(name, Path(sys.argv[1])))
