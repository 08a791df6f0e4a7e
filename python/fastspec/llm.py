"""LLM: load a model, generate text. The Python face of the engine; it never runs per row and holds no model logic."""

from __future__ import annotations

import operator
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from types import TracebackType
from typing import Any, SupportsIndex

from fastspec import hub
from fastspec._fastspec import (
    DrafterConfig,
    Engine,
    EngineConfig,
    EngineInfo,
    EngineStats,
    Request,
    RequestSpeculation,
    SamplingParams,
    SparseConfig,
    SpeculationConfig,
    Tokenizer,
)
from fastspec.chat import ChatTemplate
from fastspec.errors import InvalidArgumentError
from fastspec.loop import RequestLoop
from fastspec.outputs import CompletionOutput, RequestOutput, StreamDelta
from fastspec.progress import GenerationProgress, LoadProgress

TokenIds = Sequence[SupportsIndex]
Prompt = str | TokenIds
Message = Mapping[str, Any]

_OWN_ARGUMENTS = ("model", "dtype", "device", "speculation", "sparse")
_SPECULATION_OPTIONS = ("max_draft_tokens", "row_budget", "row_budget_objective", "profile_seconds")
_SPARSE_OPTIONS = ("kv_budget", "guarantee", "refresh_interval", "min_mass", "min_margin")


def engine_option_names() -> list[str]:
    """Names that LLM() takes as engine options."""
    return [
        *(name for name in EngineConfig._fields if name not in _OWN_ARGUMENTS),
        *_SPECULATION_OPTIONS,
        *_SPARSE_OPTIONS,
    ]


