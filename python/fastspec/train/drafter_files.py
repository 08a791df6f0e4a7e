"""A LongSpec drafter as files: a Hugging Face directory with config.json and model.safetensors, or shards and an index.

config.json is the target's, with one layer, the drafter's MLP size, and "longspec": {"version": 1, "window": tokens
that self-attention sees behind a token, "final_norm": whether norm.weight comes before the head}. tensors are those of
LongSpecBlock; `draft_vocabulary` (int32 token ids, ascending) may be added.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fastspec.errors import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec.train.block import BlockShape, LongSpecBlock
from fastspec.train.files import shards, write_json, write_tensors
from fastspec.train.target import Target

VERSION = 1
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def save_drafter(directory: Path, block: LongSpecBlock, target: Target) -> None:
    """Writes a drafter in bfloat16."""
    config = json.loads((target.directory / "config.json").read_text(encoding="utf-8"))
    for name in ("_name_or_path", "transformers_version", "torch_dtype"):
        config.pop(name, None)
    shape = block.shape
    config |= {"num_hidden_layers": 1, "intermediate_size": shape.intermediate_size, "dtype": "bfloat16"}
    config["longspec"] = {"version": VERSION, "window": shape.window, "final_norm": shape.final_norm}
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in block.state_dict().items()
    }
    files = shards("model", tensors)
    for old in directory.glob("model*.safetensors*"):
        if old.name not in files:
            old.unlink()
    for name, shard in files.items():
        write_tensors(directory / name, shard, {"format": "pt"})
    if len(files) > 1:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        weight_map = {name: file for file, shard in files.items() for name in shard}
        write_json(directory / _INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})
    write_json(directory / "config.json", config)


def load_drafter(directory: Path, target: Target) -> LongSpecBlock:
    """Reads what save_drafter() wrote, onto the target's device in float32.

    Raises:
        NotFoundError, InvalidFileError: not there, or not in this format.
        InvalidArgumentError: made for a target of another shape.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for names in (("config.json",), (_WHOLE, _INDEX)):
        if not any((directory / name).is_file() for name in names):
            raise NotFoundError(f"{directory} is no drafter: it has no {names[0]}")
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        own = config["longspec"]
        shape = target.block_shape(bool(own["final_norm"]), int(own["window"]), int(config["intermediate_size"]))
        tensors = {name: tensor for file in _files(directory) for name, tensor in load_file(directory / file).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error
    if own.get("version") != VERSION:
        raise InvalidFileError(f"{directory}: longspec version {own.get('version')}, this program knows {VERSION}")
    block = LongSpecBlock(shape)
    block.draft_vocabulary = tensors.get("draft_vocabulary")
    _check_shapes(directory, block.state_dict(), tensors)
    block.load_state_dict(tensors)
    block.float().to(target.device)
    return block


def _files(directory: Path) -> list[str]:
    if (directory / _WHOLE).is_file():
        return [_WHOLE]
    return sorted(set(json.loads((directory / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))


def _check_shapes(directory: Path, wanted: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    if missing := sorted(wanted.keys() - found.keys()):
        raise InvalidFileError(f"{directory}: no tensor {missing[0]}")
    if unknown := sorted(found.keys() - wanted.keys()):
        raise InvalidFileError(f"{directory}: unknown tensor {unknown[0]}")
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            raise InvalidArgumentError(
                f"{directory}: {name} is {list(found[name].shape)}, the target needs {list(tensor.shape)}"
            )


def parameter_count(shape: BlockShape) -> int:
    """Parameters of a block of this shape."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in LongSpecBlock(shape).parameters())
