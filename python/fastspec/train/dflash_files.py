"""A DFlash drafter as files, in the published format: config.json of a Qwen3 decoder under the architecture
"DFlashDraftModel" with "block_size" and "dflash_config", and the weights of DFlashBlock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastspec.errors import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec.train.dflash_block import DFlashBlock, DFlashShape, default_target_layers
from fastspec.train.files import check_shapes, read_weights, write_json, write_weights
from fastspec.train.options import DFlashOptions
from fastspec.train.target import Target

_TAKEN = (
    "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "vocab_size", "bos_token_id",
    "eos_token_id", "tie_word_embeddings",
)  # fmt: skip


def dflash_shape(target: Target, options: DFlashOptions) -> DFlashShape:
    """Sizes of a drafter for a target.

    Raises:
        InvalidArgumentError: the options name layers or a token that the target does not have.
    """
    sizes = target.block_shape(False, 1, options.intermediate_size or None)
    depth = int(target.config.num_hidden_layers)
    layers = options.target_layers or default_target_layers(depth, options.layers)
    if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= depth:
        raise InvalidArgumentError(f"target_layers is {list(layers)}, the target has layers 0 to {depth - 1}")
    if options.mask_token >= target.vocab_size:
        raise InvalidArgumentError(f"mask_token is {options.mask_token}, the target has {target.vocab_size} tokens")
    return DFlashShape(
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        norm_eps=sizes.norm_eps,
        layers=options.layers,
        block_size=options.block_size,
        mask_token=options.mask_token if options.mask_token >= 0 else target.vocab_size - 1,
        target_layers=tuple(layers),
    )


def save_dflash(directory: Path, block: DFlashBlock, target: Target) -> None:
    """Writes a drafter in bfloat16."""
    source = json.loads((target.directory / "config.json").read_text(encoding="utf-8"))
    shape = block.shape
    config: dict[str, Any] = {name: source[name] for name in _TAKEN if source.get(name) is not None}
    config |= {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": False,
        "layer_types": ["full_attention"] * shape.layers,
        "num_target_layers": int(target.config.num_hidden_layers),
        "block_size": shape.block_size,
        "dflash_config": {"mask_token_id": shape.mask_token, "target_layer_ids": list(shape.target_layers)},
    }
    write_weights(directory, block.state_dict())
    write_json(directory / "config.json", config)


def load_dflash(directory: Path, target: Target, options: DFlashOptions) -> DFlashBlock:
    """Reads what save_dflash() wrote, onto the target's device in float32, to be trained further.

    Raises:
        NotFoundError, InvalidFileError: not there, or not in this format.
        InvalidArgumentError: of another shape than the options and the target ask for.
    """
    if not (directory / "config.json").is_file():
        raise NotFoundError(f"{directory} is no drafter: it has no config.json")
    shape = dflash_shape(target, options)
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        own = config["dflash_config"]
        found = (config["num_hidden_layers"], config["block_size"], own["mask_token_id"], own["target_layer_ids"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFileError(f"{directory}: {type(error).__name__}: {error}") from error
    wanted = (shape.layers, shape.block_size, shape.mask_token, list(shape.target_layers))
    for name, seen, asked in zip(("layers", "block_size", "mask_token", "target_layers"), found, wanted, strict=True):
        if seen != asked:
            raise InvalidArgumentError(f"{directory} was made with {name} = {seen}, this run has {asked}")
    block, tensors = DFlashBlock(shape), read_weights(directory)
    check_shapes(directory, block.state_dict(), tensors)
    block.load_state_dict(tensors)
    block.float().to(target.device)
    return block
