"""GGUF files: dequantised once into a Hugging Face directory. Needs transformers, gguf and accelerate: extra [gguf]."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from fastspec.errors import FastSpecError, InvalidFileError, NotFoundError, UnsupportedError
from fastspec.hub import cache_directory

_SAMPLE_BYTES = 1 << 20
_FORMAT = "1"  # part of the key: raise it when conversion changes


def convert_cached(file: Path, dtype: str = "bfloat16") -> Path:
    """The directory a .gguf file converts to; converts it unless that was done before.

    Args:
        file: the .gguf file.
        dtype: of the written weights, a name of torch. A quantised weight has fewer significant bits than bfloat16
            keeps, so the rounding is small beside that of the quantisation.
    """
    target = cache_directory() / "gguf" / f"{file.stem}-{dtype}-{_key(file)}"
    if not target.is_dir():
        convert(file, target, dtype)
    return target


def convert(file: Path, target: Path, dtype: str = "bfloat16") -> None:
    """Writes the model and tokenizer of a .gguf file as a Hugging Face directory, which appears whole or not at all.

    Raises:
        NotFoundError: a package of the extra [gguf] is missing.
        InvalidFileError: no GGUF file.
        UnsupportedError: transformers does not read this architecture or quantisation.
    """
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InvalidFileError(f"{file}: does not begin with GGUF")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(file, work, dtype)
        work.chmod(0o755)
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
        tokenizer.save_pretrained(directory)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file.name, dtype=getattr(torch, dtype), **_dequantising()
        )
        model.save_pretrained(directory)
    except FastSpecError:
        raise
    except Exception as error:  # transformers raises ValueError, KeyError, NotImplementedError and others here
        raise UnsupportedError(f"{file}: transformers cannot convert it: {type(error).__name__}: {error}") from error


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
