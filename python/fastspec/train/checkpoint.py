"""The state of an unfinished run: weights in float32, AdamW's moments, step, clock, history. Files of limited size."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fastspec.errors import InvalidArgumentError, InvalidFileError
from fastspec.train.files import write_json, write_tensors

SHARD_BYTES = 14 << 20
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Progress:
    """What of a run is no tensor.

    Attributes:
        step: optimiser steps done.
        seconds: spent in the training loop.
        tokens: trained on, padding excluded.
        history: one entry a line of the log; evaluations have "tau".
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def _named_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment, value in optimizer.state[parameter].items():
            tensors[f"{moment}.{name}"] = torch.as_tensor(value)
    return tensors


def save_checkpoint(
    directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, run: dict[str, Any]
) -> None:
    """Replaces the checkpoint in `directory`; `run` says what must be the same when it is resumed."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, tensor in _named_tensors(model, optimizer).items():
        size = tensor.numel() * tensor.element_size()
        if used and used + size > SHARD_BYTES:
            shards.append({})
            used = 0
        shards[-1][name] = tensor.cpu()
        used += size
    scratch = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    names = [f"state-{index + 1:05d}-of-{len(shards):05d}.safetensors" for index in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_tensors(scratch / name, shard)
    write_json(scratch / "state.json", {"version": 1, "files": names, "run": run, **vars(progress)})
    shutil.rmtree(directory, ignore_errors=True)
    scratch.rename(directory)


def load_checkpoint(
    directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, run: dict[str, Any]
) -> Progress:
    """Puts the saved state into model and optimiser.

    Raises:
        InvalidFileError: the files are incomplete or of another model.
        InvalidArgumentError: the run differs from the saved one; names what.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        tensors: dict[str, torch.Tensor] = {}
        for name in state["files"]:
            tensors |= load_file(directory / name)
        saved, version = state["run"], state["version"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error
    if version != 1:
        raise InvalidFileError(f"{directory}: version {version}, this program knows 1")
    for name in sorted(saved.keys() | run.keys()):
        if saved.get(name) != run.get(name):
            raise InvalidArgumentError(
                f"{directory} belongs to a run with {name} = {saved.get(name)}, this one has {run.get(name)}"
            )
    try:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
                moments = {moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS if f"{moment}.{name}" in tensors}
                optimizer.state[parameter] = {
                    moment: value.to(parameter.device if moment != "step" or _fused(optimizer) else "cpu")
                    for moment, value in moments.items()
                }
    except (KeyError, RuntimeError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error
    return Progress(state["step"], state["seconds"], state["tokens"], state["history"])


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer.param_groups[0].get("fused"))
