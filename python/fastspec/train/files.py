"""Files that appear whole or not at all, so that a run that is killed leaves the previous ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

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


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, scratch, metadata=dict(metadata or {}))
    scratch.chmod(0o644)  # safetensors makes files that only their owner reads
    scratch.rename(path)


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    scratch.rename(path)
