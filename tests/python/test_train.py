"""Training and evaluation as a whole, on a tiny random model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastspec import LLM, DrafterConfig, SamplingParams
from fastspec.__main__ import main
from fastspec.train.acceptance import Prompt, coupling_table, measure, table, variants
from fastspec.train.block import LongSpecBlock, start_from_target
from fastspec.train.documents import Documents
from fastspec.train.drafter_files import load_drafter
from fastspec.train.longspec_recipe import LongSpecRecipe
from fastspec.train.offline import CHAIN, TREE, Tally, offline_acceptance
from fastspec.train.options import TrainOptions
from fastspec.train.ranks import Ranks
from fastspec.train.target import Target
from fastspec.train.trainer import Trainer

CPU = torch.device("cpu")
ONE = Ranks(0, 1, CPU)
OPTIONS = TrainOptions(
    steps=6,
    length=32,
    batch_tokens=256,
    lr=3e-3,
    warmup_steps=2,
    depth=3,
    shifts_at_once=2,
    anchor_positions=100,
    labels="target",
    distill=0.5,
    final_norm=True,
    dtype="float32",
    window=16,
    average=0.5,
    evaluations=3,
    save_seconds=0,
    log_seconds=0,
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tiny_model_dir: Path) -> Target:
    return Target(tiny_model_dir, CPU, torch.float32)


@pytest.fixture(scope="module")
def data(tiny_model_dir: Path) -> Documents:
    """Greedy continuations of random prompts."""
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, 320, (8,), generator=generator).tolist() for _ in range(24)]
    with LLM(tiny_model_dir, dtype="float32") as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True), progress=False)
    kinds = ["even" if i % 2 == 0 else "odd" for i in range(24)]
    return Documents.of([[*o.prompt_token_ids, *o.token_ids] for o in outputs], [8] * 24, kinds)


def new_block(target: Target) -> LongSpecBlock:
    torch.manual_seed(1)
    block = LongSpecBlock(target.block_shape(OPTIONS.final_norm, OPTIONS.window, None))
    start_from_target(block, target.model)
    return block


def trainer(
    target: Target,
    data: Documents,
    out: Path,
    options: TrainOptions = OPTIONS,
    ranks: Ranks = ONE,
    validation: Documents | None = None,
) -> Trainer:
    recipe = LongSpecRecipe(target, new_block(target), options)
    return Trainer(recipe, [data], validation, options, out, ranks, log=lambda _: None)


def weights(directory: Path) -> bytes:
    """Of checkpoint and drafter."""
    files = [*sorted((directory / "checkpoint").glob("*.safetensors")), directory / "model.safetensors"]
    return b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("cached", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(
    target: Target, data: Documents, tmp_path: Path, cached: bool
) -> None:
    options = replace(OPTIONS, cache_target=cached)
    assert trainer(target, data, tmp_path / "whole", options).run()
    assert trainer(target, data, tmp_path / "parts", options).run(until=3)
    assert weights(tmp_path / "whole") != weights(tmp_path / "parts")
    second = trainer(target, data, tmp_path / "parts", options)
    second.resume()
    assert second.progress.step == 3
    assert second.run()
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    losses = [[e["loss"] for e in json.loads((tmp_path / d / "history.json").read_text())] for d in ("whole", "parts")]
    assert losses[0] == losses[1]


class Scripted:
    """Stands in for offline acceptance: a score for each step; keeps the weights that it was asked about."""

    def __init__(self, scores: dict[int, int]) -> None:
        self.scores = scores
        self.seen: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, block: LongSpecBlock, *_: Any) -> dict[str, dict[str, Tally]]:
        step = sorted(self.scores)[len(self.seen)]
        self.seen[step] = {name: tensor.bfloat16() for name, tensor in block.state_dict().items()}
        tally = Tally(passes=10, committed=self.scores[step])
        return {"prose": {"chain": tally, "tree": tally}}


@pytest.mark.parametrize("until", [None, 3, 4, 5])
def test_the_best_evaluated_weights_become_the_drafter(
    target: Target, data: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: int | None
) -> None:
    """Also where the best came before the run was stopped; a stop itself evaluates nothing."""
    from safetensors.torch import load_file

    scripted = Scripted({2: 20, 4: 30, 6: 25})
    monkeypatch.setattr("fastspec.train.longspec_recipe.offline_acceptance", scripted)
    if until is not None:
        trainer(target, data, tmp_path, validation=data).run(until=until)
    run = trainer(target, data, tmp_path, validation=data)
    if until is not None:
        run.resume()
    run.run()
    assert [entry["step"] for entry in run.progress.history if "tau" in entry] == [2, 4, 6]
    written = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in scripted.seen[4].items())
    assert any(not torch.equal(written[name], tensor) for name, tensor in scripted.seen[6].items())


def test_a_run_made_longer_is_evaluated_again(target: Target, data: Documents, tmp_path: Path) -> None:
    trainer(target, data, tmp_path, validation=data).run()
    run = trainer(target, data, tmp_path, replace(OPTIONS, steps=12), validation=data)
    run.resume()
    run.run()
    assert [entry["step"] for entry in run.progress.history if "tau" in entry] == [2, 4, 6, 8, 12]


def test_another_run_is_not_resumed(target: Target, data: Documents, tmp_path: Path) -> None:
    trainer(target, data, tmp_path).run(until=1)
    with pytest.raises(ValueError, match=r"belongs to a run with lr = 0.003, this one has 0.1"):
        trainer(target, data, tmp_path, replace(OPTIONS, lr=0.1)).resume()
    with pytest.raises(ValueError, match=r"belongs to a run with data = "):
        trainer(target, data.select(range(20)), tmp_path).resume()
    with pytest.raises(ValueError, match=r"belongs to a run with validation = "):
        trainer(target, data, tmp_path, validation=data).resume()
    next((tmp_path / "checkpoint").glob("state*.safetensors")).write_bytes(b"")
    with pytest.raises(ValueError, match="checkpoint: "):
        trainer(target, data, tmp_path).resume()


def test_kept_states_are_those_of_each_pass(target: Target, data: Documents, tmp_path: Path) -> None:
    """Without offsets both ways see the same; the losses may differ by the rounding of other batch sizes."""
    options = replace(OPTIONS, anchor_positions=0, steps=3)
    losses = []
    for cached in (False, True):
        run = trainer(target, data, tmp_path / str(cached), replace(options, cache_target=cached))
        run.run()
        losses.append([entry["loss"] for entry in run.progress.history])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_training_lowers_the_loss_and_raises_acceptance(target: Target, data: Documents, tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=80, log_seconds=0, anchor_positions=0, cache_target=True, prompt_loss=False)
    data = data.select(range(8))
    before = offline_acceptance(new_block(target), target, data, {"chain": CHAIN})
    run = trainer(target, data, tmp_path, options, validation=data)
    run.run()
    entries = [entry for entry in run.progress.history if "loss" in entry]
    assert entries[-1]["loss"] < 0.7 * entries[0]["loss"]
    after = run.progress.history[-1]["tau"]
    for kind in ("even", "odd"):
        assert after[kind]["chain"] > before[kind]["chain"].tau + 0.2
        assert after[kind]["tree"] >= after[kind]["chain"]


def _train_as_rank(rank: int, directory: str, model: str, data: str) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="29517"
    )
    torch.set_num_threads(1)
    ranks = Ranks.join("cpu")
    target = Target(Path(model), CPU, torch.float32)
    trainer(target, Documents.load(Path(data), 320), Path(directory), replace(OPTIONS, steps=3), ranks).run()
    ranks.leave()


def test_two_processes_train_as_one(target: Target, data: Documents, tmp_path: Path, tiny_model_dir: Path) -> None:
    from safetensors.torch import load_file

    data.save(tmp_path / "data.safetensors")
    arguments = (str(tmp_path / "two"), str(tiny_model_dir), str(tmp_path / "data.safetensors"))
    torch.multiprocessing.spawn(_train_as_rank, arguments, nprocs=2)
    trainer(target, data, tmp_path / "one", replace(OPTIONS, steps=3)).run()
    one, two = (load_file(next((tmp_path / d / "checkpoint").glob("state*.safetensors"))) for d in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("vocabulary", [0, 60])
def test_offline_acceptance_is_what_the_engine_measures(
    target: Target,
    data: Documents,
    tmp_path: Path,
    tiny_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    vocabulary: int,
) -> None:
    """Passes and committed tokens, for a drafter that accepts much; with a draft vocabulary also from shards."""
    kind: Any = DrafterConfig
    if "tree_widths" not in DrafterConfig._fields:
        pytest.skip("this build has no longspec drafter")
    chosen = data.by_kind(4)
    options = replace(OPTIONS, steps=80, prompt_loss=False, anchor_positions=0, cache_target=True)
    if vocabulary:
        monkeypatch.setattr("fastspec.train.files.SHARD_BYTES", 20_000)
    trainer(target, chosen, tmp_path, replace(options, vocabulary=vocabulary)).run()
    assert (tmp_path / "model.safetensors.index.json").is_file() == bool(vocabulary)
    block = load_drafter(tmp_path, target)
    assert (block.draft_vocabulary is None) == (vocabulary == 0)
    shapes = {"chain": CHAIN, "tree": TREE}
    found = offline_acceptance(block, target, chosen, shapes)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    for name, widths in shapes.items():
        drafter = kind(kind="longspec", model=str(tmp_path), tree_widths=list(widths))
        with LLM(tiny_model_dir, drafter=drafter, dtype="float32", device="cpu:reference", max_batch_rows=1024) as llm:
            outputs = llm.generate([chosen.prompt(i) for i in range(8)], params, progress=False)
        stats = [output.outputs[0].stats for output in outputs]
        tallies = [found[each][name] for each in chosen.kinds]
        assert sum(s.decoding_passes for s in stats if s) == sum(tally.passes for tally in tallies)
        assert sum(s.decoding_tokens for s in stats if s) == sum(tally.committed for tally in tallies)
        assert sum(tally.tau for tally in tallies) > 1.2 * len(tallies)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_text("\n".join(f"the quick brown fox number {i} jumps over the lazy dog" for i in range(60)))
    return path


def test_commands_from_texts_to_a_measured_drafter(
    tiny_model_dir: Path, prose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = ["--target", str(tiny_model_dir)], tmp_path / "out"
    cutting = ["--each", "6", "--prompt-tokens", "6", "12"]
    prompts, made = str(tmp_path / "prompts.safetensors"), str(tmp_path / "made.safetensors")
    assert main(["train", "prompts", *model, "--texts", str(prose), "--out", prompts, *cutting]) == 0
    sampling = ["--sampled-share", "0.5", "--opening", "3", "--max-new", "20"]
    assert main(["train", "generate", *model, "--prompts", prompts, "--out", made, *sampling]) == 0
    assert "6 documents (6 prose)" in capsys.readouterr().out
    arguments = ["--steps", "2", "--length", "32", "--batch-tokens", "64", "--dtype", "float32", "--device", "cpu"]
    validation = ["--validation", str(prose), *cutting, "--generate-max-new", "12"]
    run = ["train", "longspec", *model, "--data", made, str(prose), *validation, "--out", str(out), *arguments]
    assert main(run) == 0
    printed = capsys.readouterr().out
    assert "tau at T = 0, tree: mean" in printed
    assert main(run) == 2
    assert "has the checkpoint of a run: give --resume" in capsys.readouterr().err
    assert main([*run, "--resume"]) == 0
    assert json.loads((out / "config.json").read_text())["longspec"]["final_norm"] is False
    figures = str(tmp_path / "figures.json")
    assert main(["evaluate", "acceptance", *model, "--data", prompts, "--max-tokens", "16", "--json", figures]) == 0
    assert "| ngram | 0 | whole |" in capsys.readouterr().out
    assert {cell["temperature"] for cell in json.loads(Path(figures).read_text())} == {0.0, 0.7, 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "missing.txt", "--steps", "1"], "missing.txt: no such file"),
        (["--data", "generate", "--steps", "1"], "--texts is what --data generate cuts prompts from"),
        (["--data", "{prose}"], "steps is 0 and minutes 0"),
        (["--data", "{prose}", "--steps", "1", "--device", "gpu"], "device 'gpu': expected auto, cpu, cuda"),
        (["--data", "{prose}", "--steps", "1", "--resume"], "has no checkpoint to resume from"),
        (["--data", "{bad}", "--steps", "1"], 'bad.jsonl, line 2: expected "text", "prompt" or "messages"'),
        (["--data", "{prose}", "--steps", "1", "--init", "nowhere"], "nowhere is no drafter: it has no config.json"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    tiny_model_dir: Path,
    prose: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"words": "bad"}\n')
    filled = [argument.format(prose=prose, bad=bad) for argument in arguments]
    code = main(["train", "longspec", "--target", str(tiny_model_dir), "--out", str(tmp_path / "out"), *filled])
    printed = capsys.readouterr().err.strip()
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "generate", "--prompts", "{prose}", "--out", "{folder}"], "is a directory, a file is to be written"),
        (["train", "generate", "--prompts", "{prose}", "--out", "{prose}/g.safetensors"], "cannot be written"),
        (
            ["train", "generate", "--prompts", "{prose}", "--out", "{folder}/g", "--seed", "-1"],
            "seed is -1, expected 0",
        ),
        (["train", "generate", "--prompts", "{folder}", "--out", "{folder}/g"], "is no file"),
        (["evaluate", "acceptance", "--data", "{prose}", "--contexts", "8", "0"], "contexts has 0, expected 1 or more"),
        (["evaluate", "acceptance", "--data", "{prose}", "--json", "{folder}"], "is a directory"),
    ],
)
def test_what_cannot_be_written_or_asked_is_refused_before_the_work(
    tiny_model_dir: Path,
    prose: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    message: str,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    filled = [argument.format(prose=prose, folder=folder) for argument in command]
    code = main([*filled, "--target", str(tiny_model_dir)])
    printed = capsys.readouterr().err.strip()
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 0
    assert not list(folder.iterdir())


def test_measured_acceptance_of_a_perfect_drafter(tiny_model_dir: Path, data: Documents) -> None:
    prompts = [Prompt(data.kind_name(i), data.prompt(i)) for i in range(6)]
    cells = measure(
        tiny_model_dir,
        variants([f"standalone:{tiny_model_dir}", "ngram"]),
        prompts,
        contexts=[4, 8],
        max_tokens=13,
        log=lambda _: None,
        device="cpu:reference",
        max_draft_tokens=3,
    )
    assert len(cells) == 2 * 2 * 2 * 2
    perfect = [cell for cell in cells if cell["drafter"].startswith("standalone")]
    # 12 tokens after the first come 4 a pass, unless the continuation is cut or ends.
    assert all(2.0 < cell["tau"] <= 4.0 for cell in perfect)
    assert all(rate == 1.0 for cell in perfect for rate in cell["by_position"])
    assert table(cells).count("\n") == 2 * 2 * 2 + 1
    assert coupling_table(cells) == ""


def test_a_longspec_drafter_is_measured_as_tree_and_chain_and_uncoupled(
    tiny_model_dir: Path, tiny_longspec_dir: Path, data: Documents
) -> None:
    name = f"longspec:{tiny_longspec_dir}"
    prompts = [Prompt(data.kind_name(i), data.prompt(i)) for i in range(4)]
    temperatures = [0.0, 0.7]
    options: dict[str, Any] = {"device": "cpu:reference", "max_batch_rows": 1024}
    cells = measure(
        tiny_model_dir,
        variants([name]),
        prompts,
        temperatures=temperatures,
        max_tokens=6,
        log=lambda _: None,
        **options,
    )
    chain, uncoupled = f"{name}, chain", f"{name}, uncoupled"
    assert {(cell["drafter"], cell["temperature"]) for cell in cells} == {
        *((each, temperature) for each in (name, chain) for temperature in temperatures),
        (uncoupled, 0.7),
    }
    found = variants([name])
    assert (found[chain].tree_widths, found[chain].coupled) == ([1, 1, 1, 1], True)
    assert (found[uncoupled].tree_widths, found[uncoupled].coupled) == (DrafterConfig().tree_widths, False)
    rows = [line.split(" | ") for line in coupling_table(cells).splitlines()]
    assert len(rows) == 3
    tau, alone, ratio = map(float, rows[2][3:6])
    assert ratio == pytest.approx(tau / alone, abs=0.02)
