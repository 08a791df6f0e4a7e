"""The parts of training, each against a plain and independent statement of what it computes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from fastspec import InvalidArgumentError, InvalidFileError, NotFoundError
from fastspec.train import attention
from fastspec.train.block import LongSpecBlock, start_from_target
from fastspec.train.candidates import Candidates
from fastspec.train.drafter_files import load_drafter, save_drafter
from fastspec.train.loss import linear_cross_entropy
from fastspec.train.offline import CHAIN, DraftLevel, Tally, accepted_lengths, draft_trees
from fastspec.train.target import Target, offset_positions

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tiny_model_dir: Path) -> Target:
    return Target(tiny_model_dir, CPU, torch.float32)


def random_block(target: Target, final_norm: bool = True, window: int = 512) -> LongSpecBlock:
    generator = torch.Generator().manual_seed(5)
    block = LongSpecBlock(target.block_shape(final_norm, window, None))
    start_from_target(block, target.model)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return block


# --- loss -------------------------------------------------------------------------------------------------------------


def plain_loss(
    hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor, distill: float
) -> torch.Tensor:
    logits = hidden @ head.T
    hard = functional.cross_entropy(logits, labels, reduction="sum")
    soft = functional.cross_entropy(logits, torch.softmax(teacher @ head.T, -1), reduction="sum")
    return (1 - distill) * hard + distill * soft


@pytest.mark.parametrize("rows_at_once", [1, 7, 100])
@pytest.mark.parametrize("distill", [0.0, 0.3, 1.0])
def test_loss_and_gradient_equal_plain_torch(distill: float, rows_at_once: int) -> None:
    torch.manual_seed(0)
    hidden, head, teacher = torch.randn(23, 16), torch.randn(57, 16), torch.randn(23, 16)
    labels = torch.randint(0, 57, (23,))
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    loss, hits = linear_cross_entropy(ours, head, labels, teacher, distill, rows_at_once)
    expected = plain_loss(theirs, head, labels, teacher, distill)
    (loss / 3).backward()
    (expected / 3).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert hits == ((hidden @ head.T).argmax(-1) == labels).sum()


def test_loss_kernel_equals_plain_torch() -> None:
    """The Triton kernel in Triton's interpreter; vocabulary beside and above a multiple of its block."""
    os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton")
    from fastspec.train import loss, loss_kernel

    torch.manual_seed(0)
    for vocabulary in (100, loss_kernel.BLOCK, loss_kernel.BLOCK + 5):
        logits, teacher = 3 * torch.randn(3, vocabulary), 3 * torch.randn(3, vocabulary)
        labels = torch.randint(0, vocabulary, (3,))
        labels[1] = logits[1].argmax()
        for given, distill in ((None, 0.0), (teacher, 0.4)):
            expected = loss._by_torch(logits, given, labels, distill)
            found = loss_kernel.by_triton(logits.clone(), given, labels, distill, torch.float32)
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-4, atol=1e-5)


# --- attention --------------------------------------------------------------------------------------------------------


def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Attention with an explicit mask, zero where nothing is visible."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1).nan_to_num()
    return weights @ value


@pytest.mark.parametrize(("length", "window"), [(5, 8), (9, 8), (10, 8), (16, 8), (31, 8), (7, 1)])
def test_windowed_attention_sees_the_window_and_itself(length: int, window: int) -> None:
    torch.manual_seed(length)
    query, key, value = torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    place = torch.arange(length)
    visible = (place[None, :] <= place[:, None]) & (place[None, :] >= place[:, None] - window)
    found = attention.windowed(query, key, value, window)
    torch.testing.assert_close(found, masked(query, key, value, visible), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shifts", [[1], [3, 1], [2, 5, 1]])
def test_shifted_attention_stays_behind(shifts: list[int]) -> None:
    torch.manual_seed(0)
    rows, length = 2 * len(shifts), 12
    query, key, value = (torch.randn(rows, heads, length, 8) for heads in (4, 2, 2))
    found = attention.shifted(query, key, value, shifts)
    place = torch.arange(length)
    for part, shift in enumerate(shifts):
        visible = place[None, :] <= place[:, None] - shift
        own = slice(2 * part, 2 * part + 2)
        expected = masked(query[own], key[own], value[own], visible)
        torch.testing.assert_close(found[own], expected, rtol=1e-5, atol=1e-5)
        assert not found[own][:, :, :shift].any()


# --- target -----------------------------------------------------------------------------------------------------------


def test_target_states_are_those_of_transformers_at_moved_positions(target: Target, tiny_model_dir: Path) -> None:
    import transformers

    eager = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_dir, attn_implementation="eager").eval()
    tokens = torch.randint(1, 320, (2, 20), generator=torch.Generator().manual_seed(1))
    positions = offset_positions(20, torch.tensor([0, 70]))
    assert positions[1].tolist() == [0, 1, 2, 3, *range(74, 90)]
    mask = torch.full((20, 20), float("-inf")).triu(1)[None, None].repeat(2, 1, 1, 1)
    with torch.no_grad():
        out = eager(tokens, position_ids=positions, attention_mask=mask, use_cache=True, output_hidden_states=True)
    states = target.states(tokens, positions, with_hidden=True)
    layer = out.past_key_values.layers[-1]
    torch.testing.assert_close(states.keys, layer.keys, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.values, layer.values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.hidden, out.hidden_states[-1], rtol=1e-4, atol=1e-4)
    assert torch.equal(states.choices.long(), out.logits.argmax(-1))


