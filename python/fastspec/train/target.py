"""The frozen target of a training run: what a drafter reads of it, and nothing else. Shared by all uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastspec.errors import InvalidFileError, NotFoundError, UnsupportedError
from fastspec.train import attention
from fastspec.train.block import BlockShape, Rope

SINKS = 4  # leading positions that anchor-offset indices leave in place
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_NAME = "fastspec_last_layer"

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query, key, value) -> result, all [B, heads or kv_heads, rows, head_dim] and with positions."""


@dataclass(frozen=True)
class TargetStates:
    """What a drafter sees of the target on B sequences of L tokens.

    Attributes:
        keys, values: of the last layer, keys with positions, [B, kv_heads, L, head_dim]; None with features.
        features: outputs of some layers, one after another, [B, L, layers * hidden]; None where none is asked for.
        hidden: what the head turns into logits, [B, L, hidden]; None where it is not needed.
        choices: the target's most likely next token at every place, int32 [B, L].
    """

    keys: torch.Tensor | None
    values: torch.Tensor | None
    features: torch.Tensor | None
    hidden: torch.Tensor | None
    choices: torch.Tensor

    def last_layer(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, where there are any."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def rows(self, index: Any) -> TargetStates:
        """Some of the sequences."""
        return TargetStates(**{name: None if part is None else part[index] for name, part in vars(self).items()})


class Target:
    """A causal language model of one of FAMILIES, frozen."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Loads a Hugging Face directory.

        Raises:
            NotFoundError, InvalidFileError: no such model, or one that transformers cannot load.
            UnsupportedError: another family.
        """
        import transformers

        if not (directory / "config.json").is_file():
            raise NotFoundError(f"{directory} is no model: it has no config.json")
        transformers.AttentionInterface.register(_NAME, _attend)
        transformers.utils.logging.disable_progress_bar()
        try:
            config = transformers.AutoConfig.from_pretrained(directory)
            if config.model_type not in FAMILIES:
                raise UnsupportedError(
                    f"{directory}: drafters are trained for {', '.join(FAMILIES)}, not for {config.model_type!r}"
                )
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation=_NAME
            )
        except (OSError, ValueError, KeyError) as error:
            raise InvalidFileError(f"{directory}: {str(error).strip().splitlines()[0]}") from error
        self.directory = directory
        self.config: Any = config
        self.device, self.dtype = device, dtype
        self.model: Any = model.to(device).eval().requires_grad_(False)
        self.model.model.layers[-1].self_attn.shown_to = self._see
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def head(self) -> torch.Tensor:
        """The output head's weight, [vocabulary, hidden]."""
        weight: torch.Tensor = self.model.lm_head.weight
        return weight

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return int(self.head.shape[0])

    @property
    def max_positions(self) -> int:
        """Longest sequence of the model."""
        return int(self.config.max_position_embeddings)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[..., hidden]."""
        embedded: torch.Tensor = self.model.model.embed_tokens(tokens)
        return embedded

    def rope(self, positions: torch.Tensor) -> Rope:
        """Cosines and sines of [B, L] positions, in float32, with the model's own scaling."""
        like = torch.empty(0, device=self.device, dtype=torch.float32)
        cos, sin = self.model.model.rotary_emb(like, positions)
        return cos, sin

    def block_shape(self, final_norm: bool, window: int, intermediate_size: int | None) -> BlockShape:
        """Sizes of a drafter for this target."""
        config = self.config
        heads = config.num_attention_heads
        return BlockShape(
            hidden_size=config.hidden_size,
            intermediate_size=intermediate_size or config.intermediate_size,
            num_heads=heads,
            num_kv_heads=config.num_key_value_heads or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            norm_eps=config.rms_norm_eps,
            final_norm=final_norm,
            window=window,
        )

    @torch.no_grad()
    def states(
        self, tokens: torch.Tensor, positions: torch.Tensor, with_hidden: bool, layers: Sequence[int] = ()
    ) -> TargetStates:
        """One causal pass over [B, L] tokens at [B, L] positions; with the outputs of `layers` where some are named.

        Sequences may end in padding: nothing before it sees it.
        """
        features: list[torch.Tensor] = []
        hooks = [self.model.model.layers[layer].register_forward_hook(_keeper(features)) for layer in layers]
        try:
            out = self.model.model(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        assert self._seen is not None
        keys, values = self._seen
        self._seen = None
        flat = out.flatten(0, 1)
        choices = torch.cat([(part @ self.head.T).argmax(-1) for part in flat.split(8192)])
        return TargetStates(
            keys=None if layers else keys,
            values=None if layers else values,
            features=torch.cat(features, dim=-1) if layers else None,
            hidden=out if with_hidden else None,
            choices=choices.view(tokens.shape).int(),
        )

    @contextmanager
    def attending(self, attend: Attend) -> Iterator[None]:
        """Inside, `attend` computes the attention of every layer; rows then see what it lets them see."""
        modules = [layer.self_attn for layer in self.model.model.layers]
        for module in modules:
            module.attended_by = attend
        try:
            yield
        finally:
            for module in modules:
                del module.attended_by

    def _see(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._seen = keys, values


def _keeper(outputs: list[torch.Tensor]) -> Any:
    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        outputs.append(output if isinstance(output, torch.Tensor) else output[0])

    return hook


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it, causal unless something else attends (Target.attending).

    Shows the last layer's keys and values to its Target.
    """
    if (attend := getattr(module, "attended_by", None)) is not None:
        return attend(module.layer_idx, query, key, value).transpose(1, 2), None
    if hasattr(module, "shown_to"):
        module.shown_to(key, value)
    window = options.get("sliding_window")
    out = (
        attention.causal(query, key, value)
        if window is None
        else attention.windowed(query, key, value, int(window) - 1)  # transformers counts the query itself
    )
    return out.transpose(1, 2), None


def offset_positions(length: int, offsets: torch.Tensor) -> torch.Tensor:
    """Anchor-offset indices (LongSpec, section 3.2): 0..length-1, all but the first SINKS moved by an offset a row.

    Args:
        length: tokens of a row.
        offsets: int64 [B].

    Returns:
        int64 [B, length].
    """
    places = torch.arange(length, device=offsets.device).repeat(offsets.numel(), 1)
    return moved(places, offsets[:, None])


def moved(places: torch.Tensor, offset: torch.Tensor | int) -> torch.Tensor:
    """Positions of places 0, 1, ...: those of all but the first SINKS are moved by the offset."""
    return places + (places >= SINKS) * offset
