"""Options and parameters: what is refused, and in which words."""

import copy
import pickle
from pathlib import Path

import pytest

import fastspec
from fastspec import LLM, DrafterConfig, EngineConfig, InvalidArgumentError, SamplingParams


def test_unknown_engine_option_names_itself_and_the_possible_ones(tiny_model_dir: Path) -> None:
    with pytest.raises(TypeError, match=r"no option 'max_seqs'; possible: .*max_num_seqs.*max_draft_tokens"):
        LLM(tiny_model_dir, max_seqs=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"page_size": 12}, "page_size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_batch_rows": 0}, "max_batch_rows"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"kv_cache_bytes": -5}, "kv_cache_bytes"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization"),
        ({"num_threads": -1}, "num_threads"),
        ({"device": "tpu"}, "device"),
        ({"dtype": "int3"}, "int3"),
        ({"drafter": "oracle"}, "oracle"),
        ({"max_draft_tokens": 4}, "max_draft_tokens"),
        ({"drafter": "ngram", "max_draft_tokens": 0}, "max_draft_tokens"),
        ({"row_budget": "off"}, "row_budget"),
        ({"drafter": "ngram", "row_budget": "fixed:2"}, "fixed:RHO"),
        ({"drafter": "ngram", "row_budget_objective": "speed"}, "throughput or paper"),
        ({"drafter": "ngram", "profile_seconds": 0.0}, "profile_seconds"),
        ({"drafter": DrafterConfig(kind="ngram", ngram_min=5, ngram_max=2)}, "ngram"),
    ],
)
def test_impossible_engine_options(tiny_model_dir: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        LLM(tiny_model_dir, **options)  # type: ignore[arg-type]
    assert caught.value.code == "invalid_argument"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.5},
        {"n": 0},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"min_tokens": 20, "max_tokens": 10},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0},
        {"frequency_penalty": -3.0},
        {"logprobs": -1},
        {"stop": ""},
    ],
)
def test_impossible_sampling_params(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        SamplingParams(**options)  # type: ignore[arg-type]


def test_sampling_params_of_a_wrong_type_or_name() -> None:
    with pytest.raises(TypeError, match=r"SamplingParams\.temperature: expected float, got 'hot'"):
        SamplingParams(temperature="hot")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"no option 'temprature'; possible: temperature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="logit_bias"):
        SamplingParams(logit_bias=[1])  # type: ignore[arg-type]
    params = SamplingParams()
    with pytest.raises(TypeError, match="top_k"):
        params.top_k = 1.5  # type: ignore[assignment]


def test_sampling_params_are_values() -> None:
    params = SamplingParams(temperature=0.7, stop="end", logit_bias={3: -1.5}, seed=2**64 - 1, logprobs=2)
    assert params.temperature == 0.7  # not the nearest float32
    assert params.stop == ["end"]
    assert params.logit_bias == {3: -1.5}
    assert pickle.loads(pickle.dumps(params)) == params == copy.deepcopy(params)
    assert params != SamplingParams(temperature=0.7)
    assert "temperature=0.7" in repr(params)


def test_engine_config_to_json_and_back() -> None:
    config = EngineConfig(model="somewhere", dtype="bfloat16", max_num_seqs=3)
    config.speculation.drafter = DrafterConfig.parse("standalone:elsewhere")
    assert EngineConfig.from_json(config.to_json()) == config
    with pytest.raises(InvalidArgumentError, match="max_seqs"):
        EngineConfig.from_json('{"max_seqs": 3}')


@pytest.mark.parametrize("prompt", [[[]], "", [5, 320], [-1], list(range(200))])
def test_prompts_that_can_never_run(llm: LLM, prompt: object) -> None:
    with pytest.raises(InvalidArgumentError):
        llm.generate(prompt, SamplingParams(max_tokens=2), progress=False)  # type: ignore[arg-type]
    assert llm.stats().sequences_waiting == 0


def test_a_bad_prompt_among_good_ones_runs_nothing(llm: LLM) -> None:
    before = llm.stats().generated_tokens
    with pytest.raises(InvalidArgumentError):
        llm.generate(["good", [9999]], progress=False)
    assert llm.stats().sequences_running == 0
    assert llm.stats().generated_tokens - before <= 1  # the pass that ends the good one may still run
    with pytest.raises(InvalidArgumentError, match="2 of them for 1"):
        llm.generate("x", [SamplingParams(), SamplingParams()], progress=False)


def test_errors_of_the_engine_have_their_classes(tiny_model_dir: Path, model_copy: Path) -> None:
    (model_copy / "config.json").write_text('{"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}')
    with pytest.raises(fastspec.UnsupportedError, match=r"[Mm]amba2") as unsupported:
        LLM(model_copy)
    assert unsupported.value.code == "unsupported"
    (model_copy / "config.json").write_text("{")
    with pytest.raises(fastspec.InvalidFileError, match=r"config\.json"):
        LLM(model_copy)
    (model_copy / "config.json").unlink()
    with pytest.raises(fastspec.NotFoundError, match=r"config\.json") as missing:
        LLM(model_copy)
    assert isinstance(missing.value, FileNotFoundError)
    with pytest.raises(fastspec.OutOfMemoryError):
        LLM(tiny_model_dir, kv_cache_bytes=1)