# --- drafting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("widths", "final_norm", "window", "offset"),
    [(CHAIN, True, 512, 0), ((2, 3, 3), True, 512, 0), ((3, 4, 2), False, 4, 100)],
)
def test_drafting_equals_drafting_node_by_node(
    target: Target, tiny_model_dir: Path, widths: tuple[int, ...], final_norm: bool, window: int, offset: int
) -> None:
    """Against an oracle with explicit caches, trees and acceptance; the continuations are the drafter's own guesses."""
    import transformers
    from slow_longspec import SlowLongSpec

    block = random_block(target, final_norm, window)
    eager = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_dir, attn_implementation="eager").eval()
    slow = SlowLongSpec(dict(block.state_dict()), eager, window, offset)
    generator = torch.Generator().manual_seed(3)
    sequences = []
    for _ in range(2):
        tokens = torch.randint(1, 320, (6,), generator=generator).tolist()
        for place in range(7):  # the second-best now and then: in a tree, not in a chain
            best = slow.logits(tokens, []).topk(2).indices.tolist()
            tokens.append(best[1] if place % 3 == 2 else best[0])
        sequences.append(tokens)
    batch, roots = torch.tensor(sequences), torch.arange(4, 11, 2).repeat(2, 1)
    states = target.states(batch, offset_positions(13, torch.tensor([offset, offset])), with_hidden=False)
    levels = list(draft_trees(block, target, batch, states, roots, widths, offset))
    accepted = accepted_lengths(levels, batch, torch.tensor([13, 13]), roots)
    for row, tokens in enumerate(sequences):
        for column, root in enumerate(roots[row].tolist()):
            expected = slow.tree(tokens[: root + 1], widths)
            assert paths(levels, row, column) == [[path for _, path in level] for level in expected]
            scores = [score for level in expected for score, _ in level]
            found = torch.cat([level.scores[row, column] for level in levels])
            torch.testing.assert_close(found, torch.tensor(scores), rtol=1e-4, atol=1e-4)
            prefix = tokens[root + 1 :]
            depths = [d for d, level in enumerate(expected, 1) if prefix[:d] in [path for _, path in level]]
            assert accepted[row, column] == max(depths, default=0)
    assert accepted.max() >= 2


def paths(levels: list[DraftLevel], row: int, column: int) -> list[list[list[int]]]:
    """Tokens from the root to every node, level by level."""
    found: list[list[list[int]]] = []
    for level in levels:
        above = found[-1] if found else [[]]
        pairs = zip(level.parents[row, column].tolist(), level.tokens[row, column].tolist(), strict=True)
        found.append([[*above[parent], token] for parent, token in pairs])
    return found


@torch.no_grad()
def test_training_pass_equals_drafting_node_by_node(target: Target, tiny_model_dir: Path) -> None:
    """With shift s, place i of a training pass is level s of the tree whose root is s - 1 places before."""
    import transformers
    from slow_longspec import SlowLongSpec

    block = random_block(target, window=6)
    eager = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_dir, attn_implementation="eager").eval()
    slow = SlowLongSpec(dict(block.state_dict()), eager, 6)
    tokens = torch.randint(1, 320, (1, 14), generator=torch.Generator().manual_seed(2))
    positions = torch.arange(14)[None]
    states = target.states(tokens, positions, with_hidden=False)
    for shift in (1, 3):
        hidden = block(
            target.embed(tokens),
            target.rope(positions),
            lambda q, k, v: attention.windowed(q, k, v, 6),
            lambda q, shift=shift: attention.shifted(q, states.keys, states.values, [shift]),
        )
        logits = hidden @ target.head.T
        for place in range(shift - 1, 14):
            root = place - shift + 1
            sequence = tokens[0].tolist()
            expected = slow.logits(sequence[: root + 1], sequence[root + 1 : place + 1])
            torch.testing.assert_close(logits[0, place], expected, rtol=1e-3, atol=1e-3)


