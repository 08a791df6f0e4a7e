"""Sparse passes' faces: options, guarantees, the switch of a request, statistics."""

import json
from pathlib import Path

import pytest
from conftest import RunCli

from fastspec import (
    LLM,
    Guarantee,
    InvalidArgumentError,
    NotFoundError,
    RequestSpeculation,
    SamplingParams,
    SparseConfig,
)

PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPT = "the dog and then the dog and then the dog and then the dog and then the"


def sparse_llm(directory: Path, **options: object) -> LLM:
    config = SparseConfig(selector="streaming", kv_budget=8, sinks=2, recent=4)
    return LLM(directory, "ngram", device="cpu:reference", sparse=config, max_num_seqs=2, **options)  # type: ignore[arg-type]


def test_exact_runs_give_the_tokens_of_plain_decoding(tiny_model_dir: Path, llm: LLM) -> None:
    plain = llm.generate(PROMPT, PARAMS, progress=False)[0]
    for interval in (0, 1, 5):
        with sparse_llm(tiny_model_dir, refresh_interval=interval) as sparse:
            seen = sparse.generate(PROMPT, PARAMS, progress=False)[0].outputs[0]
            assert seen.token_ids == plain.token_ids
            assert seen.guarantee is Guarantee.EXACT
            assert seen.stats is not None
            assert seen.stats.sparse.sparse_passes > 0
            stats = sparse.stats()
            assert stats.sparse.confirmed_tokens + stats.sparse.taken_back_tokens > 0
            assert stats.decoding_passes == stats.sparse.dense_passes
            assert "provisional tokens confirmed" in str(stats)
            assert (sparse.info.selector, sparse.info.kv_budget) == ("streaming", 8)
            assert sparse.info.guarantee == Guarantee.EXACT
            dense = sparse.generate(PROMPT, PARAMS, sparse=False, progress=False)[0].outputs[0]
            assert dense.stats is not None
            assert dense.stats.sparse.sparse_passes == 0


def test_the_model_drafts_for_itself(tiny_model_dir: Path, llm: LLM) -> None:
    plain = llm.generate(PROMPT, PARAMS, progress=False)[0]
    with LLM(tiny_model_dir, "self_sparse", device="cpu:reference", kv_budget=24, max_draft_tokens=4) as drafting:
        assert drafting.generate(PROMPT, PARAMS, progress=False)[0].token_ids == plain.token_ids
        passes = drafting.stats().sparse.sparse_passes
        assert passes > 0
        assert drafting.info.selector == "streaming"
        off = RequestSpeculation(enabled=False)
        assert drafting.generate(PROMPT, PARAMS, speculation=off, progress=False)[0].token_ids == plain.token_ids
        assert drafting.stats().sparse.sparse_passes == passes
        with pytest.raises(InvalidArgumentError, match="self_sparse is confirmed by dense passes"):
            drafting.generate(PROMPT, PARAMS, guarantee="sparse", progress=False)


def test_a_config_stays_the_callers(tiny_model_dir: Path) -> None:
    config = SparseConfig(selector="streaming", kv_budget=64)
    LLM(tiny_model_dir, sparse=config, kv_budget=24, guarantee="sparse", device="cpu:reference")
    assert (config.kv_budget, config.guarantee) == (64, Guarantee.EXACT)


def test_a_manifest_may_lie_at_home(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotFoundError, match=f"{tmp_path}/heads.json"):
        LLM(tiny_model_dir, sparse="dustin:~/heads.json", device="cpu:reference")


def test_bench_of_a_shape_refuses_what_it_would_ignore(run_cli: RunCli) -> None:
    for option, reason in (
        (["--sparse", "streaming"], "no effect without synthetic_rows"),
        (["--sparse", "quest", "--synthetic-rows", "4"], "streaming, history and dustin"),
        (["--kv-budget", "64"], "no effect without --sparse"),
        (["--row-budget", "auto"], "--shape measures steps without files"),
        (["--synthetic-drafter", "dflash"], "dflash:LAYERS"),
        (["--synthetic-drafter", "longspec:0x"], "longspec:VOCABULARY"),
    ):
        seen = run_cli("bench", "--shape", "qwen2.5-7b", *option)
        assert seen.returncode == 2
        assert reason in seen.stderr


def test_bench_counts_the_sparse_passes_of_its_own_runs(tiny_model_dir: Path, run_cli: RunCli) -> None:
    options = ["--context", "80", "--max-tokens", "20", "--repeat", "2", "--sparse", "streaming", "--kv-budget", "24"]
    seen = run_cli("bench", "--model", str(tiny_model_dir), *options, "--guarantee", "sparse", "--batch", "1", "--json")
    assert seen.returncode == 0, seen.stderr
    assert "guarantee sparse" in seen.stderr
    case = json.loads(seen.stdout)["cases"][0]
    assert case["plain"]["sparse"]["sparse_passes"] == 0
    assert 0 < case["speculative"]["sparse"]["sparse_passes"] < 20


