"""Training of block drafters: the passes against the independent reference, and runs of a tiny model as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from fastspec import LLM, DrafterConfig, InvalidArgumentError, SamplingParams
from fastspec.__main__ import main
from fastspec.train.dflash_block import DFlashBlock
from fastspec.train.dflash_files import dflash_shape, load_dflash, save_dflash
from fastspec.train.dflash_recipe import DFlashRecipe
from fastspec.train.documents import Documents
from fastspec.train.loss import linear_cross_entropy
from fastspec.train.options import DFLASH_PRESETS, DFlashOptions, from_preset
from fastspec.train.ranks import Ranks
from fastspec.train.rows import RowGroup, cut_rows
from fastspec.train.target import Target
from fastspec.train.trainer import Trainer

CPU = torch.device("cpu")
OPTIONS = DFlashOptions(
    steps=6,
    length=32,
    batch_tokens=256,
    lr=3e-3,
    warmup_steps=2,
    anchor_positions=0,
    labels="target",
    distill=0.5,
    prompt_loss=False,
    dtype="float32",
    layers=2,
    block_size=5,
    target_layers=(0, 1),
    mask_token=7,
    intermediate_size=48,
    anchors=9,
    gamma=2.0,
    average=0.5,
    evaluations=2,
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
    prompts = [torch.randint(1, 320, (8,), generator=generator).tolist() for _ in range(16)]
    with LLM(tiny_model_dir, dtype="float32") as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True), progress=False)
    return Documents.of([[*o.prompt_token_ids, *o.token_ids] for o in outputs], [8] * 16, ["even", "odd"] * 8)


def new_recipe(target: Target, options: DFlashOptions = OPTIONS) -> DFlashRecipe:
    torch.manual_seed(1)
    block = DFlashBlock(dflash_shape(target, options))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return DFlashRecipe(target, block, options)


def trainer(
    target: Target, data: Documents, out: Path, options: DFlashOptions = OPTIONS, validation: Documents | None = None
) -> Trainer:
    recipe = new_recipe(target, options)
    return Trainer(recipe, [data], validation, options, out, Ranks(0, 1, CPU), log=lambda _: None)


def reference_logits(recipe: DFlashRecipe, target: Target, directory: Path, tokens: list[int], root: int) -> Any:
    """By tests/reference, from the files that the recipe writes: [block_size - 1, vocabulary]."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))
    from dflash import Context, DFlash

    with torch.no_grad():
        reference = DFlash(directory, target.model, Context())
        for name, value in recipe.module.state_dict().items():
            reference.weights[name] = value  # what is written is rounded to bfloat16
        return torch.from_numpy(reference.logits(tokens[: root + 1], reference.features(tokens)))


def test_blocks_of_a_row_are_those_of_the_definition(target: Target, data: Documents, tmp_path: Path) -> None:
    recipe = new_recipe(target)
    recipe.save(recipe.module, tmp_path)
    tokens = torch.tensor([data[0], data[1]])
    roots = torch.tensor([[3, 20, 0, 20], [30, 9, 10, 1]])
    positions = torch.arange(tokens.shape[1]).repeat(2, 1)
    states = target.states(tokens, positions, False, OPTIONS.target_layers)
    with torch.no_grad():
        hidden = recipe._hidden(recipe.module, tokens, roots, positions, states)[:, :, 1:]
        logits = hidden @ target.head.T
    for row in range(2):
        for block, root in enumerate(roots[row].tolist()):
            expected = reference_logits(recipe, target, tmp_path, tokens[row].tolist(), root)
            torch.testing.assert_close(logits[row, block], expected, rtol=1e-3, atol=1e-3)


def test_the_loss_is_the_weighted_one_of_tokens_behind_roots(target: Target, data: Documents) -> None:
    options = replace(OPTIONS, labels="data", distill=0.0)
    recipe = new_recipe(target, options)
    groups = cut_rows([data.select(range(3))], 32)
    recipe.bind(groups)
    recipe.prepare(lambda _: None)
    rows = torch.tensor([2, 0])
    seen: dict[str, torch.Tensor] = {}

    def model(features: torch.Tensor, context_rope: Any, x: torch.Tensor, rope: Any, mask: torch.Tensor) -> Any:
        seen["mask"] = mask
        return recipe.module(features, context_rope, x, rope, mask)

    loss = recipe.loss(model, 0, rows, 4)
    group: RowGroup = groups[0]
    context = seen["mask"][:, 0, :: OPTIONS.block_size, : group.length].sum(-1)  # tokens before each root
    expected, count = torch.zeros(()), 0
    for place, row in enumerate(rows.tolist()):
        tokens = group.tokens[row].long()
        length, prompt = int(group.lengths[row]), int(group.prompts[row])
        for root in context[place].tolist():
            assert prompt - 1 <= root <= length - 2
            states = target.states(tokens[None], torch.arange(32)[None], False, OPTIONS.target_layers)
            hidden = recipe._hidden(recipe.module, tokens[None], torch.tensor([[root]]), torch.arange(32)[None], states)
            for k in range(1, OPTIONS.block_size):
                if root + k < length:
                    logits = hidden[0, 0, k] @ target.head.T
                    weight = torch.exp(torch.tensor(-(k - 1) / OPTIONS.gamma))
                    expected = expected + weight * functional.cross_entropy(logits, tokens[root + k])
                    count += 1
    assert loss.count == count
    torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-4)
    assert len(set(context[0].tolist())) > 4
    assert not torch.equal(loss.total, recipe.loss(recipe.module, 0, rows, 5).total)  # other roots