class LLM:
    """A loaded model.

    Several threads may use one LLM; their requests share the engine's passes. Use it as a context manager, or call
    close(), to give the memory back at a known moment.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        drafter: str | DrafterConfig | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        *,
        sparse: str | SparseConfig | None = None,
        progress: bool | None = None,
        **engine_options: Any,
    ) -> None:
        """Loads a model.

        Args:
            model: a Hugging Face directory, a name on the Hugging Face hub, or a .gguf file (converted once).
            drafter: None, "ngram", "standalone:MODEL", "longspec:MODEL", "dflash:MODEL", "self_sparse" (the model
                itself, over kv_budget of its keys) or a DrafterConfig. Speculation changes the speed, never the tokens.
                "longspec:" also takes the name of a drafter that comes with FastSpec (hub.shipped_drafters()).
            dtype: of weights and K/V: "float32", "bfloat16", "float16", or "auto" for the checkpoint's.
            device: "cpu", "cuda:N", or "cpu:reference" for the slow path whose results do not depend on the batch.
            sparse: None, "streaming", "history", "history:MANIFEST", "quest", "dustin:MANIFEST" or a SparseConfig:
                decoding passes that read a few cached keys of a long context instead of all.
            progress: show a progress bar where loading takes longer than a second; None = if stderr is a terminal.
            **engine_options: max_model_len, max_num_seqs, max_batch_rows, page_size, gpu_memory_utilization,
                kv_cache_bytes, num_threads (see EngineConfig), max_draft_tokens (tokens a drafter may propose for
                one sequence and step; by default 8, or the whole tree or block of longspec and dflash), row_budget
                ("off", "auto" or "fixed:RHO": how many of them are verified), row_budget_objective ("throughput" or
                "paper") and profile_seconds (see SpeculationConfig), kv_budget, guarantee ("exact": dense passes
                confirm every token before it is shown; "sparse": it is shown at once), refresh_interval, min_mass and
                min_margin (see SparseConfig).

        Raises:
            TypeError: an unknown option.
            InvalidArgumentError: an option with an impossible value.
            NotFoundError, InvalidFileError, UnsupportedError: the model cannot be loaded; the message says why.
            OutOfMemoryError: the memory budget cannot hold the model.
        """
        unknown = [name for name in engine_options if name not in engine_option_names()]
        if unknown:
            raise TypeError(f"LLM() has no option '{unknown[0]}'; possible: {', '.join(engine_option_names())}")
        speculation = SpeculationConfig(drafter=hub.resolve_drafter(drafter))
        for name in [name for name in _SPECULATION_OPTIONS if name in engine_options]:
            if not speculation.enabled:
                raise InvalidArgumentError(f"{name} has no effect without a drafter")
            setattr(speculation, name, engine_options.pop(name))
        passes = (
            copy(sparse)
            if isinstance(sparse, SparseConfig)
            else SparseConfig(selector=hub.expand_selector(sparse or "none"))
        )
        for name in [name for name in _SPARSE_OPTIONS if name in engine_options]:
            if not passes.enabled and speculation.drafter.kind != "self_sparse":
                raise InvalidArgumentError(f"{name} has no effect without sparse passes")
            setattr(passes, name, engine_options.pop(name))
        self._directory = hub.resolve_model(model)
        config = EngineConfig(
            model=str(self._directory),
            device=device,
            dtype=None if dtype == "auto" else dtype,
            speculation=speculation,
            sparse=passes,
            **engine_options,
        )
        with LoadProgress(shown=sys.stderr.isatty() if progress is None else progress) as bar:
            engine = Engine(config, bar.update)
        self._loop = RequestLoop(engine)
        self._info = engine.info
        self._tokenizer = engine.tokenizer
        self._chat_template: ChatTemplate | None = None

    # --- what was loaded ----------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What was loaded and how memory was divided."""
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; InvalidArgumentError when its directory has none."""
        if self._tokenizer is None:
            raise InvalidArgumentError(f"{self._directory} has no tokenizer.json: give token ids instead of text")
        return self._tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's own chat template; NotFoundError when its directory has none."""
        if self._chat_template is None:
            self._chat_template = ChatTemplate.load(self._directory)
        return self._chat_template

    def stats(self) -> EngineStats:
        """Totals since loading; str() of it is a report for people."""
        return self._loop.engine.stats()

    # --- generating ---------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: RequestSpeculation | None = None,
        sparse: bool | None = None,
        guarantee: str | None = None,
        add_special_tokens: bool = True,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Generates for one or many prompts, batched.

        Ctrl-C cancels what is unfinished and leaves the LLM usable.

        Args:
            prompts: a text, a list of token ids, or a list of these.
            sampling_params: one for all, or one for each prompt. None = SamplingParams().
            speculation: switches for these requests; None = the engine's.
            sparse: whether sparse passes may decode them; None = where the engine has them.
            guarantee: "exact" or "sparse", of sparse passes; None = the engine's. One made for "exact" gives either.
            add_special_tokens: for text: apply the tokenizer's post-processor (a leading BOS, for instance).
            progress: show a progress bar with tokens/s and the acceptance length.

        Returns:
            One RequestOutput a prompt, in the order of the prompts.

        Raises:
            InvalidArgumentError: a prompt or parameter that can never run; nothing is generated then.
            TypeError: a prompt that is neither text nor token ids, bytes for instance.
        """
        listed = _as_list(prompts)
        params = _one_each(sampling_params, len(listed))
        requests = [
            self._request(prompt, param, speculation, sparse, guarantee, add_special_tokens)
            for prompt, param in zip(listed, params, strict=True)
        ]
        results = [
            _empty_output(prompt if isinstance(prompt, str) else None, request)
            for prompt, request in zip(listed, requests, strict=True)
        ]
        return self._run(requests, results, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: RequestSpeculation | None = None,
        sparse: bool | None = None,
        guarantee: str | None = None,
        progress: bool = True,
        **template_arguments: Any,
    ) -> list[RequestOutput]:
        """Answers one or many conversations.

        Args:
            messages: a list of {"role": ..., "content": ...}, or a list of such lists.
            sampling_params: one for all, or one for each conversation. None = SamplingParams().
            speculation: switches for these requests; None = the engine's.
            sparse: whether sparse passes may decode them; None = where the engine has them.
            guarantee: "exact" or "sparse", of sparse passes; None = the engine's. One made for "exact" gives either.
            progress: show a progress bar.
            **template_arguments: variables of the model's chat template, enable_thinking=False or tools=[...] for
                instance.

        Returns:
            One RequestOutput a conversation; `prompt` is the rendered template.

        Raises:
            NotFoundError: the model has no chat template.
            InvalidArgumentError: the template refuses the messages.
        """
        conversations = _conversations(messages)
        params = _one_each(sampling_params, len(conversations))
        requests: list[Request] = []
        results: list[RequestOutput] = []
        for conversation, param in zip(conversations, params, strict=True):
            text = self.chat_template.render(conversation, **template_arguments)
            requests.append(self._request(text, param, speculation, sparse, guarantee, add_special_tokens=False))
            results.append(_empty_output(text, requests[-1]))
        return self._run(requests, results, progress)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        speculation: RequestSpeculation | None = None,
        sparse: bool | None = None,
        guarantee: str | None = None,
        add_special_tokens: bool = True,
    ) -> TokenStream:
        """Generates for one prompt, delta by delta.

        Returns:
            An iterator of StreamDelta. Closing it (or leaving its `with` block) cancels the request.

        Raises:
            InvalidArgumentError: at once, for a prompt or parameter that can never run.
        """
        params = sampling_params if sampling_params is not None else SamplingParams()
        return TokenStream(
            self._loop, self._request(prompt, params, speculation, sparse, guarantee, add_special_tokens)
        )

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        speculation: RequestSpeculation | None = None,
        sparse: bool | None = None,
        guarantee: str | None = None,
        **template_arguments: Any,
    ) -> TokenStream:
        """Answers one conversation, delta by delta; arguments of chat(), result of stream()."""
        text = self.chat_template.render(messages, **template_arguments)
        return self.stream(
            text, sampling_params, speculation=speculation, sparse=sparse, guarantee=guarantee, add_special_tokens=False
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancels what runs and frees the model. Later calls raise FastSpecError."""
        self._loop.shut_down()

    def __enter__(self) -> LLM:
        """The LLM itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """close()."""
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        speculation: RequestSpeculation | None,
        sparse: bool | None,
        guarantee: str | None,
        add_special_tokens: bool,
    ) -> Request:
        if isinstance(prompt, str):
            try:
                ids = self.tokenizer.encode(prompt, add_special_tokens)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"prompt: {error}") from None
        else:
            ids = _token_ids(prompt)
        if not ids:
            raise InvalidArgumentError("a prompt without tokens: the model needs at least one to go on from")
        return Request(
            prompt_token_ids=ids,
            sampling=params,
            speculation=speculation if speculation is not None else RequestSpeculation(),
            sparse=sparse,
            guarantee=guarantee,
        )

    def _run(self, requests: list[Request], results: list[RequestOutput], progress: bool) -> list[RequestOutput]:
        engine = self._loop.engine
        samples = sum(request.sampling.n for request in requests)
        channel = self._loop.open(requests)
        by_id = dict(zip(channel.request_ids, results, strict=True))
        try:
            with GenerationProgress(samples, engine.stats, shown=progress) as bar:
                # Until nothing comes, and not until nothing is unfinished: the last outputs may have been put into the
                # channel by another caller's step and wait there.
                while outputs := self._loop.receive(channel):
                    for output in outputs:
                        by_id[output.request].outputs[output.sample].add(output)
                        bar.advance(len(output.token_ids), output.finished)
        finally:
            self._loop.close(channel)
        return results


class TokenStream(Iterator[StreamDelta]):
    """The deltas of one request. Close it, or use it as a context manager, to cancel the rest."""

    def __init__(self, loop: RequestLoop, request: Request) -> None:
        """Submits the request; use LLM.stream()."""
        self._loop = loop
        self._output = _empty_output(None, request)
        self._deltas: list[StreamDelta] = []
        self._channel = loop.open([request])

    @property
    def output(self) -> RequestOutput:
        """What has come so far; whole when the stream has ended."""
        return self._output

    def __iter__(self) -> TokenStream:
        """The stream itself."""
        return self

    def __next__(self) -> StreamDelta:
        """The next delta; computes it if it is not there."""
        while not self._deltas:
            outputs = self._loop.receive(self._channel)
            if not outputs:
                raise StopIteration
            for output in outputs:
                completion = self._output.outputs[output.sample]
                completion.add(output)
                self._deltas.append(
                    StreamDelta(
                        index=output.sample,
                        text=output.text,
                        token_ids=output.token_ids,
                        logprobs=None if completion.logprobs is None else output.logprobs,
                        finish_reason=completion.finish_reason,
                        completion=completion,
                    )
                )
        return self._deltas.pop(0)

    def close(self) -> None:
        """Cancels the request if it is unfinished; the stream ends."""
        self._loop.close(self._channel)
        self._deltas.clear()

    def __enter__(self) -> TokenStream:
        """The stream itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """close()."""
        self.close()

    def __del__(self) -> None:
        """close(), for a stream that was dropped half read."""
        if hasattr(self, "_channel"):
            self.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | Mapping) or not hasattr(prompts, "__getitem__"):
        raise _no_prompt(prompts)
    listed = list(prompts)
    return [prompts] if listed and _is_index(listed[0]) else listed  # type: ignore[list-item, return-value]


