"""Files that appear whole or not at all, so that a run that is killed leaves the previous ones."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fastspec.errors import InvalidArgumentError, InvalidFileError, NotFoundError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 14 << 20  # of one file, so that a drafter and the state of its training can be kept in git


def shards(stem: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors by file, none larger than SHARD_BYTES: STEM.safetensors, or STEM-00001-of-00002.safetensors and so on."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if used and used + size > SHARD_BYTES:
            parts.append({})
            used = 0
        parts[-1][name] = tensor
        used += size
    if len(parts) == 1:
        return {f"{stem}.safetensors": parts[0]}
    return {f"{stem}-{i:05d}-of-{len(parts):05d}.safetensors": part for i, part in enumerate(parts, 1)}


def check_output(path: Path) -> None:
    """Raises InvalidArgumentError where a file cannot be written, before the work whose result it is to hold."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror or error}") from None
    if path.is_dir():
        raise InvalidArgumentError(f"{path} is a directory, a file is to be written")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A scratch file that becomes `path`, or is gone if anything fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield scratch
        scratch.rename(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file."""
    from safetensors.torch import save_file

    with _replacing(path) as scratch:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, scratch, metadata=dict(metadata or {}))
        scratch.chmod(0o644)  # safetensors makes files that only their owner reads


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    with _replacing(path) as scratch:
        scratch.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_weights(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """The weights of a Hugging Face directory, in bfloat16: one file, or shards and their index."""
    written = {
        name: tensor.detach().to("cpu", torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
    files = shards("model", written)
    for old in directory.glob("model*.safetensors*"):
        if old.name not in files:
            old.unlink()
    for name, shard in files.items():
        write_tensors(directory / name, shard, {"format": "pt"})
    if len(files) > 1:
        size = sum(tensor.numel() * tensor.element_size() for tensor in written.values())
        weight_map = {name: file for file, shard in files.items() for name in shard}
        write_json(directory / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    """What write_weights() wrote.

    Raises:
        NotFoundError, InvalidFileError: not there, or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not any((directory / name).is_file() for name in (WHOLE, INDEX)):
        raise NotFoundError(f"{directory} is no drafter: it has no {WHOLE}")
    try:
        files = {WHOLE}
        if not (directory / WHOLE).is_file():
            files = set(json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return {name: tensor for file in sorted(files) for name, tensor in load_file(directory / file).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error


def check_shapes(directory: Path, wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    """Raises InvalidFileError or InvalidArgumentError naming a tensor that is missing, unknown or of another shape."""
    if missing := sorted(wanted.keys() - found.keys()):
        raise InvalidFileError(f"{directory}: no tensor {missing[0]}")
    if unknown := sorted(found.keys() - wanted.keys()):
        raise InvalidFileError(f"{directory}: unknown tensor {unknown[0]}")
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise InvalidArgumentError(
                f"{directory}: {name} is {list(found[name].shape)}, the target needs {list(tensor.shape)}"
            )
