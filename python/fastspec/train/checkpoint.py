"""The state of an unfinished run: all its weights in float32, AdamW's moments, step, clock, history. Files of limited
size."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from fastspec.errors import InvalidArgumentError, InvalidFileError
from fastspec.train.candidates import Candidates
from fastspec.train.files import shards, write_json, write_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Progress:
    """What of a run is no tensor.

    Attributes:
        step: optimiser steps done.
        seconds: spent in the training loop.
        tokens: trained on, padding excluded.
        evaluated: evaluations that were due up to here.
        history: one entry a line of the log; evaluations have "tau".
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    evaluated: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def _named_tensors(candidates: Candidates, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for part, module in candidates.modules().items():
        tensors |= {f"{part}.{name}": parameter.detach() for name, parameter in module.named_parameters()}
    for name, parameter in candidates.block.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            tensors[f"{moment}.{name}"] = torch.as_tensor(value)
    return tensors


def save_checkpoint(
    directory: Path, candidates: Candidates, optimizer: torch.optim.Optimizer, progress: Progress, run: dict[str, Any]
) -> None:
    """Replaces the checkpoint in `directory`; `run` says what must be the same when it is resumed."""
    tensors = {name: tensor.cpu() for name, tensor in _named_tensors(candidates, optimizer).items()}
    files = shards("state", tensors)
    scratch = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    for name, shard in files.items():
        write_tensors(scratch / name, shard)
    write_json(
        scratch / "state.json",
        {"version": 2, "files": list(files), "run": run, "best_score": candidates.best_score} | vars(progress),
    )
    shutil.rmtree(directory, ignore_errors=True)
    scratch.rename(directory)


def load_checkpoint(
    directory: Path, candidates: Candidates, optimizer: torch.optim.Optimizer, run: dict[str, Any]
) -> Progress:
    """Puts the saved state into candidates and optimiser.

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
    if version != 2:
        raise InvalidFileError(f"{directory}: version {version}, this program knows 2")
    for name in sorted(saved.keys() | run.keys()):
        if saved.get(name) != run.get(name):
            raise InvalidArgumentError(
                f"{directory} belongs to a run with {name} = {saved.get(name)}, this one has {run.get(name)}"
            )
    try:
        progress = Progress(**{field.name: state[field.name] for field in fields(Progress)})
        candidates.best_score = state["best_score"]
        with torch.no_grad():
            for part, module in candidates.modules().items():
                for name, parameter in module.named_parameters():
                    parameter.copy_(tensors[f"{part}.{name}"])
            for name, parameter in candidates.block.named_parameters():
                moments = {moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS if f"{moment}.{name}" in tensors}
                optimizer.state[parameter] = {
                    moment: value.to(parameter.device if moment != "step" or _fused(optimizer) else "cpu")
                    for moment, value in moments.items()
                }
    except (KeyError, RuntimeError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error
    return progress


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer.param_groups[0].get("fused"))