def _is_index(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _token_ids(prompt: TokenIds) -> list[int]:
    """The ids; bytes and bools are refused, although Python takes them for integers."""
    if not isinstance(prompt, bytes | bytearray | Mapping | Set):
        try:
            tokens = list(prompt)
            if not any(isinstance(token, bool) for token in tokens):
                return [operator.index(token) for token in tokens]
        except TypeError:
            pass
    raise _no_prompt(prompt)


def _no_prompt(value: object) -> TypeError:
    return TypeError(f"a prompt is a str or a list of token ids (int), got {reprlib.repr(value)}")


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if len(messages) > 0 and isinstance(messages[0], Mapping):
        return [messages]  # type: ignore[list-item]
    return list(messages)  # type: ignore[arg-type]


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence):
        raise TypeError(f"sampling_params: expected SamplingParams or a list of them, got {params!r}")
    if len(params) != count:
        raise InvalidArgumentError(
            f"sampling_params: {len(params)} of them for {count} prompts; give one, or one for each"
        )
    return list(params)


def _empty_output(prompt: str | None, request: Request) -> RequestOutput:
    with_logprobs = request.sampling.logprobs is not None
    outputs = [
        CompletionOutput(index=index, logprobs=[] if with_logprobs else None) for index in range(request.sampling.n)
    ]
    return RequestOutput(prompt=prompt, prompt_token_ids=request.prompt_token_ids, outputs=outputs)
