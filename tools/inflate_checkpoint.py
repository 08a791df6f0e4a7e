"""Embeds a small model exactly into a larger shape, so that a real model's text meets a large model's cost.

    .venv/bin/python tools/inflate_checkpoint.py --model SMALL_DIR --shape qwen2.5-7b --out DIR [--drafter DIR]
                                                 [--manifest FILE] [--device cuda]

What is written is an ordinary Hugging Face directory of the small model's family that computes the small model's
function: heads, channels, MLP and vocabulary padded, layers added in front. How, and why it is exact: inflation.py.
Added tokens are never drawn: their logits lie below -10^4. `--vocab keep` adds none. Layer numbers shift by
`added_layers` of inflation.json, which also says which heads are real. Position embeddings, sliding windows and
everything else of config.json stay the small model's. Weights are made and written shard by shard.

`--drafter` embeds a LongSpec drafter of the small model too, as DIR/drafter (`--drafter longspec:DIR/drafter` of the
engine). It proposes what it proposed for the small model, with the widths that a drafter of the large one would have.
`--manifest`, of `python -m fastspec profile srh` for the small pair, becomes DIR/manifest.json: the same heads, where
they lie now.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from inflation import (
    Inflation,
    RefusedError,
    Sizes,
    Tensor,
    TensorMap,
    drafter_maps,
    embedding,
    final_norm,
    layer_maps,
    lm_head,
)
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from fastspec import FastSpecError, hub, shape_json
from fastspec._fastspec import model_fingerprint
from fastspec.sparse.manifest import Heads, Manifest

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SCALABLE_ROPE = ("default", "linear", "llama3")  # a frequency depends on its own exponent only
DRAFT_VOCABULARY = "draft_vocabulary"  # token ids, which stay
UNREAD_BY_DRAFTERS = tuple(
    f"cross_attn.{name}" for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")
)
COPIED = (".json", ".jinja", ".txt", ".model", ".md")  # tokenizer, chat template, generation config, licence


class Checkpoint:
    """The tensors of a Hugging Face directory, read one at a time."""

    def __init__(self, directory: Path, device: str) -> None:
        """Opens its safetensors files."""
        self._device = device
        self._files: dict[str, Any] = {}
        for path in sorted(directory.glob("*.safetensors")):
            file: Any = safe_open(path, framework="pt")
            # Older writers kept the rotary frequencies, which follow from the config.
            self._files.update({name: file for name in file.keys() if not name.endswith("inv_freq")})  # noqa: SIM118
        if not self._files:
            raise RefusedError(f"{directory}: holds no safetensors files")

    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._files)

    def shape(self, name: str) -> list[int]:
        """Of a tensor, without reading it."""
        return list(self._files[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """In float32, on the device."""
        return self.read_as_is(name).to(self._device, torch.float32)

    def read_as_is(self, name: str) -> Tensor:
        """In the file's type, on the host."""
        return self._files[name].get_tensor(name)

    def dtype(self) -> str:
        """Of the embedding: "bfloat16", ..."""
        return str(self._files["model.embed_tokens.weight"].get_tensor("model.embed_tokens.weight").dtype)[6:]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One tensor to write."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Tensor]
    dtype: Any = None  # None: that of the weights

    def size(self, dtype: Any) -> int:
        """Bytes, where `dtype` is that of the weights."""
        return math.prod(self.shape) * int((self.dtype or dtype).itemsize)


def mapped(source: Checkpoint, name: str, original: str, change: TensorMap) -> Piece:
    """A tensor of the source, changed."""
    # On "meta" only shapes are computed.
    shape = tuple(change(torch.empty(source.shape(original), device="meta")).shape)
    return Piece(name, shape, lambda: change(source.read(original)))


