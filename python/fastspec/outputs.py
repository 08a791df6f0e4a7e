"""What generation returns. Plain values; knows how deltas add up, and nothing of engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from fastspec._fastspec import Output, OutputStats, PositionLogprobs


class FinishReason(str, Enum):
    """Why a sample ended. Compares equal to its string."""

    STOP = "stop"
    """The end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens, or the model's limit."""
    CANCELLED = "cancelled"
    """cancel(), or a closed stream."""
    ERROR = "error"
    """The engine could not go on with this sample; see `error`."""

    __str__ = str.__str__


class Guarantee(str, Enum):
    """What is promised about an output. Compares equal to its string."""

    EXACT = "exact"
    """The tokens of plain decoding with the same seed."""
    SPARSE = "sparse"
    """Tokens accepted by passes that read a part of the context."""

    __str__ = str.__str__


@dataclass
class CompletionOutput:
    """One sample of a request.

    Attributes:
        index: number of the sample, 0 <= index < n.
        text: generated text; ends before a stop string.
        token_ids: generated tokens.
        logprobs: one entry a token, or None when they were not asked for.
        finish_reason: None while unfinished.
        seed: of the sampling noise; the same seed gives the same tokens.
        guarantee: what is promised about the tokens.
        min_margin: the smallest winning margin among the tokens, in units of logit / temperature; a tiny one is a
            near-tie that another rounding may decide otherwise.
        stats: what the sample cost; None while unfinished.
        error: why finish_reason is ERROR, otherwise empty.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    seed: int = 0
    guarantee: Guarantee = Guarantee.EXACT
    min_margin: float = math.inf
    stats: OutputStats | None = None
    error: str = ""

    def add(self, delta: Output) -> None:
        """Appends what is new in a delta of this sample."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        if self.logprobs is not None:
            self.logprobs += delta.logprobs
        self.seed = delta.seed
        self.guarantee = Guarantee(delta.guarantee)
        self.min_margin = min(self.min_margin, delta.min_margin)
        if delta.finished:
            self.finish_reason = FinishReason(delta.finish_reason)
            self.stats = delta.stats
            self.error = delta.error


@dataclass
class RequestOutput:
    """One prompt with its samples.

    Attributes:
        prompt: the text, or None when token ids were given.
        prompt_token_ids: what the model was given.
        outputs: one entry a sample, `SamplingParams.n` of them.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Generated tokens of the first sample."""
        return self.outputs[0].token_ids

    @property
    def finished(self) -> bool:
        """True when every sample has ended."""
        return all(output.finish_reason is not None for output in self.outputs)


@dataclass(frozen=True)
class StreamDelta:
    """What is new in one sample of a stream; str() is its text.

    Attributes:
        index: number of the sample.
        text: may be empty while a character or a possible stop string is incomplete.
        token_ids: several at once where drafted tokens were accepted.
        logprobs: one entry a token, or None when they were not asked for.
        finish_reason: None until the last delta of the sample.
        completion: the whole sample so far; final once finish_reason is set.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None
    finish_reason: FinishReason | None
    completion: CompletionOutput

    def __str__(self) -> str:
        """The new text."""
        return self.text
