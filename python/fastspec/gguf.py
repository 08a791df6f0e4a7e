"""GGUF files: dequantised once into a Hugging Face directory. Needs transformers, gguf and accelerate: extra [gguf]."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from fastspec.errors import FastSpecError, InvalidArgumentError, InvalidFileError, NotFoundError, UnsupportedError
from fastspec.hub import cache_directory

_SAMPLE_BYTES = 1 << 20
_FORMAT = "2"  # part of the key: raise it when conversion changes


def convert_cached(file: Path, dtype: str = "bfloat16") -> Path:
    """The directory a .gguf file converts to; converts it unless that was done before.

    Args:
        file: the .gguf file.
        dtype: of the written weights, a name of torch. A quantised weight has fewer significant bits than bfloat16
            keeps, so the rounding is small beside that of the quantisation.
    """
    try:
        target = cache_directory() / "gguf" / f"{file.stem}-{dtype}-{_key(file)}"
    except OSError as error:
        raise InvalidFileError(f"{file}: {error.strerror}") from error
    if not target.is_dir():
        convert(file, target, dtype)
    return target


def convert(file: Path, target: Path, dtype: str = "bfloat16") -> None:
    """Writes the model and tokenizer of a .gguf file as a Hugging Face directory, which appears whole or not at all.

    Raises:
        NotFoundError: a package of the extra [gguf] is missing.
        InvalidFileError: no GGUF file.
        UnsupportedError: transformers does not read this architecture or quantisation.
        InvalidArgumentError: the target cannot be written.
    """
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InvalidFileError(f"{file}: does not begin with GGUF")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise InvalidArgumentError(
            f"{target.parent} cannot be written: {error.strerror}; $FASTSPEC_CACHE names another cache"
        ) from error
    try:
        _write(file, work, dtype)
        work.chmod(0o755)
        for written in work.iterdir():
            written.chmod(0o644)  # safetensors writes for its owner alone; the cache may be shared
        try:
            os.rename(work, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, with the same result
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write(file: Path, directory: Path, dtype: str) -> None:
    try:
        import accelerate  # type: ignore[import-untyped,unused-ignore]  # noqa: F401  transformers asks for it
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise NotFoundError(
            f"{file}: converting GGUF needs the package {error.name}: pip install transformers gguf accelerate"
        ) from error
    try:
        source = str(file.parent)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
        _restore_byte_level(tokenizer, file)
        tokenizer.save_pretrained(directory)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file.name, dtype=getattr(torch, dtype), **_dequantising()
        )
        model.save_pretrained(directory)
    except FastSpecError:
        raise
    except Exception as error:  # transformers raises ValueError, KeyError, NotImplementedError and others here
        raise UnsupportedError(f"{file}: transformers cannot convert it: {type(error).__name__}: {error}") from error


# How Llama 3 splits text before BPE; its published tokenizer.json holds the same expression.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _restore_byte_level(tokenizer: Any, file: Path) -> None:
    """Gives a byte-level tokenizer the splitting that the file names, and its plain decoder.

    transformers reads every splitting as GPT-2's, and some releases decode as if the vocabulary were SentencePiece's.

    Raises:
        UnsupportedError: a splitting that is not known here; a wrong one would change token ids silently.
    """
    import gguf
    from tokenizers import Regex, decoders
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    fields = gguf.GGUFReader(file).fields
    if (model := fields.get("tokenizer.ggml.model")) is not None and str(model.contents()) == "gpt2":
        tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    field = fields.get("tokenizer.ggml.pre")
    name = "default" if field is None else str(field.contents())
    if name in ("default", "gpt-2", "qwen2"):  # read right; "default" also stands for SentencePiece vocabularies
        return
    if name == "smollm":
        split: Any = Digits(individual_digits=True)
        byte_level = ByteLevel(add_prefix_space=False)
    elif name == "llama-bpe":
        split = Split(Regex(_LLAMA3_SPLIT), "isolated")
        byte_level = ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        raise UnsupportedError(f"{file}: pre-tokenizer {name!r} is not known; use the model's Hugging Face directory")
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([split, byte_level])


def _dequantising() -> dict[str, object]:
    """Arguments that make transformers unpack the weights; older ones always do and know no such argument."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _key(file: Path) -> str:
    """Changes with the file: its size, its time and its first and last MiB."""
    status = file.stat()
    digest = hashlib.sha256(f"{_FORMAT} {status.st_size} {status.st_mtime_ns} ".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(_SAMPLE_BYTES))
        stream.seek(max(0, status.st_size - _SAMPLE_BYTES))
        digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