def pieces(source: Checkpoint, map_: Inflation, tied: bool) -> Iterator[Piece]:
    """Every tensor of the large model, in order. Raises RefusedError for one that is not understood."""
    names = set(source.names())
    piece = partial(mapped, source)
    yield piece("model.embed_tokens.weight", "model.embed_tokens.weight", partial(embedding, map_))
    known = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    own = sorted(name.removeprefix("model.layers.0.") for name in names if name.startswith("model.layers.0."))
    maps = layer_maps(map_, normed_heads="self_attn.q_norm.weight" in own)
    if unknown := [name for name in own if name not in maps]:
        raise RefusedError(f"tensor {unknown[0]} of a layer is not understood")
    for layer in range(map_.large.layers):
        added = layer < map_.added_layers
        for name in own:
            original = f"model.layers.{0 if added else layer - map_.added_layers}.{name}"
            known.add(original)
            own_piece = piece(f"model.layers.{layer}.{name}", original, maps[name])
            fill = torch.ones if name.endswith("norm.weight") else torch.zeros
            yield dataclasses.replace(own_piece, make=partial(fill, own_piece.shape)) if added else own_piece
    yield piece("model.norm.weight", "model.norm.weight", partial(final_norm, map_))
    if unknown := sorted(names - known):
        raise RefusedError(f"tensor {unknown[0]} is not understood")
    if not tied:
        original = "lm_head.weight" if "lm_head.weight" in names else "model.embed_tokens.weight"
        yield piece("lm_head.weight", original, partial(lm_head, map_))


def drafter_pieces(source: Checkpoint, map_: Inflation, has_norm: bool) -> Iterator[Piece]:
    """Every tensor of the large drafter; `map_` is for_drafter()'s. Raises RefusedError as pieces() does."""
    maps = drafter_maps(map_)
    if not has_norm:
        del maps["norm.weight"]
    if missing := sorted({name for name in maps if name.endswith(".weight")}.difference(source.names())):
        raise RefusedError(f"the drafter has no tensor {missing[0]}")
    small = map_.small
    width = {"mlp.down_proj": small.intermediate, "self_attn.o_proj": small.heads * small.head_dim}
    width["cross_attn.o_proj"] = width["self_attn.o_proj"]
    for name in source.names():
        shape = source.shape(name)
        if name == DRAFT_VOCABULARY:
            ids = source.read_as_is(name)
            yield Piece(name, tuple(shape), partial(torch.clone, ids), ids.dtype)
        elif name in maps:
            expected = width.get(name.removesuffix(".weight"), small.hidden)
            if not name.endswith(".bias") and shape[-1] != expected:
                raise RefusedError(f"the drafter's {name} is {shape}, of a model of this shape it ends with {expected}")
            yield mapped(source, name, name, maps[name])
        elif name not in UNREAD_BY_DRAFTERS:
            raise RefusedError(f"tensor {name} of the drafter is not understood")


def write_drafter(drafter: Path, target: Inflation, work: Path, device: str, dtype: str, shard_bytes: int) -> None:
    """Embeds a LongSpec drafter of `target`'s small model into `work`, which it makes. Raises RefusedError."""
    config = json.loads((drafter / "config.json").read_text())
    own = {"hidden_size": target.small.hidden, "num_attention_heads": target.small.heads}
    own |= {"num_key_value_heads": target.small.kv_heads, "head_dim": target.small.head_dim}
    for name, size in own.items():
        if config.get(name, size) != size:
            raise RefusedError(f"the drafter's {name} is {config[name]}, the model's is {size}: it drafts for another")
    final_norm = bool(config.get("longspec", {}).get("final_norm", False))
    map_ = target.for_drafter(config["intermediate_size"], config.get("rms_norm_eps", target.small_eps), final_norm)
    work.mkdir()
    write_weights(
        list(drafter_pieces(Checkpoint(drafter, device), map_, final_norm)), work, getattr(torch, dtype), shard_bytes
    )
    (work / "config.json").write_text(
        json.dumps(large_config(config, map_, bool(config.get("tie_word_embeddings")), dtype), indent=2) + "\n"
    )


