"""The row budget's faces: options, statistics, measured costs and their picture."""

import json
from pathlib import Path

import pytest
from conftest import RunCli

from fastspec import LLM, InvalidArgumentError, InvalidFileError, SamplingParams, SpeculationConfig, profile_plot
from fastspec.__main__ import main

PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPT = "the dog and then the dog and then the"


def test_every_row_budget_gives_the_same_tokens(tiny_model_dir: Path, llm: LLM) -> None:
    plain = llm.generate(PROMPT, PARAMS, progress=False)[0].token_ids
    for budget in ("off", "auto", "fixed:0.25", "fixed:1"):
        for objective in ("throughput", "paper"):
            with LLM(
                tiny_model_dir,
                f"standalone:{tiny_model_dir}",
                device="cpu:reference",
                max_num_seqs=2,
                row_budget=budget,
                row_budget_objective=objective,
                profile_seconds=0.5,
            ) as speculative:
                assert speculative.generate(PROMPT, PARAMS, progress=False)[0].token_ids == plain
                stats = speculative.stats()
                assert stats.accepted_tokens <= stats.verified_tokens <= stats.drafted_tokens
                assert bool(stats.budget.ratios) == (budget != "off")
                if budget == "fixed:0.25":
                    assert [count.ratio for count in stats.budget.ratios] == [0.25]
                    assert stats.verified_tokens < stats.drafted_tokens / 2


def test_options_of_the_config() -> None:
    config = SpeculationConfig(row_budget="fixed:0.5", row_budget_ratios=[0.1, 1.0])
    assert (config.row_budget, config.row_budget_objective) == ("fixed:0.5", "throughput")
    assert config.row_budget_ratios == [0.1, 1.0]
    assert SpeculationConfig(**{name: getattr(config, name) for name in config._fields}) == config
    with pytest.raises(InvalidArgumentError, match="row_budget.*fixed:RHO"):
        config.row_budget = "half"
    with pytest.raises(TypeError, match="row_budget"):
        config.row_budget = 0.5  # type: ignore[assignment]


def test_cli_profile_and_its_picture(
    run_cli: RunCli, tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", tiny_model_dir, "--drafter", "ngram", "--profile-seconds", "0.5", "--max-num-seqs", 4]
    text = run_cli("profile", *options).stdout
    assert "a pass, by its rows" in text
    assert "measured and predicted" in text
    refused = run_cli("profile", *options, "--row-budget", "fixed:0.5")
    assert refused.returncode == 2
    assert "fixed:0.5 has no effect" in refused.stderr
    result = run_cli("profile", *options, "--json")
    assert result.returncode == 0, result.stderr
    profile = json.loads(result.stdout)
    assert profile["linear"]["counts"][0] == 1
    assert json.loads(Path(profile["cache_file"]).read_text())["key"] == profile["key"]
    costs = tmp_path / "costs.json"
    costs.write_text(result.stdout)
    assert main(["profile", "plot", str(costs)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "costs.png")
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "plot", str(tmp_path / "costs.json"), "--output", str(tmp_path / "costs.foo")]) == 2
    assert "expected a name that ends in .png" in capsys.readouterr().err
    assert main(["profile", "plot", str(tmp_path / "costs.json")]) == 2
    assert "costs.json: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff", '{"linear": 3}', "[" * 100000])
def test_a_picture_of_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidFileError, match="profile --json"):
        profile_plot.read(costs)


def test_cli_row_budget(run_cli: RunCli, tiny_model_dir: Path) -> None:
    options = ["--model", tiny_model_dir, "--prompt", PROMPT, "--max-tokens", 40, "--ignore-eos", "--json"]
    plain = json.loads(run_cli("generate", *options).stdout)
    assert "row_budget" not in plain
    found = json.loads(run_cli("generate", *options, "--drafter", "ngram", "--row-budget", "fixed:0.5").stdout)
    assert found["token_ids"] == plain["token_ids"]
    budget = found["row_budget"]
    assert 0 <= budget["rows_accepted"] <= budget["rows_kept"] <= budget["rows_offered"]
    assert all(count["ratio"] == 0.5 for count in budget["ratios"])
    for extra, word in (
        (["--drafter", "ngram", "--row-budget", "half"], "off, auto or fixed:RHO"),
        (["--drafter", "ngram", "--row-budget-objective", "speed"], "throughput or paper"),
        (["--row-budget", "off"], "without --drafter"),
    ):
        refused = run_cli("generate", *options, *extra)
        assert refused.returncode == 2
        assert word in refused.stderr
    refused = run_cli("profile", "--model", tiny_model_dir)
    assert refused.returncode == 2
    assert "--drafter" in refused.stderr
