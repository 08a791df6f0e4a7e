"""FastSpec: text generation with exact speculative decoding.

>>> from fastspec import LLM, SamplingParams
>>> llm = LLM("path/to/model", drafter="ngram")
>>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=16))[0].text
"""

from __future__ import annotations

from fastspec._fastspec import (
    BudgetStats,
    DrafterConfig,
    Engine,
    EngineConfig,
    EngineInfo,
    EngineStats,
    KernelTime,
    Output,
    OutputStats,
    PositionLogprobs,
    RatioCount,
    ReliabilityBin,
    Request,
    RequestSpeculation,
    SamplingParams,
    ShapeBenchmark,
    ShapeBenchmarkConfig,
    ShapePoint,
    SparseConfig,
    SparseStats,
    SpeculationConfig,
    StepReport,
    StepTrace,
    Tokenizer,
    TokenLogprob,
    __version__,
    shape_json,
)
from fastspec.errors import (
    DeviceFailureError,
    FastSpecError,
    InvalidArgumentError,
    InvalidFileError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
)
from fastspec.llm import LLM, TokenStream
from fastspec.outputs import CompletionOutput, FinishReason, Guarantee, RequestOutput, StreamDelta

__all__ = [
    "LLM",
    "BudgetStats",
    "CompletionOutput",
    "DeviceFailureError",
    "DrafterConfig",
    "Engine",
    "EngineConfig",
    "EngineInfo",
    "EngineStats",
    "FastSpecError",
    "FinishReason",
    "Guarantee",
    "InvalidArgumentError",
    "InvalidFileError",
    "KernelTime",
    "NotFoundError",
    "OutOfMemoryError",
    "Output",
    "OutputStats",
    "PositionLogprobs",
    "RatioCount",
    "ReliabilityBin",
    "Request",
    "RequestOutput",
    "RequestSpeculation",
    "SamplingParams",
    "ShapeBenchmark",
    "ShapeBenchmarkConfig",
    "ShapePoint",
    "SparseConfig",
    "SparseStats",
    "SpeculationConfig",
    "StepReport",
    "StepTrace",
    "StreamDelta",
    "TokenLogprob",
    "TokenStream",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "shape_json",
]
