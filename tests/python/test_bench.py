"""python -m fastspec.bench on the CPU: what is measured and printed, and that transformers decodes the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_shape import SHAPE
from torch.utils._python_dispatch import TorchDispatchMode

from fastspec import DrafterConfig, Engine, EngineConfig, SpeculationConfig
from fastspec.bench import peer
from fastspec.bench.__main__ import main
from fastspec.bench.engine import HeldPrompts, ModelSide
from fastspec.bench.row_budget import interval, interval_text
from fastspec.bench.sides import Point, Result, Run, Way, first_difference, measure
from fastspec.bench.sparse import sparse_notes
from fastspec.bench.trace import trace_json, trace_text, try_trace


@pytest.fixture
def shape(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(SHAPE))
    return str(path)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code = main([*(str(argument) for argument in arguments), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_row_budgets_take_turns_on_one_engine(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSPEC_CACHE", str(tmp_path))
    drafter = f"standalone:{tiny_model_dir}"  # the model itself: all is accepted
    options = ["--model", tiny_model_dir, "--drafter", drafter, "--batch", 4, "--context", 48, "--max-tokens", 40]
    options += ["--repeat", 3, "--rate", 0.1, "--row-budgets", "plain,full,fixed:0.5,auto", "--minutes", 5]
    found = run_json(capsys, *options, "--reliability", tmp_path / "plot.svg")
    point = found["points"][0]
    assert list(point["sides"]) == ["plain", "full", "fixed:0.5", "auto"]
    assert set(point["differences"].values()) == {None}, "budgets change no token"
    assert point["best"] in ("plain", "full", "fixed:0.5")
    for low, middle, high in point["auto_over"].values():
        assert low <= middle <= high
    fixed = point["sides"]["fixed:0.5"]["row_budget"]
    assert list(fixed["steps_by_share"]) == ["0.5"], "notes are of the side's own run"
    assert "row_budget" not in point["sides"]["plain"]
    assert point["sides"]["plain"]["acceptance_length"] == 1
    calibration = found["calibration"]
    assert sum(b["count"] for b in calibration["reliability"]) > 0
    assert 0 <= calibration["calibration_error"] <= 1
    assert (tmp_path / "plot.svg").read_text().count("calibrated chance") >= 1
    assert main([*map(str, options), "--minutes", "0"]) == 0
    out = capsys.readouterr().out
    assert "auto over plain" in out
    assert "(one run)" in out, "which has no interval"
    assert "chance: accepted" in out


def test_intervals_are_of_paired_runs() -> None:
    def result(side: str, speeds: list[float]) -> Result:
        return Result(side, [Run(1.0, speed) for speed in speeds])

    noise = [1.0, 2.0, 0.5, 1.5, 1.0]  # of the machine, which both meet
    low, middle, high = interval(result("auto", [1.1 * n for n in noise]), result("plain", noise))
    assert [low, middle, high] == pytest.approx([1.1, 1.1, 1.1])
    low, middle, high = interval(result("auto", [1.0, 1.1, 1.2]), result("plain", [1.0] * 3))
    assert (low, middle, high) == pytest.approx((0.8746, 1.0970, 1.3759), abs=1e-4)


def test_one_run_has_no_interval() -> None:
    one, other = Result("auto", [Run(1.0, 3.0)]), Result("plain", [Run(1.0, 2.0)])
    assert interval(one, other) == (None, pytest.approx(1.5), None)
    assert interval_text(interval(one, other)) == "1.500 (one run)"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--max-tokens", "1"], "--max-tokens"),
        (["--points", "0x10"], "must be positive"),
        (["--kv-budget", "32"], "give --sparse"),
        (["--sparse", "quest", "--sparse-variants", "plain,self", "--row-budget", "auto"], "drafts"),
        (["--drafter", "self_sparse", "--sparse", "quest", "--sparse-variants", "plain,self"], "self_sparse"),
        (["--drafter", "self_sparse", "--row-budgets", "plain,full"], "no rows to share out"),
        (["--row-budget", "auto"], "--row-budgets compares several"),
    ],
)
def test_what_would_be_ignored_is_refused(
    options: list[str], reason: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tiny_model_dir), "--rate", "0.1", *options]) == 2
    assert reason in capsys.readouterr().err


def test_a_shape_has_no_drafter_of_files(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", shape, "--rate", "0.1", "--drafter", "ngram"]) == 2
    assert "--drafter belongs to --model" in capsys.readouterr().err


def test_sparse_variants_take_turns_on_one_engine(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", tiny_model_dir, "--device", "cpu:reference", "--drafter", "ngram", "--batch", 3]
    options += ["--context", 64, "--max-tokens", 24, "--repeat", 2, "--rate", 0.1, "--sparse", "history"]
    options += ["--kv-budget", 24, "--sparse-variants", "plain,dense,sparse,exact,self"]
    found = run_json(capsys, *options)
    point = found["points"][0]
    sides = point["sides"]
    assert list(sides) == ["plain", "dense", "sparse", "exact", "self"]
    assert found["sparse"] == "history, 24 keys"
    notes = {name: side["sparse"] for name, side in sides.items()}
    assert {name: seen["guarantee"] for name, seen in notes.items()} == dict.fromkeys(sides, "exact") | {
        "sparse": "sparse"
    }
    for name in ("dense", "exact", "self"):
        assert point["differences"][name] is None, "no token depends on them"
    for name in ("plain", "dense"):
        assert notes[name]["sparse_passes"] == 0
        assert notes[name]["kv_bytes_read"] == notes[name]["kv_bytes_dense"] > 0
        assert notes[name]["mean_mass"] is notes[name]["agreement"] is None
    assert notes["sparse"]["sparse_passes"] > 0
    assert notes["sparse"]["kv_bytes_read"] < notes["sparse"]["kv_bytes_dense"]
    assert 0 < notes["sparse"]["mean_mass"] <= 1
    assert notes["sparse"]["agreement"] is None
    assert sides["plain"]["acceptance_length"] == 1
    over = point["sparse_over"]
    assert {name: list(ratios) for name, ratios in over.items()} == {
        "dense": ["plain"],
        **{name: ["plain", "dense"] for name in ("sparse", "exact", "self")},
    }
    for low, middle, high in (ratio for ratios in over.values() for ratio in ratios.values()):
        assert low <= middle <= high
    assert main([str(option) for option in options]) == 0
    out = capsys.readouterr().out
    assert "exact over dense" in out
    assert "sparse: guarantee sparse" in out


def test_agreement_is_of_what_dense_passes_drew_again() -> None:
    counts = {"sparse_passes": 5, "dense_passes": 2, "refreshes": 0, "kv_bytes_read": 9, "kv_bytes_dense": 21}
    drawn = {"confirmed_tokens": 6, "taken_back_tokens": 2}
    stats: Any = SimpleNamespace(**counts, **drawn, mass_passes=5, mean_mass=0.75)
    assert sparse_notes(stats, "exact") == {"guarantee": "exact", **counts, "mean_mass": 0.75, "agreement": 0.75}


def test_prompts_of_a_point_are_computed_once(tiny_model_dir: Path) -> None:
    engine = Engine(EngineConfig(model=str(tiny_model_dir), max_num_seqs=4))
    held = HeldPrompts(engine, lambda point: [[i, *range(3, 2 + point.context)] for i in range(point.batch)])
    sides = [ModelSide(held, 6), ModelSide(held, 6)]
    point = Point(2, 65)
    for side in sides:
        side.prepare(point)
    assert engine.stats().sequences_running == 2
    engine.reset_stats()
    first = sides[0]._decode_first_tokens(6)  # of 65 tokens 64 lie in whole pages
    assert engine.stats().prompt_rows == 2
    for request in first[0]:
        engine.cancel(request)
    while engine.has_work():
        engine.step()
    runs = [side.run() for side in sides]
    assert first_difference(*runs) is None
    sides[0].finish()
    assert engine.stats().sequences_running == 2
    sides[1].finish()
    assert engine.stats().sequences_running == engine.stats().pages_used == 0


def test_a_random_block_drafter_is_cut(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--shape", shape, "--points", "3x64", "--steps", 12, "--repeat", 2, "--rate", 0.1, "--dtype", "float32"]
    options += ["--synthetic-rows", 7, "--synthetic-acceptance", 2, "--synthetic-ranking", 0.8, "--dflash-layers", 1]
    found = run_json(capsys, *options, "--row-budgets", "plain,full,fixed:0.25")
    sides = found["points"][0]["sides"]
    assert sides["full"]["acceptance_length"] == 3
    assert 1 < sides["fixed:0.25"]["acceptance_length"] < 3
    assert sides["full"]["ms_per_step_by_verb"]["draft"] > 0.05


def test_shape_beside_transformers(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--shape",
        shape,
        "--points",
        "1x64,3x128",
        "--steps",
        4,
        "--repeat",
        3,
        "--rate",
        0.1,
        "--dtype",
        "float32",
    ]
    options += ["--synthetic-rows", 4, "--synthetic-acceptance", 2.5, "--compare", "transformers"]
    found = run_json(capsys, *options)
    assert [(point["batch"], point["context"]) for point in found["points"]] == [(1, 64), (3, 128)]
    for point in found["points"]:
        plain, speculative, other = (
            point["sides"][name] for name in ("plain", "SYNTHETIC speculation", "transformers")
        )
        assert len(plain["ms_per_step_runs"]) == len(other["ms_per_step_runs"]) == 3
        assert plain["ms_per_step"] in plain["ms_per_step_runs"]
        assert plain["tokens_per_second"] == pytest.approx(1e3 * point["batch"] / plain["ms_per_step"])
        assert other["tokens_per_second"] == pytest.approx(1e3 * point["batch"] / other["ms_per_step"])
        ratio = plain["tokens_per_second"] / other["tokens_per_second"]
        assert plain["over"]["transformers"] == pytest.approx(ratio)
        assert speculative["acceptance_length"] == pytest.approx(3.5, abs=0.26)  # 4 steps of 2 and 3
        assert plain["roofline_ms"] == pytest.approx((plain["weight_bytes"] + plain["kv_bytes"]) / 1e8)
        assert other["way"] in (peer.STATIC, peer.DYNAMIC)
        assert other["ways_that_failed"] == {}

    assert main([str(option) for option in options]) == 0
    text = capsys.readouterr().out
    assert text.count("SYNTHETIC speculation") == 2
    assert text.count("x transformers") == 4


def test_model_beside_transformers(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", tiny_model_dir, "--batch", "1,3", "--context", 40, "--max-tokens", 12, "--repeat", 2]
    options += ["--rate", 0.1, "--drafter", "ngram", "--compare", "transformers", "--dtype", "float32"]
    found = run_json(capsys, *options)
    for point in found["points"]:
        assert list(point["sides"]) == ["plain", "ngram", "transformers"]
        assert point["differences"] == {"ngram": None, "transformers": None}
        for side in point["sides"].values():
            assert side["tokens_per_second"] > 0


def test_no_sequence_leaves_the_batch_early(tiny_model_dir: Path) -> None:
    speculation = SpeculationConfig(drafter=DrafterConfig(kind="ngram", ngram_min=1))
    engine = Engine(EngineConfig(model=str(tiny_model_dir), device="cpu:reference", speculation=speculation))
    held = HeldPrompts(engine, lambda point: [[5 + i, 9, 7 * i + 1] * 3 for i in range(point.batch)])
    plain, drafting = ModelSide(held, 50), ModelSide(held, 50, Way("ngram", speculative=True))
    runs = []
    for side in (plain, drafting):
        side.prepare(Point(4, 9))
        runs.append(side.run())
    counts = [[len(ids) for ids in run.token_ids or []] for run in runs]
    assert counts[0] == [50] * 4
    assert sum(counts[1]) >= 200
    assert min(counts[1]) < 50 < max(counts[1]) <= 150
    assert first_difference(*runs) is None
    plain.finish()
    drafting.finish()
    assert not engine.has_work()
    assert engine.stats().pages_used == 0


def test_kernels_of_a_cpu_are_not_traced(shape: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--rate", 0.1, "--repeat", 1, "--dtype", "float32"]
    found = run_json(capsys, "--shape", shape, "--points", "1x64", "--steps", 2, *common)
    assert "trace" not in found["points"][0]["sides"]["plain"]

    engine = Engine(EngineConfig(model=str(tiny_model_dir)))
    side = ModelSide(HeldPrompts(engine, lambda point: [[1, 2, 3]] * point.batch), 4)
    reason = try_trace(lambda: side.trace(Point(2, 3), 2))
    assert isinstance(reason, str)
    assert "no kernels" in reason
    assert trace_json(reason) == {"not_traced": reason}
    assert reason in trace_text(Point(2, 3), "plain", reason)
    assert not engine.has_work()  # what was not traced was not begun
    assert engine.stats().pages_used == 0


def test_a_trace_as_json() -> None:
    kernel = SimpleNamespace(name="norm", launches=57.0, milliseconds=0.25, share=0.125)
    times = {"milliseconds": 2.0, "busy_milliseconds": 1.5}
    idle = {"idle_inside_milliseconds": 0.375, "idle_between_milliseconds": 0.125}
    trace: Any = SimpleNamespace(steps=3, **times, **idle, kernels=[kernel])
    assert trace_json(trace) == {
        "steps": 3,
        "ms_per_step": 2.0,
        "busy_ms": 1.5,
        "idle_inside_ms": 0.375,
        "idle_between_ms": 0.125,
        "kernels": [{"name": "norm", "launches_per_step": 57.0, "ms_per_step": 0.25, "share": 0.125}],
    }


@pytest.mark.gpu
@pytest.mark.parametrize("what", ["shape", "model"])
def test_kernels_of_a_gpu_are_traced(
    what: str, shape: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    which = ["--shape", shape, "--steps", 3] if what == "shape" else ["--model", tiny_model_dir, "--max-tokens", 12]
    options = ["--batch", "1,3", "--context", 40, "--repeat", 2, "--rate", 1, "--dtype", "float32"]
    found = run_json(capsys, *which, *options, "--device", "cuda:0", "--trace-steps", 4)
    config = SHAPE if what == "shape" else json.loads((tiny_model_dir / "config.json").read_text())
    for point in found["points"]:
        trace = point["sides"]["plain"]["trace"]
        assert trace["steps"] == 4, trace
        parts = trace["busy_ms"] + trace["idle_inside_ms"] + trace["idle_between_ms"]
        assert parts == pytest.approx(trace["ms_per_step"])
        assert trace["busy_ms"] > 0 < trace["idle_inside_ms"]
        launches = {kernel["name"]: kernel["launches_per_step"] for kernel in trace["kernels"]}
        assert launches["step_end_kernel"] == 1
        assert launches["rope_store_kernel"] == config["num_hidden_layers"]
        assert sum(kernel["share"] for kernel in trace["kernels"]) == pytest.approx(
            trace["busy_ms"] / trace["ms_per_step"], rel=0.05
        )


def test_a_difference_is_told() -> None:
    left, right = Run(1, 1, [[1, 2, 3], [4, 5, 6]]), Run(1, 1, [[1, 2, 3], [4, 9, 6]])
    assert first_difference(left, left) is None
    assert first_difference(left, right) == (1, 1)


@pytest.mark.parametrize("way", [peer.STATIC, peer.DYNAMIC])
def test_ways_of_transformers_decode_its_own_tokens(way: str, tiny_model_dir: Path) -> None:
    model = peer.load_model(tiny_model_dir, "cpu", "float32")
    prompts = [[5, 6, 7, 8, 9], [100, 90, 80, 70, 60]]
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(prompts), do_sample=False, min_new_tokens=9, max_new_tokens=9, pad_token_id=0
        )[:, 5:].tolist()
        decoder = peer.Decoder(model, 2, 32, way)
        for _ in range(2):  # a used cache begins anew
            decoder.fill_with_prompts(prompts)
            assert decoder.decode(8) > 0
            assert decoder.token_ids(5, 9) == expected


class NoHostReads(TorchDispatchMode):
    """Fails where a tensor's value is asked for: a CUDA graph could not record that."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero"), function
        return function(*args, **(kwargs or {}))


