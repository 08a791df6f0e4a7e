"""tools/bench_tree_attention.py without a GPU: trees and masks, the exact answer, and every way that a CPU can run.

Triton's interpreter stands in for its compiler; without Triton its tests are skipped.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of Triton

import bench_tree_attention as bench
from tree_attention.problem import (
    PAGE_SIZE,
    Case,
    Problem,
    ancestor_mask,
    beam_tree,
    leaf_paths,
    mask_words,
    relative_error,
)
from tree_attention.ways import Eager, Hybrid, Paths, flash, packed_heads, unpacked_heads

DEFAULT = (4, 16, 16, 16, 16)
CASE = Case(batch=2, context=75, num_heads=6, num_kv_heads=2, head_dim=16, widths=(2, 4, 5, 8))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE, TOLERANCE = (torch.float32, 2e-6) if DEVICE == "cpu" else (torch.bfloat16, 3e-2)


def test_beam_is_a_tree_of_its_widths() -> None:
    parents = beam_tree(DEFAULT)
    depth = [0]
    for node, parent in enumerate(parents[1:], 1):
        assert 0 <= parent < node
        depth.append(depth[parent] + 1)
    assert [depth.count(level) for level in range(6)] == [1, *DEFAULT]
    paths = leaf_paths(parents)
    assert {node for path in paths for node in path} == set(range(69))
    assert all([parents[node] for node in path] == [-1, *path[:-1]] for path in paths)
    assert len(paths) > 16  # leaves above the last level too


def test_masks_are_ancestors() -> None:
    parents = beam_tree(DEFAULT)
    mask = ancestor_mask(parents)
    for path in leaf_paths(parents):
        assert mask[path[-1]].nonzero().flatten().tolist() == sorted(path)
    words = mask_words(mask)
    assert words.shape == (69, 4)
    for node in range(69):
        bits = sum((word % (1 << 64)) << (64 * place) for place, word in enumerate(words[node].tolist()))
        assert [bool(bits >> column & 1) for column in range(69)] == mask[node].tolist()
    full = mask_words(torch.ones(2, 256, dtype=torch.bool))
    assert full.tolist() == [[-1] * 4] * 2


def test_gathered_keys_are_those_of_the_pages() -> None:
    problem = Problem(CASE, 2, "cpu", torch.float32)
    assert problem.pages.unique().numel() == problem.pages.numel()
    for which, dense in enumerate((problem.keys, problem.values)):
        for sequence, position in ((0, 0), (1, 50), (1, CASE.context - 1)):
            page, offset = problem.pages[sequence, position // PAGE_SIZE], position % PAGE_SIZE
            assert torch.equal(dense[1, sequence, :, position], problem.pool[1, page, :, which, offset])
        for sequence, row in ((0, 0), (1, CASE.rows - 1)):
            page, offset = divmod(int(problem.slots[sequence, row]), PAGE_SIZE)
            assert torch.equal(dense[1, sequence, :, CASE.context + row], problem.pool[1, page, :, which, offset])


def test_reference_row_by_row() -> None:
    """The answer by its definition, and a tree that weighs about as much as its context."""
    problem = Problem(CASE, 1, "cpu", torch.float32)
    outputs, lse = problem.reference(0)
    for sequence, row, head in ((0, 0, 0), (1, 7, 5), (1, CASE.rows - 1, 3)):
        seen = [*range(CASE.context), *(CASE.context + problem.mask[row].nonzero().flatten()).tolist()]
        kv_head = head // CASE.group
        keys, values = (t[0, sequence, kv_head, seen].double() for t in (problem.keys, problem.values))
        scores = keys @ problem.query[sequence, row, head].double() * CASE.scale
        torch.testing.assert_close(outputs[sequence, row, head], scores.softmax(0) @ values)
        torch.testing.assert_close(lse[sequence, row, head], scores.logsumexp(0))
    prefix = flash(
        packed_heads(problem.query, 2), problem.keys[0][:, :, :75], problem.values[0][:, :, :75], 0.25, False
    )
    share = (unpacked_heads(prefix[1].unsqueeze(-1), CASE.rows)[..., 0] - lse).exp().mean()
    assert 0.2 < share < 0.8


@pytest.mark.parametrize("case", [CASE, Case(1, 40, 4, 4, 32, DEFAULT), Case(3, 33, 8, 2, 16, (1, 1, 1, 1))])
@pytest.mark.parametrize("name", ["eager", "paths", "hybrid"])
def test_every_way_is_right(name: str, case: Case) -> None:
    problem = Problem(case, 2, DEVICE, DTYPE)
    if name == "hybrid":
        pytest.importorskip("triton")
    way = Eager(problem) if name == "eager" else {"paths": Paths, "hybrid": Hybrid}[name](problem, flash)
    for layer in range(2):
        expected, _ = problem.reference(layer)
        assert relative_error(way.rows(way.layer(layer)), expected) < TOLERANCE
    problem.mask[-1, 0] = False  # a wrong mask would be seen
    assert DEVICE == "cuda" or relative_error(way.rows(way.layer(1)), problem.reference(1)[0]) > 2e-3


def masked_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, prefix: torch.Tensor,
    prefix_lse: torch.Tensor, scale: float,
) -> torch.Tensor:  # fmt: skip
    """The union of a prefix and masked rows in double precision, 0 where nothing is seen."""
    group = query.shape[2] // keys.shape[2]
    scores = (query.double() @ keys.double().transpose(2, 3)) * scale
    scores = scores.masked_fill(~mask.repeat_interleave(group, 1)[:, None], -math.inf)
    union = torch.cat([scores, prefix_lse.double().unsqueeze(-1)], -1)
    weights = union.softmax(-1).nan_to_num(0)
    last = torch.where(weights[..., -1:] > 0, weights[..., -1:] * prefix.double(), 0)
    return weights[..., :-1] @ values.double() + last


@pytest.mark.parametrize("rows", [5, 16, 37])
@pytest.mark.parametrize("shape", ["any", "late", "last column", "nothing"])
def test_triton_kernel_under_any_mask(rows: int, shape: str) -> None:
    """First blocks of keys that are wholly masked, columns past the end, rows that see nothing, empty prefixes."""
    pytest.importorskip("triton")
    from tree_attention.masked_kernel import merge_masked_rows

    torch.manual_seed(rows)
    batch, kv_heads, group, dim, scale = 2, 2, 3, 16, 0.25
    query = torch.randn(batch, kv_heads, rows * group, dim)
    stacked = torch.randn(2, batch, kv_heads, rows + 9, dim)  # rows behind the last must not be read
    stacked[..., rows:, :] = math.nan
    keys, values = stacked[..., :rows, :]
    mask = torch.rand(batch, rows, rows) < 0.3
    if shape == "late":  # the first block, of 4 keys, is hidden from every row
        mask[..., :4] = False
    elif shape == "last column":  # and what follows it in memory is the next row's first, seen
        mask[:] = False
        mask[..., 0] = True
        mask[:, 1::2] = False
        mask[:, 1::2, -1] = True
    elif shape == "nothing":
        mask[:, ::2] = False
    prefix, prefix_lse = torch.randn_like(query), torch.randn(batch, kv_heads, rows * group)
    prefix_lse[1, :, ::2], prefix[1, :, ::2] = -math.inf, math.nan
    output = torch.full((batch, rows, kv_heads * group, dim), math.nan)
    expected = unpacked_heads(masked_reference(query, keys, values, mask, prefix, prefix_lse, scale), rows)
    tensors = [t.to(DEVICE) for t in (query, keys, values, mask.to(torch.uint8), prefix, prefix_lse, output)]
    merge_masked_rows(*tensors, scale, block_rows=16, block_keys=16 if DEVICE == "cuda" else 4)
    torch.testing.assert_close(tensors[-1].cpu(), expected.float(), rtol=2e-5, atol=2e-6)


class Planted(Eager):
    """Stands in for our kernel, wrong by a factor."""

    name = "ours"

    def __init__(self, problem: Problem, factor: float) -> None:
        super().__init__(problem)
        self.factor, self.steps = factor, 0

    def step(self) -> None:
        self.steps += 1

    def layer(self, index: int) -> torch.Tensor:
        return self.factor * super().layer(index)


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_table(factor: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is right is timed in turns, what is wrong is said and not timed."""
    monkeypatch.setattr(bench, "captured", lambda run: run)
    monkeypatch.setattr(bench, "replay_microseconds", lambda run: 6.0 if run() is None else 0.0)
    problem = Problem(CASE, 3, "cpu", torch.float32)
    ours = Planted(problem, factor)
    outcomes = bench.measure(problem, [ours, Eager(problem), Paths(problem, flash)], 5)
    bench.print_case(problem, outcomes, "flash", 4.2, 989)
    cells = [cell.strip() for cell in capsys.readouterr().out.strip(" |\n").split("|")]
    assert len(cells) == len(bench.COLUMNS)
    assert cells[:3] == ["6/2", "2", "0K"]
    assert outcomes["eager"].microseconds == [2.0] * 5
    if factor == 1:
        assert (cells[3], cells[7], cells[8], cells[9]) == ("2.0", "2.0 (1.00) -0.0 %", "2.0 (1.00)", "-")
        assert ours.steps == 1 + 1 + 5
    else:
        assert outcomes["ours"].wrong
        assert cells[3] == "wrong"
        assert "ours 2.0e-02 WRONG" in cells[-1]
        assert ours.steps == 1
