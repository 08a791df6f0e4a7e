"""Files that appear whole or not at all, so that a run that is killed leaves the previous ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


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