def test_a_static_step_can_be_recorded(tiny_model_dir: Path) -> None:
    model = peer.load_model(tiny_model_dir, "cpu", "float32")
    with torch.no_grad():
        decoder = peer.Decoder(model, 2, 32, peer.STATIC)
        decoder.fill_with_noise(10)
        decoder.step()
        with NoHostReads():
            decoder.step()


def test_sides_take_turns() -> None:
    calls: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def prepare(self, point: Point) -> None:
            calls.append(f"{self.name} prepare")

        def run(self) -> Run:
            calls.append(self.name)
            return Run(2.0, 1)

        def finish(self) -> dict[str, object]:
            return {"of": self.name}

    results = measure(Point(1, 8), [Fake("a"), Fake("b")], 2)
    assert calls == ["a prepare", "b prepare", "a", "b", "a", "b"]
    assert [result.notes["of"] for result in results] == ["a", "b"]


def test_median_of_an_even_number_is_the_slower() -> None:
    assert Result("x", [Run(ms, 1) for ms in (1.0, 2.0, 3.0, 4.0)]).median.milliseconds == 3.0


def test_importing_brings_no_torch() -> None:
    program = "import sys, fastspec.bench.__main__; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--shape", "qwen9", "--rate", "1"], "qwen2.5-7b"),
        (["--shape", "qwen3-8b", "--steps", "0"], "--steps"),
        (["--shape", "qwen3-8b", "--trace-steps", "-1"], "--trace-steps"),
        (["--model", "nowhere", "--synthetic-rows", "2"], "--shape"),
        (["--shape", "qwen3-8b", "--device", "cpu:reference", "--compare", "transformers"], "cpu:reference"),
        (["--model", "nowhere", "--sparse", "history"], "--sparse-variants"),
        (["--model", "nowhere", "--sparse", "history", "--sparse-variants", "plain,quick"], "quick"),
        (["--model", "nowhere", "--sparse", "history", "--sparse-variants", "self,self"], "twice"),
        (["--model", "nowhere", "--sparse", "history", "--sparse-variants", "plain,exact"], "--drafter"),
        (["--shape", "qwen3-8b", "--sparse", "history", "--sparse-variants", "self"], "--model"),
        (
            [
                "--model",
                "nowhere",
                "--drafter",
                "ngram",
                "--row-budgets",
                "full",
                "--sparse",
                "quest",
                "--sparse-variants",
                "self",
            ],
            "cannot be",
        ),
    ],
)
def test_refusals(options: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, "--rate", "1"]) == 2
    assert word in capsys.readouterr().err
