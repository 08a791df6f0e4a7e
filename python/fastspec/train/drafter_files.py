"""A LongSpec drafter as files: a Hugging Face directory with config.json and model.safetensors, or shards and an index.

config.json is the target's, with one layer, the drafter's MLP size, and "longspec": {"version": 1, "window": tokens
that self-attention sees behind a token, "final_norm": whether norm.weight comes before the head}. tensors are those of
LongSpecBlock; `draft_vocabulary` (int32 token ids, ascending) may be added.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fastspec.errors import InvalidFileError, NotFoundError
from fastspec.train.block import BlockShape, LongSpecBlock
from fastspec.train.files import check_shapes, read_weights, write_json, write_weights
from fastspec.train.target import Target

VERSION = 1
_PUBLISHED = {"version": VERSION, "window": 512}  # what a config.json without "longspec" means
_UNUSED = ("cross_attn.k_proj.", "cross_attn.v_proj.")
_LEFT_OUT = ("transformers_version", "torch_dtype")


def save_drafter(directory: Path, block: LongSpecBlock, target: Target) -> None:
    """Writes a drafter in bfloat16."""
    source = json.loads((target.directory / "config.json").read_text(encoding="utf-8"))
    # What says where the target's file came from (_name_or_path and the like) is not true of the drafter.
    config = {name: value for name, value in source.items() if name[0] != "_" and name not in _LEFT_OUT}
    shape = block.shape
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][-1:]
    config |= {"num_hidden_layers": 1, "intermediate_size": shape.intermediate_size, "dtype": "bfloat16"}
    config["longspec"] = {"version": VERSION, "window": shape.window, "final_norm": shape.final_norm}
    write_weights(directory, block.state_dict())
    write_json(directory / "config.json", config)


def load_drafter(directory: Path, target: Target) -> LongSpecBlock:
    """Reads what save_drafter() wrote or LongSpec's authors publish, onto the target's device in float32.

    Raises:
        NotFoundError, InvalidFileError: not there, or not in this format.
        InvalidArgumentError: made for a target of another shape.
    """
    if not (directory / "config.json").is_file():
        raise NotFoundError(f"{directory} is no drafter: it has no config.json")
    tensors = _own_names(read_weights(directory))
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        own = config.get("longspec", _PUBLISHED)
        final_norm, window = bool(own.get("final_norm", False)), int(own.get("window", _PUBLISHED["window"]))
        shape = target.block_shape(final_norm, window, int(config["intermediate_size"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error
    if own.get("version") != VERSION:
        raise InvalidFileError(f"{directory}: longspec version {own.get('version')}, this program knows {VERSION}")
    block = LongSpecBlock(shape)
    block.draft_vocabulary = tensors.get("draft_vocabulary")
    check_shapes(directory, block.state_dict(), tensors)
    block.load_state_dict(tensors)
    block.float().to(target.device)
    return block


def _own_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the prefix that published drafters may have, and without cross-attention keys: the target's are used."""
    prefix = next((p for p in ("draft_model.", "glide.") if f"{p}input_layernorm.weight" in tensors), "")
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if not name.startswith(_UNUSED)}


def parameter_count(shape: BlockShape) -> int:
    """Parameters of a block of this shape."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in LongSpecBlock(shape).parameters())