def test_tally_walks_from_root_to_root() -> None:
    tally = Tally()
    tally.add([2, 0, 1, 0, 0])
    assert (tally.passes, tally.committed) == (3, 5)
    assert tally.tau == pytest.approx(5 / 3)
    assert tally.at_every_root == pytest.approx(1 + 3 / 5)


# --- files ------------------------------------------------------------------------------------------------------------


def test_drafter_files_have_the_agreed_names(target: Target, tmp_path: Path) -> None:
    import json

    from safetensors import safe_open

    block = random_block(target)
    save_drafter(tmp_path, block, target)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["longspec"] == {"version": 1, "window": 512, "final_norm": True}
    assert (config["model_type"], config["num_hidden_layers"], config["dtype"]) == ("llama", 1, "bfloat16")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert sorted(file.keys()) == sorted(
            [f"self_attn.{p}_proj.{part}" for p in "qkv" for part in ("weight", "bias")]
            + ["self_attn.o_proj.weight", "cross_attn.q_proj.weight", "cross_attn.q_proj.bias"]
            + ["cross_attn.o_proj.weight", "norm.weight"]
            + [f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")]
            + ["input_layernorm.weight", "post_self_attention_layernorm.weight"]
            + ["post_cross_attention_layernorm.weight"]
        )
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    loaded = load_drafter(tmp_path, target)
    for ours, theirs in zip(loaded.parameters(), block.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())


def test_a_drafter_does_not_say_where_its_target_is_from(model_copy: Path, tmp_path: Path) -> None:
    import json

    source = model_copy / "config.json"
    inherited = {
        "_name_or_path": "a",
        "_model_name_or_path": "b",
        "transformers_version": "5",
        "torch_dtype": "float32",
    }
    source.write_text(json.dumps({**json.loads(source.read_text()), **inherited}))
    target = Target(model_copy, CPU, torch.float32)
    save_drafter(tmp_path / "drafter", random_block(target), target)
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config.keys().isdisjoint(inherited)
    assert config["hidden_size"] == json.loads(source.read_text())["hidden_size"]


def test_a_large_drafter_is_written_in_shards(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = random_block(target)
    block.draft_vocabulary = torch.tensor([3, 5, 300], dtype=torch.int32)
    save_drafter(tmp_path, block, target)
    monkeypatch.setattr("fastspec.train.files.SHARD_BYTES", 20_000)
    save_drafter(tmp_path, block, target)
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert all(path.stat().st_size < 22_000 for path in tmp_path.glob("*.safetensors"))
    loaded = load_drafter(tmp_path, target)
    assert loaded.draft_vocabulary is not None
    assert loaded.draft_vocabulary.tolist() == [3, 5, 300]
    for ours, theirs in zip(loaded.parameters(), block.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    (tmp_path / shards[1]).unlink()
    with pytest.raises(InvalidFileError, match=shards[1]):
        load_drafter(tmp_path, target)
    monkeypatch.undo()
    save_drafter(tmp_path, block, target)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]


def test_a_drafter_of_another_shape_is_refused(target: Target, tmp_path: Path) -> None:
    import json

    save_drafter(tmp_path, random_block(target), target)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(InvalidArgumentError, match=r"mlp.gate_proj.weight is \[112, 64\], the target needs \[48, 64\]"):
        load_drafter(tmp_path, target)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidFileError, match="HeaderTooLarge|Error"):
        load_drafter(tmp_path, target)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match="it has no model.safetensors"):
        load_drafter(tmp_path, target)


# --- candidates -------------------------------------------------------------------------------------------------------


def test_the_average_follows_the_weights(target: Target) -> None:
    block = random_block(target)
    candidates = Candidates(block, decay=0.3)
    weight = block.mlp.up_proj.weight
    expected = weight.detach().clone()
    for step in range(4):
        with torch.no_grad():
            weight += 1.0
        candidates.follow(step)
        keep = min(0.3, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * weight.detach()
    torch.testing.assert_close(candidates.average.mlp.up_proj.weight, expected)
    assert candidates.drafter is candidates.average
    assert Candidates(block, decay=0.0).average is block
