"""Options of a training run and of making its data, and presets: the paper's stages, the shipped drafter's recipe."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from fastspec.errors import InvalidArgumentError


@dataclass(frozen=True)
class RunOptions:
    """How any drafter is trained; every field is a command line option of the same name.

    Attributes:
        steps: optimiser steps; the learning rate's cosine ends there. 0 = by `minutes`.
        minutes: time of the training loop, evaluations included; the cosine follows the clock. 0 = by `steps`.
        length: tokens of a row; longer documents are cut.
        batch_tokens: tokens of a batch over all GPUs, padding included.
        lr: highest learning rate of AdamW.
        warmup_steps: steps until it is reached.
        final_lr: share of `lr` at the end of the cosine.
        weight_decay: of AdamW, on matrices.
        beta2: of AdamW; its beta1 is 0.9.
        clip: largest norm of the gradient.
        anchor_positions: anchor-offset indices reach up to this position; 0 = off, -1 = the model's longest sequence.
        anchor_share: share of rows that are moved at all.
        labels: "data", the next token of the text (the papers'), or "target", the target's most likely one.
        distill: share of the target's whole distribution in what is asked for; the rest is on the label.
        prompt_loss: count the loss on tokens that were given, too; a plain text is all given.
        intermediate_size: of the drafter's MLP; 0 = the target's.
        cache_target: run the target once over all rows and keep what the drafter sees of it, in the device's memory;
            offsets are drawn once a row then. Needs about 2 (kv_heads * head_dim + hidden_size) * 2 bytes a token with
            LongSpec, 2 (target_layers + 1) * hidden_size with DFlash.
        dtype: "bfloat16" or "float32", of the target and of the arithmetic; the drafter's weights are in float32.
        seed: of everything drawn.
        average: decay of a running average of the weights, a step; the average is what is evaluated and written. 0 =
            none.
        evaluations: on the validation documents, evenly over the run, the last at its end. The weights that do best,
            by the sum over trees' shapes of tau's mean over kinds, become the drafter.
        eval_documents: the first so many of each kind.
        eval_offset: positions of validation documents are moved by this, to see acceptance at high positions.
        save_seconds: time between checkpoints; 0 = only at the end.
        log_seconds: time between lines of the log.
    """

    steps: int = 0
    minutes: float = 0.0
    length: int = 512
    batch_tokens: int = 32768
    lr: float = 5e-4
    warmup_steps: int = 100
    final_lr: float = 0.0
    weight_decay: float = 0.01
    beta2: float = 0.95
    clip: float = 1.0
    anchor_positions: int = -1
    anchor_share: float = 1.0
    labels: str = "data"
    distill: float = 0.0
    prompt_loss: bool = True
    intermediate_size: int = 0
    cache_target: bool = False
    dtype: str = "bfloat16"
    seed: int = 0
    average: float = 0.0
    evaluations: int = 10
    eval_documents: int = 64
    eval_offset: int = 0
    save_seconds: float = 300.0
    log_seconds: float = 10.0

    def validate(self) -> None:
        """Raises InvalidArgumentError naming the option, its value and what is possible."""
        if (self.steps > 0) == (self.minutes > 0):
            raise InvalidArgumentError(
                f"steps is {self.steps} and minutes {self.minutes:g}: give one of them, the other stays 0"
            )
        for name, low, high in _RANGES:
            value = getattr(self, name, low)  # not every kind of drafter has all
            if not low <= value <= high:
                raise InvalidArgumentError(f"{name} is {value}, expected {low} to {high:g}")
        for name, possible in _CHOICES.items():
            if getattr(self, name, possible[0]) not in possible:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)!r}, expected {' or '.join(possible)}")
        if self.batch_tokens < self.length:
            raise InvalidArgumentError(f"batch_tokens is {self.batch_tokens}, less than a row ({self.length})")


@dataclass(frozen=True)
class TrainOptions(RunOptions):
    """And a LongSpec drafter.

    Attributes:
        depth: flash noisy training draws shifts from 1..depth; 1 = off, every pass as a tree's first level.
        shifts_at_once: equal parts of a batch, each with a shift of its own; more parts than shifts draw some again.
        shift_decay: chance of a shift, over the chance of the one below it. A node of a tree counts only where all
            above it were right, so the larger shifts matter less; 1 = as in the paper, all alike.
        final_norm: a norm before the head.
        start: "target", copy the target's last layer, or "random".
        start_scale: of what the copied layer adds to its input; in the target it reads far more than an embedding.
        window: tokens that self-attention sees behind a token.
        vocabulary: tokens that the drafter proposes, the most frequent of the data; 0 = all. The head is most of the
            cost of training, and of drafting, where the target's vocabulary is large. Of no use with --init.
    """

    depth: int = 5
    shifts_at_once: int = 1
    shift_decay: float = 1.0
    final_norm: bool = False
    start: str = "random"
    start_scale: float = 1.0
    window: int = 512
    vocabulary: int = 0

    def validate(self) -> None:
        """See RunOptions."""
        super().validate()
        if self.length <= self.depth:
            raise InvalidArgumentError(f"length is {self.length}, expected more than depth ({self.depth})")


@dataclass(frozen=True)
class DFlashOptions(RunOptions):
    """And a DFlash drafter.

    Attributes:
        layers: of the drafter.
        block_size: rows of a block, the root among them.
        target_layers: of the target, whose outputs are the features; empty = as many as the drafter has, at the places
            that the published format gives them.
        mask_token: whose embedding stands for a token to come; -1 = the last of the vocabulary.
        anchors: roots of blocks in a row of a batch; some may coincide.
        gamma: the k-th token of a block counts exp(-(k - 1) / gamma); the paper takes 7 for blocks of 16, 4 for 8.
    """

    layers: int = 2
    block_size: int = 16
    target_layers: tuple[int, ...] = ()
    mask_token: int = -1
    anchors: int = 32
    gamma: float = 7.0

    def validate(self) -> None:
        """See RunOptions."""
        super().validate()
        if list(self.target_layers) != sorted(set(self.target_layers)) or min(self.target_layers, default=0) < 0:
            raise InvalidArgumentError(f"target_layers is {list(self.target_layers)}, expected ascending numbers")


@dataclass(frozen=True)
class GenerateOptions:
    """How continuations are made.

    Attributes:
        max_new: tokens of a continuation; it ends earlier at the end of text and where a 16-gram repeats.
        sampled_share: share of prompts whose continuation is sampled at `temperature`; the rest is greedy.
        temperature: of those.
        opening: greedy continuations of half the prompts begin with 1..opening sampled tokens, so that one prompt
            gives more than one text; 0 = off. They count as given.
        minutes: no new wave of prompts starts after this; 0 = all prompts.
        concurrency: sequences that run at once.
        device, dtype: of the engine.
        seed: of the samples.
    """

    max_new: int = 256
    sampled_share: float = 0.0
    temperature: float = 1.0
    opening: int = 0
    minutes: float = 0.0
    concurrency: int = 16
    device: str = "cpu"
    dtype: str = "auto"
    seed: int = 0

    def validate(self) -> None:
        """Raises InvalidArgumentError naming the option."""
        for name, low, high in (
            ("max_new", 1, 1 << 20),
            ("sampled_share", 0, 1),
            ("temperature", 0, 100),
            ("opening", 0, 1 << 16),
            ("minutes", 0, 1e6),
            ("concurrency", 1, 4096),
            ("seed", 0, 1 << 62),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidArgumentError(f"{name} is {value}, expected {low} to {high:g}")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("steps", 0, 1e9),
    ("minutes", 0, 1e5),
    ("length", 32, 1 << 20),
    ("batch_tokens", 32, 1 << 30),
    ("lr", 0, 10),
    ("warmup_steps", 0, 1e9),
    ("final_lr", 0, 1),
    ("weight_decay", 0, 10),
    ("beta2", 0.5, 0.99999),
    ("clip", 1e-6, 1e9),
    ("depth", 1, 64),
    ("shifts_at_once", 1, 64),
    ("shift_decay", 0.01, 1),
    ("anchor_positions", -1, 1 << 24),
    ("anchor_share", 0, 1),
    ("distill", 0, 1),
    ("start_scale", 1e-6, 1e3),
    ("window", 1, 1 << 20),
    ("layers", 1, 64),
    ("block_size", 2, 256),
    ("mask_token", -1, 1 << 24),
    ("anchors", 1, 4096),
    ("gamma", 1e-3, 1e6),
    ("intermediate_size", 0, 1 << 20),
    ("vocabulary", 0, 1 << 24),
    ("seed", 0, 1 << 31),
    ("average", 0, 0.99999),
    ("evaluations", 1, 1e6),
    ("eval_documents", 1, 1 << 20),
    ("eval_offset", 0, 1 << 24),
    ("save_seconds", 0, 1e9),
    ("log_seconds", 0, 1e9),
)

_CHOICES = {"labels": ("data", "target"), "start": ("target", "random"), "dtype": ("bfloat16", "float32")}

PRESETS: dict[str, TrainOptions] = {
    # The three stages of the paper, section 4.1. Each later one starts from the drafter before it (--init).
    "short": TrainOptions(steps=20_000, length=1024, batch_tokens=65536, lr=5e-4, anchor_positions=15_000),
    "long": TrainOptions(steps=2_000, length=32_768, batch_tokens=65536, lr=5e-6, anchor_positions=0),
    "sft": TrainOptions(steps=1_000, length=32_768, batch_tokens=65536, lr=5e-6, anchor_positions=0, prompt_loss=False),
    # The shipped drafter of SmolLM2-135M-Instruct: short rows of the target's own continuations, everything that the
    # target gives kept on one H200, and four minutes spent on steps of the 4.2M parameters.
    "smollm2-demo": TrainOptions(
        minutes=4.0,
        length=512,
        batch_tokens=131072,
        lr=4e-3,
        warmup_steps=200,
        weight_decay=0.01,
        shifts_at_once=8,
        shift_decay=0.8,
        anchor_share=0.5,
        labels="target",
        distill=0.8,
        prompt_loss=False,
        final_norm=True,
        start="target",
        cache_target=True,
        average=0.998,
        evaluations=8,
        eval_documents=32,
        save_seconds=120.0,
    ),
}
# A drafter for long contexts of a small model with a large vocabulary: moved short rows, then long rows as they are.
PRESETS["long-context-1"] = replace(
    PRESETS["smollm2-demo"],
    minutes=3.0,
    batch_tokens=65536,
    lr=2e-3,
    distill=0.5,
    anchor_share=0.7,
    intermediate_size=2048,
    vocabulary=49152,
    evaluations=4,
)
PRESETS["long-context-2"] = replace(
    PRESETS["long-context-1"],
    minutes=1.5,
    length=32768,
    batch_tokens=131072,
    lr=3e-4,
    warmup_steps=20,
    shifts_at_once=4,
    anchor_positions=0,
    prompt_loss=True,
    average=0.98,
    evaluations=4,
)


DFLASH_PRESETS: dict[str, DFlashOptions] = {
    # The paper's recipe, for drafters of large targets.
    "paper": DFlashOptions(
        steps=20_000, length=3072, batch_tokens=65536, lr=6e-4, layers=5, anchors=512, anchor_positions=0
    ),
    # A drafter of SmolLM2-135M-Instruct in four minutes on one H200, from the data of LongSpec's recipe.
    "smollm2-demo": DFlashOptions(
        minutes=3.5,
        length=512,
        batch_tokens=32768,
        lr=2e-3,
        warmup_steps=100,
        layers=2,
        block_size=8,
        target_layers=(1, 10, 19, 28),
        mask_token=7,  # <gh_stars>, which no conversation holds
        intermediate_size=1024,
        anchors=64,
        gamma=4.0,
        anchor_share=0.5,
        labels="target",
        distill=0.5,
        prompt_loss=False,
        average=0.998,
        evaluations=6,
        eval_documents=16,
        save_seconds=120.0,
    ),
}

Options = TypeVar("Options", bound=RunOptions)


def from_preset(preset: str | None, changes: dict[str, Any], defaults: Options, presets: dict[str, Options]) -> Options:
    """A preset (None = the defaults) with some fields changed. `steps` replaces `minutes` and the other way round."""
    if preset is not None and preset not in presets:
        raise InvalidArgumentError(f"preset {preset!r}: expected {', '.join(presets)}")
    known = {field.name for field in fields(defaults)}
    if unknown := sorted(changes.keys() - known):
        raise InvalidArgumentError(f"unknown option {unknown[0]!r}")
    if changes.get("steps") and "minutes" not in changes:
        changes = {**changes, "minutes": 0.0}
    elif changes.get("minutes") and "steps" not in changes:
        changes = {**changes, "steps": 0}
    options = replace(presets[preset] if preset else defaults, **changes)
    options.validate()
    return options
