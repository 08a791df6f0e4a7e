"""Tiny random Hugging Face models with transformers' own logits, as oracles for the loader and the forward pass.

    python make_models.py OUT_DIR [NAME ...]

writes OUT_DIR/NAME/ for every model family and file variant: config.json, weights, tokenizer.json and reference.json
({"token_ids": [...], "logits": [[...], ...]}: transformers' float32 logits at every position of one prompt). The prompt
is longer than every sliding window and every original context length, so that both matter. All seeds are fixed.

Must not import fastspec: an oracle knows nothing of what it judges.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCAB_SIZE = 320
PROMPT_LENGTH = 60
END_OF_TEXT = "<|endoftext|>"

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

ConfigEdit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TinyModel:
    """One directory to write."""

    architecture: str
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"  # of the files; the reference is computed in float32 from the files' values
    max_shard_size: str | None = None
    edit: ConfigEdit | None = None  # applied to config.json after saving


def _older_rope_spelling(config: dict[str, Any]) -> None:
    """What writers before `rope_parameters` and `dtype` wrote."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    config["torch_dtype"] = config.pop("dtype")


def _older_rope_type_spelling(config: dict[str, Any]) -> None:
    """`rope_scaling` with `rope_type`, as Llama 3.1 was published."""
    _older_rope_spelling(config)
    config["rope_scaling"]["rope_type"] = config["rope_scaling"].pop("type")


def _without_optional_fields(config: dict[str, Any]) -> None:
    """What the earliest Llama checkpoints left out."""
    _older_rope_spelling(config)
    for name in ("head_dim", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias", "tie_word_embeddings"):
        config.pop(name, None)


MODELS: dict[str, TinyModel] = {
    "llama": TinyModel("Llama"),
    "llama31": TinyModel("Llama", {"rope_parameters": _LLAMA3}),
    "llama_linear": TinyModel("Llama", {"rope_parameters": _LINEAR}),
    "llama_yarn": TinyModel("Llama", {"rope_parameters": _YARN}),
    "llama_yarn_mscale": TinyModel(
        "Llama", {"rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "truncate": False}}
    ),
    "llama_bias": TinyModel("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_tied": TinyModel("Llama", {"tie_word_embeddings": True}),
    "llama_head_dim": TinyModel("Llama", {"head_dim": 24}),
    "llama_fp16": TinyModel("Llama", dtype="float16"),
    "llama_bf16": TinyModel("Llama", dtype="bfloat16"),
    "llama_old_config": TinyModel("Llama", edit=_without_optional_fields),
    "llama_linear_old_rope": TinyModel("Llama", {"rope_parameters": _LINEAR}, edit=_older_rope_spelling),
    "llama31_old_rope": TinyModel("Llama", {"rope_parameters": _LLAMA3}, edit=_older_rope_type_spelling),
    "sharded_llama": TinyModel("Llama", max_shard_size="60KB"),
    "mistral": TinyModel("Mistral", {"sliding_window": 16}),
    "mistral_no_window": TinyModel("Mistral", {"sliding_window": None}),
    "qwen2": TinyModel("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
    "qwen2_tied": TinyModel("Qwen2", {"tie_word_embeddings": True}, dtype="bfloat16"),
    "qwen2_yarn": TinyModel(
        "Qwen2", {"rope_parameters": {**_YARN, "rope_theta": 1000000.0}}, edit=_older_rope_spelling
    ),
    "qwen2_window": TinyModel("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": TinyModel("Qwen3", {"head_dim": 32}),
    "qwen3_bias_tied": TinyModel("Qwen3", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
}


def prompt_token_ids(seed: int = 0) -> list[int]:
    """PROMPT_LENGTH ids whose second half repeats half of the first, as real text does."""
    import random

    generator = random.Random(seed)
    first = [generator.randrange(1, VOCAB_SIZE) for _ in range(PROMPT_LENGTH // 2)]
    second = [token if generator.random() < 0.5 else generator.randrange(1, VOCAB_SIZE) for token in first]
    return first + second


def _randomize(model: Any, seed: int) -> None:
    """Draws all parameters: a norm of ones or a bias of zeros, as transformers makes them, would hide its absence."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.3 * noise)
            else:
                parameter.copy_(0.2 * noise)


def _edit_config(directory: Path, edit: ConfigEdit) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config, indent=2) + "\n")


def write_tokenizer(directory: Path) -> None:
    """A byte-level BPE of at most VOCAB_SIZE tokens; END_OF_TEXT has id 0, the configs' eos_token_id."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = "the quick brown fox jumps over the lazy dog and then the other dog that was there all along"
    tokenizer.train_from_iterator([text, text.title()], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))


def reference_logits(directory: Path, token_ids: list[int]) -> list[list[float]]:
    """transformers' float32 logits at every position of one prompt: [len(token_ids)][VOCAB_SIZE]."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return [[round(value, 7) for value in row] for row in logits.tolist()]


def make_model(directory: Path, name: str) -> Path:
    """Writes one entry of MODELS into `directory`/`name` and returns that path."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tiny = MODELS[name]
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    config_class = getattr(transformers, f"{tiny.architecture}Config")
    config = config_class(**{**_BASE, **tiny.options})
    model = getattr(transformers, f"{tiny.architecture}ForCausalLM")(config)
    _randomize(model, seed=1 + sorted(MODELS).index(name))
    model = model.to(getattr(torch, tiny.dtype))
    shards = {} if tiny.max_shard_size is None else {"max_shard_size": tiny.max_shard_size}
    model.save_pretrained(target, **shards)
    if tiny.edit is not None:
        _edit_config(target, tiny.edit)
    write_tokenizer(target)
    token_ids = prompt_token_ids()
    reference = {"token_ids": token_ids, "logits": reference_logits(target, token_ids)}
    (target / "reference.json").write_text(json.dumps(reference))
    return target


def make_models(directory: Path, names: list[str] | None = None) -> dict[str, Path]:
    """Writes the named models (all by default). Returns name -> directory."""
    return {name: make_model(directory, name) for name in names or MODELS}


def main(arguments: list[str]) -> int:
    if not arguments or any(name not in MODELS for name in arguments[1:]):
        print(f"usage: make_models.py OUT_DIR [NAME ...]; names: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for name, path in make_models(Path(arguments[0]), arguments[1:]).items():
        print(f"{name}\t{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