def test_the_sparse_guarantee_says_so(tiny_model_dir: Path) -> None:
    with sparse_llm(tiny_model_dir, guarantee="sparse", refresh_interval=6) as sparse:
        seen = sparse.generate(PROMPT, PARAMS, progress=False)[0].outputs[0]
        assert seen.guarantee is Guarantee.SPARSE
        stats = sparse.stats().sparse
        assert stats.refreshes > 0
        assert stats.kv_bytes_read < stats.kv_bytes_dense
        assert stats.confirmed_tokens == 0


def test_a_request_may_ask_for_the_other_guarantee(tiny_model_dir: Path) -> None:
    with sparse_llm(tiny_model_dir) as exact, sparse_llm(tiny_model_dir, guarantee="sparse") as sparse:
        expected = sparse.generate(PROMPT, PARAMS, progress=False)[0].outputs[0]
        seen = exact.generate(PROMPT, PARAMS, guarantee="sparse", progress=False)[0].outputs[0]
        assert seen.guarantee is Guarantee.SPARSE
        assert seen.token_ids == expected.token_ids
        with pytest.raises(InvalidArgumentError, match=r"sparse\.guarantee exact"):
            sparse.generate(PROMPT, PARAMS, guarantee="exact", progress=False)
        with pytest.raises(InvalidArgumentError, match="Request.guarantee: .*exact or sparse"):
            exact.stream(PROMPT, PARAMS, guarantee="near")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_budget": 100}, "kv_budget has no effect"),
        ({"sparse": "snapkv"}, "dustin:MANIFEST"),
        ({"sparse": "streaming", "kv_budget": 3}, "kv_budget"),
        ({"sparse": "streaming", "guarantee": "near"}, "exact or sparse"),
        ({"drafter": "self_sparse", "guarantee": "sparse"}, "confirmed by dense passes"),
        ({"drafter": "self_sparse", "row_budget": "auto"}, "no rows to share out"),
        ({"sparse": "streaming", "refresh_interval": 65}, "refresh_interval"),
    ],
)
def test_impossible_options(tiny_model_dir: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        LLM(tiny_model_dir, **options)  # type: ignore[arg-type]


def test_cli(run_cli: RunCli, tiny_model_dir: Path) -> None:
    options = [
        "--model",
        tiny_model_dir,
        "--prompt",
        PROMPT,
        "--max-tokens",
        "30",
        "--temperature",
        "0",
        "--ignore-eos",
    ]
    plain = json.loads(run_cli("generate", *options, "--json").stdout)
    assert "sparse" not in plain
    sparse = [*options, "--sparse", "streaming", "--kv-budget", "20"]
    exact = json.loads(run_cli("generate", *sparse, "--refresh-interval", "3", "--json").stdout)
    assert exact["guarantee"] == "exact"
    assert exact["sparse"]["sparse_passes"] > 0
    assert exact["sparse"]["mean_mass"] is None
    self_sparse = ["--drafter", "self_sparse", "--kv-budget", "20", "--max-draft-tokens", "3", "--json"]
    assert json.loads(run_cli("generate", *options, *self_sparse).stdout)["sparse"] == exact["sparse"]
    labelled = json.loads(run_cli("generate", *sparse, "--guarantee", "sparse", "--json").stdout)
    assert labelled["guarantee"] == "sparse"
    for wrong, words in [
        (["--kv-budget", "20"], "without --sparse"),
        (["--min-mass", "0.5"], "without --sparse"),
        (["--sparse", "history", "--min-mass", "1"], "sparse.min_mass is 1"),
        (["--sparse", "quest", "--min-margin", "-1"], "sparse.min_margin is -1"),
        (["--sparse", "oracle"], "dustin:MANIFEST"),
        (["--sparse", "streaming", "--guarantee", "near"], "exact or sparse"),
    ]:
        result = run_cli("generate", *options, *wrong)
        assert result.returncode == 2
        assert words in result.stderr
    described = run_cli("info", "--model", tiny_model_dir, "--sparse", "streaming", "--kv-budget", "20").stdout
    assert "sparse passes  streaming, 20 keys, guarantee exact" in described


def test_tokens_that_never_win_by_enough_are_decoded_densely(tiny_model_dir: Path, llm: LLM) -> None:
    plain = llm.generate(PROMPT, PARAMS, progress=False)[0]
    with sparse_llm(tiny_model_dir, guarantee="sparse", min_margin=1e6) as careful:
        assert careful.generate(PROMPT, PARAMS, progress=False)[0].token_ids == plain.token_ids
        assert careful.stats().sparse.sparse_passes > 0


def test_too_little_mass_makes_the_next_pass_dense(tiny_model_dir: Path, run_cli: RunCli) -> None:
    """Which selectors with queries know; the share that a random model's 24 keys hold is well below 0.9."""
    given = ["generate", "--model", tiny_model_dir, "--prompt", PROMPT, "--max-tokens", "30", "--ignore-eos", "--json"]
    given += ["--temperature", "0", "--sparse", "history", "--kv-budget", "24", "--guarantee", "sparse"]
    passes = [json.loads(run_cli(*given, "--min-mass", mass).stdout)["sparse"]["dense_passes"] for mass in ("0", "0.9")]
    assert passes[1] > passes[0] + 5