def write_manifest(path: Path, model: Path, drafter: Path | None, map_: Inflation, work: Path) -> None:
    """The manifest of the large pair in `work`. Raises FastSpecError where it was not made for the small one."""
    manifest = Manifest.load(path)
    manifest.check(path, model, drafter)

    def moved(heads: Heads, directory: Path, added_layers: int) -> Heads:
        layers = {
            layer + added_layers: tuple(place for place, small in enumerate(map_.query_heads) if small in of_layer)
            for layer, of_layer in heads.layers.items()
        }
        return Heads(model_fingerprint(str(directory)), layers)

    large = dataclasses.replace(manifest, target=moved(manifest.target, work, map_.added_layers))
    if drafter is not None and manifest.drafter is not None:
        large = dataclasses.replace(large, drafter=moved(manifest.drafter, work / "drafter", 0))
    else:
        large = dataclasses.replace(large, drafter=None, drafter_kind="", lookahead_slots=0)
    large.save(work / "manifest.json")


def write_weights(made: list[Piece], directory: Path, dtype: Any, shard_bytes: int) -> None:
    """Writes safetensors shards one after another; no more than one is in memory."""
    shards: list[list[Piece]] = [[]]
    filled = 0
    for piece in made:
        if shards[-1] and filled + piece.size(dtype) > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(piece)
        filled += piece.size(dtype)
    total = sum(piece.size(dtype) for piece in made)
    weight_map: dict[str, str] = {}
    with tqdm(total=total, unit="B", unit_scale=True, desc="inflating", disable=None) as bar:
        for number, shard in enumerate(shards, 1):
            file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
            tensors = {}
            for piece in shard:
                tensors[piece.name] = piece.make().to("cpu", piece.dtype or dtype).contiguous()
                weight_map[piece.name] = file
                bar.update(piece.size(dtype))
            save_file(tensors, directory / file, metadata={"format": "pt"})
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def large_config(config: dict[str, Any], map_: Inflation, tied: bool, dtype: str) -> dict[str, Any]:
    """config.json of the large model."""
    large, added = map_.large, map_.added_layers
    result = dict(config)
    result.update(
        hidden_size=large.hidden,
        intermediate_size=large.intermediate,
        num_hidden_layers=large.layers,
        num_attention_heads=large.heads,
        num_key_value_heads=large.kv_heads,
        head_dim=large.head_dim,
        vocab_size=large.vocab,
        rms_norm_eps=map_.eps,
        tie_word_embeddings=tied,
    )
    result["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    if config.get("layer_types"):
        result["layer_types"] = ["full_attention"] * added + config["layer_types"]
        if config["model_type"] == "mistral":  # one kind of layer throughout
            result["layer_types"] = config["layer_types"][:1] * large.layers
    if config.get("max_window_layers") is not None:
        result["max_window_layers"] = config["max_window_layers"] + added
    return result


def check_rope(config: dict[str, Any], map_: Inflation) -> None:
    """Raises RefusedError where frequencies do not move with head_dim."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if map_.widening > 1 and kind not in SCALABLE_ROPE:
        raise RefusedError(f"RoPE type {kind!r}: its frequencies depend on head_dim, which the shape changes")


def inflate(
    model: Path,
    shape: str,
    out: Path,
    *,
    drafter: Path | None = None,
    manifest: Path | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    keep_vocabulary: bool = False,
    shard_bytes: int = 4 << 30,
) -> Inflation:
    """Writes `out`, which appears whole or not at all. Returns where things lie.

    Args:
        model: Hugging Face directory of the small model, with safetensors files.
        shape: qwen2.5-7b, llama-3.1-8b, qwen3-8b, or the path of a config.json, whose sizes count.
        out: a directory that is not there yet.
        drafter: directory of a LongSpec drafter of the small model; its large one becomes `out`/drafter.
        manifest: of `profile srh` for model and drafter; the large pair's becomes `out`/manifest.json.
        device: of torch, where tensors are computed.
        dtype: of the written weights, or "auto" for the small model's.
        keep_vocabulary: leave the vocabulary as it is.
        shard_bytes: of one file.

    Raises:
        RefusedError: model or drafter do not fit into the shape or to each other, or are not understood.
        FastSpecError: no such shape; a manifest of another pair.
    """
    config = json.loads((model / "config.json").read_text())
    if config.get("model_type") not in FAMILIES:
        raise RefusedError(f"model_type {config.get('model_type')!r}: expected one of {', '.join(FAMILIES)}")
    if out.exists():
        raise RefusedError(f"{out} exists")
    small, shape_config = Sizes.of(config), json.loads(shape_json(shape))
    large = Sizes.of(shape_config)
    if keep_vocabulary:
        large = dataclasses.replace(large, vocab=small.vocab)
    map_ = Inflation(small, large, config.get("rms_norm_eps", 1e-6))
    check_rope(config, map_)
    tied = bool(config.get("tie_word_embeddings")) and bool(shape_config.get("tie_word_embeddings"))
    tied = tied and not map_.masks_vocabulary  # the embedding's constant must not meet the head's
    source = Checkpoint(model, device)
    if dtype == "auto":
        dtype = source.dtype()
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        write_weights(list(pieces(source, map_, tied)), work, getattr(torch, dtype), shard_bytes)
        (work / "config.json").write_text(json.dumps(large_config(config, map_, tied, dtype), indent=2) + "\n")
        if drafter is not None:
            write_drafter(drafter, map_, work / "drafter", device, dtype, shard_bytes)
        if manifest is not None:
            write_manifest(manifest, model, drafter, map_, work)
        (work / "inflation.json").write_text(json.dumps(description(map_, shape), indent=2) + "\n")
        for file in model.iterdir():
            described = (work / file.name).exists() or file.name.endswith(".index.json")
            if file.suffix in COPIED and not described:
                shutil.copyfile(file, work / file.name)
        work.chmod(0o755)
        for file in work.rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)  # safetensors writes for its owner alone
        os.rename(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return map_


def description(map_: Inflation, shape: str) -> dict[str, Any]:
    """What later tools ask: which layers and heads are real, and which tokens."""
    return {
        "shape": shape,
        "small": dataclasses.asdict(map_.small),
        "large": dataclasses.asdict(map_.large),
        "added_layers": map_.added_layers,
        "query_heads": map_.query_heads,
        "kv_heads": map_.kv_heads,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="inflate_checkpoint.py"
    )
    parser.add_argument("--model", required=True, help="directory, hub name or .gguf file of the small model")
    parser.add_argument("--shape", required=True, help="qwen2.5-7b, llama-3.1-8b, qwen3-8b or a config.json")
    parser.add_argument("--out", required=True, type=Path, help="directory to make")
    parser.add_argument("--drafter", type=Path, help="directory of a LongSpec drafter, embedded as OUT/drafter")
    parser.add_argument("--manifest", type=Path, help="of `profile srh` for the pair, becomes OUT/manifest.json")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--vocab", default="shape", choices=("shape", "keep"), help="pad the vocabulary, or keep it")
    parser.add_argument("--shard-gb", type=float, default=4.0, help="of one file, in GB; as much memory is needed")
    options = parser.parse_args()
    try:
        map_ = inflate(
            hub.resolve_model(options.model),
            options.shape,
            options.out,
            drafter=options.drafter,
            manifest=options.manifest,
            device=options.device,
            dtype=options.dtype,
            keep_vocabulary=options.vocab == "keep",
            shard_bytes=int(options.shard_gb * 1e9),
        )
    except (RefusedError, FastSpecError, OSError) as error:
        print(f"inflate_checkpoint: {error}", file=sys.stderr)
        return 2
    print(
        f"{options.out}: {map_.added_layers} layers added in front, {map_.large.vocab - map_.small.vocab} tokens masked"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