def test_weights_scale_rows_of_loss_and_gradient() -> None:
    torch.manual_seed(0)
    head, labels, weights = torch.randn(57, 16), torch.randint(0, 57, (23,)), torch.rand(23)
    hidden = torch.randn(23, 16, requires_grad=True)
    total, _ = linear_cross_entropy(hidden, head, labels, weights=weights, rows_at_once=5)
    (gradient,) = torch.autograd.grad(total, hidden)
    plain = (functional.cross_entropy(hidden @ head.T, labels, reduction="none") * weights).sum()
    torch.testing.assert_close(total, plain)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, hidden)[0])


@pytest.mark.parametrize("cached", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(
    target: Target, data: Documents, tmp_path: Path, cached: bool
) -> None:
    options = replace(OPTIONS, cache_target=cached)
    assert trainer(target, data, tmp_path / "whole", options).run()
    assert trainer(target, data, tmp_path / "parts", options).run(until=3)
    second = trainer(target, data, tmp_path / "parts", options)
    second.resume()
    assert second.run()
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def test_a_trained_drafter_accepts_in_the_engine_what_training_counted(
    target: Target, data: Documents, tmp_path: Path, tiny_model_dir: Path
) -> None:
    chosen = data.by_kind(4)
    options = replace(OPTIONS, steps=120, cache_target=True, average=0.0)
    run = trainer(target, chosen, tmp_path, options, validation=chosen)
    run.run()
    losses = [entry["loss"] for entry in run.progress.history if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]
    block = load_dflash(tmp_path, target, options)
    found = DFlashRecipe(target, block, options).acceptance(block, chosen)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    drafter = DrafterConfig(kind="dflash", model=str(tmp_path))
    with LLM(tiny_model_dir, drafter, dtype="float32", device="cpu:reference", max_batch_rows=1024) as llm:
        outputs = llm.generate([chosen.prompt(i) for i in range(8)], params, progress=False)
    stats = [output.outputs[0].stats for output in outputs]
    tallies = [found[kind]["block"] for kind in chosen.kinds]
    assert sum(s.decoding_passes for s in stats if s) == sum(tally.passes for tally in tallies)
    assert sum(s.decoding_tokens for s in stats if s) == sum(tally.committed for tally in tallies)
    assert sum(tally.tau for tally in tallies) > 1.3 * len(tallies)


def test_files_come_back_and_another_shape_is_refused(target: Target, tmp_path: Path) -> None:
    recipe = new_recipe(target)
    save_dflash(tmp_path, recipe.module, target)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"], config["block_size"]) == (["DFlashDraftModel"], "qwen3", 5)
    assert config["dflash_config"] == {"mask_token_id": 7, "target_layer_ids": [0, 1]}
    loaded = load_dflash(tmp_path, target, OPTIONS)
    for name, value in recipe.module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float())
    with pytest.raises(InvalidArgumentError, match=r"was made with block_size = 5, this run has 6"):
        load_dflash(tmp_path, target, replace(OPTIONS, block_size=6))
    with pytest.raises(InvalidArgumentError, match=r"mlp.gate_proj.weight is \[48, 64\], the target needs \[40, 64\]"):
        load_dflash(tmp_path, target, replace(OPTIONS, intermediate_size=40))
    with pytest.raises(InvalidArgumentError, match=r"target_layers is \[0, 3\], the target has layers 0 to 2"):
        dflash_shape(target, replace(OPTIONS, target_layers=(0, 3)))
    with pytest.raises(InvalidArgumentError, match=r"mask_token is 320"):
        dflash_shape(target, replace(OPTIONS, mask_token=320))


def test_options_and_presets(tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, preset in DFLASH_PRESETS.items():
        assert from_preset(name, {}, DFlashOptions(), DFLASH_PRESETS) == preset
    with pytest.raises(InvalidArgumentError, match=r"target_layers is \[4, 1\], expected ascending"):
        from_preset(None, {"steps": 1, "target_layers": (4, 1)}, DFlashOptions(), DFLASH_PRESETS)
    with pytest.raises(InvalidArgumentError, match="unknown option 'shifts_at_once'"):
        from_preset(None, {"steps": 1, "shifts_at_once": 2}, DFlashOptions(), DFLASH_PRESETS)
    prose = tmp_path / "prose.txt"
    prose.write_text("\n".join(f"the quick brown fox number {i} jumps over the lazy dog" for i in range(40)))
    run = ["train", "dflash", "--target", str(tiny_model_dir), "--data", str(prose), "--out", str(tmp_path / "out")]
    sizes = ["--steps", "2", "--length", "32", "--batch-tokens", "64", "--dtype", "float32", "--device", "cpu"]
    assert main([*run, *sizes, "--block-size", "4", "--target-layers", "0,2", "--anchors", "3"]) == 0
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["dflash_config"] == {"mask_token_id": 319, "target_layer_ids": [0, 2]}
    assert "step" in capsys.readouterr().out
