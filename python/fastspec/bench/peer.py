"""transformers as a side: greedy decoding with its own caches, in the fastest of the ways that run here.

The ways: a static cache whose step is replayed as a CUDA graph, a static cache step by step, a dynamic cache step by
step. Attention is SDPA. Each is tried at every point, and the fastest is measured; the report says which it was.
"""

from __future__ import annotations

import inspect
import json
import time
from pathlib import Path
from typing import Any

from fastspec._fastspec import shape_json
from fastspec.bench.engine import Prompts
from fastspec.bench.sides import Point, Run
from fastspec.errors import FastSpecError, NotFoundError

GRAPH = "static cache, CUDA graph"
STATIC = "static cache"
DYNAMIC = "dynamic cache"
WAYS = (GRAPH, STATIC, DYNAMIC)
_TRIAL_STEPS = 3

try:
    import torch
    import transformers
except ImportError as error:
    raise NotFoundError(f"comparing with transformers needs the package {error.name}: extra [bench]") from error


def random_model(shape: str, device: str, dtype: str) -> Any:
    """A model of a shape with transformers' own random weights, made on the device."""
    fields = json.loads(shape_json(shape))
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return model.eval()


def load_model(directory: Path, device: str, dtype: str) -> Any:
    """A real model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval().to(device)


class Decoder:
    """Greedy decoding of one batch on one cache. `step()` touches fixed memory only where the cache is static."""

    def __init__(self, model: Any, batch: int, capacity: int, way: str) -> None:
        """`capacity` tokens a sequence."""
        self._model = model
        self._way = way
        self._batch = batch
        self._capacity = capacity
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_cache_position = "cache_position" in names  # earlier 5.x
        self._tokens = torch.zeros(batch, 1, dtype=torch.long, device=model.device)
        self._position = torch.zeros(1, dtype=torch.long, device=model.device)
        self._drawn = torch.zeros(batch, capacity, dtype=torch.long, device=model.device)
        self._graph: Any = None
        self._make_cache()
        if way == GRAPH:
            self._capture()

    def _make_cache(self) -> None:
        config = self._model.config
        if self._way == DYNAMIC:
            self._cache = transformers.DynamicCache(config=config)
        else:
            self._cache = transformers.StaticCache(config=config, max_cache_len=self._capacity)

    def rewind(self, length: int) -> None:
        """The next token is at position `length`; a dynamic cache is emptied."""
        self._position.fill_(length)
        if self._way == DYNAMIC:
            self._make_cache()
            return
        for layer in self._cache.layers:
            if getattr(layer, "cumulative_length", None) is not None:
                layer.cumulative_length.fill_(length)

    def _forward(self, tokens: Any, positions: Any) -> Any:
        arguments = {self._cache_name: self._cache, "position_ids": positions[None], "logits_to_keep": 1}
        if self._takes_cache_position:
            arguments["cache_position"] = positions
        return self._model(input_ids=tokens, use_cache=True, **arguments).logits[:, -1].argmax(-1, keepdim=True)

    def step(self) -> None:
        """Feeds the last token, draws the next."""
        drawn = self._forward(self._tokens, self._position)
        self._tokens.copy_(drawn)
        self._position.add_(1)
        self._drawn.index_copy_(1, self._position, drawn)

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.step()
        self.rewind(0)

    def fill_with_noise(self, context: int) -> None:
        """K and V of `context` tokens."""
        self.rewind(0)
        config = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (self._batch, config.num_key_value_heads, context, head_dim)
        noise = torch.randn(shape, dtype=self._model.dtype, device=self._model.device)
        more = ({"cache_position": torch.arange(context, device=noise.device)},) if self._takes_cache_position else ()
        for layer in range(config.num_hidden_layers):
            self._cache.update(noise, noise, layer, *more)
        self._position.fill_(context)

    def fill_with_prompts(self, prompts: list[list[int]]) -> None:
        """One pass over prompts of one length; the first token is drawn."""
        self.rewind(0)
        tokens = torch.tensor(prompts, device=self._model.device)
        length = tokens.shape[1]
        drawn = self._forward(tokens, torch.arange(length, device=tokens.device))
        self._tokens.copy_(drawn)
        self._position.fill_(length)
        self._drawn.index_copy_(1, self._position, drawn)

    def decode(self, steps: int) -> float:
        """Milliseconds a step."""
        _synchronize(self._model.device)
        start = time.perf_counter()
        for _ in range(steps):
            if self._graph is None:
                self.step()
            else:
                self._graph.replay()
        _synchronize(self._model.device)
        return 1e3 * (time.perf_counter() - start) / steps

    def token_ids(self, first: int, count: int) -> list[list[int]]:
        """What was drawn for positions from `first` on."""
        return self._drawn[:, first : first + count].tolist()  # type: ignore[no-any-return]


def _synchronize(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _give_back(device: str) -> None:
    """What torch keeps for later is memory that the engine could use."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


class TransformersSide:
    """transformers at a point."""

    name = "transformers"

    def __init__(self, model: Any, steps: int, repetitions: int, prompts: Prompts | None, ways: list[str]) -> None:
        """`steps` a run; without prompts the cache holds noise."""
        self._model = model
        self._steps = steps
        self._repetitions = repetitions
        self._prompts = prompts
        self._ways = [way for way in ways if way != GRAPH or model.device.type == "cuda"]
        self._point = Point(0, 0)
        self._decoder: Decoder | None = None
        self._notes: dict[str, object] = {}

    def prepare(self, point: Point) -> None:
        """Finds the fastest way. Raises FastSpecError where none runs."""
        self._point = point
        tried: dict[str, float] = {}
        failed: dict[str, str] = {}
        for way in self._ways:
            try:
                with torch.no_grad():
                    self._make_decoder(way)
                    tried[way] = self._decode_trial()
            except Exception as error:  # anything that a version or a device may not do: the other ways remain
                failed[way] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._free()
        if not tried:
            raise FastSpecError(f"transformers runs in no way: {failed}")
        best = min(tried, key=tried.__getitem__)
        self._notes = {"way": best, "ms_per_step_by_way": tried, "ways_that_failed": failed}
        with torch.no_grad():
            self._make_decoder(best)
            self._decode_trial()

    def _make_decoder(self, way: str) -> None:
        # Where the cache goes on growing from run to run: every run, both trials and their warm-up.
        steps = self._steps * self._repetitions + 4 * _TRIAL_STEPS + 2
        self._decoder = Decoder(self._model, self._point.batch, self._point.context + steps, way)
        if self._prompts is None:
            self._decoder.fill_with_noise(self._point.context)
        else:
            self._decoder.fill_with_prompts(self._prompts(self._point))

    def _decode_trial(self) -> float:
        assert self._decoder is not None
        self._decoder.decode(_TRIAL_STEPS)
        return self._decoder.decode(_TRIAL_STEPS)

    def run(self) -> Run:
        """On noise further steps; after prompts all of it, of which decoding is timed."""
        assert self._decoder is not None
        with torch.no_grad():
            if self._prompts is None:
                return Run(self._decoder.decode(self._steps), self._point.batch)
            self._decoder.fill_with_prompts(self._prompts(self._point))
            milliseconds = self._decoder.decode(self._steps)
        return Run(milliseconds, self._point.batch, self._decoder.token_ids(self._point.context, self._steps + 1))

    def finish(self) -> dict[str, object]:
        """Which way it was, and what the others took."""
        self._free()
        return self._notes

    def _free(self) -> None:
        self._decoder = None
        _give_back(self._model.device.type)


def measured_rate(device: str) -> float:
    """Bytes a second that the device's memory moves: reading on a CPU, copying (both ways counted) on a GPU."""
    on_gpu = device.startswith("cuda")
    block = torch.ones(1 << (30 if on_gpu else 28), dtype=torch.float32, device=device.split(":reference")[0])
    target = torch.empty_like(block) if on_gpu else block
    best = float("inf")
    for _ in range(6):
        _synchronize(block.device)
        start = time.perf_counter()
        if on_gpu:
            target.copy_(block)
        else:
            block.sum()
        _synchronize(block.device)
        best = min(best, time.perf_counter() - start)
    moved = float((2 if on_gpu else 1) * block.nbytes)
    del block, target
    _give_back(device)
    return moved / best
