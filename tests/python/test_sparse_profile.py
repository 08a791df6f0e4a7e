"""The profile of a pair of models: ranking of heads, Algorithm 1, objectives, the manifest, the command."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastspec import InvalidArgumentError, UnsupportedError
from fastspec.__main__ import main
from fastspec.sparse import objectives
from fastspec.sparse.context import refuse_windows
from fastspec.sparse.inputs import split
from fastspec.sparse.lookahead import load_lookahead
from fastspec.sparse.manifest import Manifest
from fastspec.sparse.needles import Haystack, Probe, number_needles, recall, sentence_needle
from fastspec.sparse.objectives import oracle_lists
from fastspec.sparse.ranking import HeadMap, NeedleRanking, needle_merits, recovery_merits
from fastspec.sparse.signals import Budget
from fastspec.sparse.trajectories import Recording, Trajectory, record
from fastspec.train.target import Target
from fastspec.train.texts import Text

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tiny_model_dir: Path) -> Target:
    return Target(tiny_model_dir, CPU, torch.float32)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "with", "no", "hat", "ran", "to", "town"]
    path = tmp_path_factory.mktemp("texts") / "prose.txt"
    path.write_text("\n".join(" ".join(generator.choices(words, k=12)) for _ in range(120)))
    return path


# --- ranking ----------------------------------------------------------------------------------------------------------


def test_ranking_finds_a_planted_head() -> None:
    """Head 2 looks at the needle where the answer repeats it; head 1 does so on other rows; the rest look anywhere."""
    torch.manual_seed(0)
    probe = Probe(tokens=[*range(20, 40)], begin=5, end=9, answer="", length=20, depth=0.3)
    tokens = [*probe.tokens, 7, 26, 27, 8]  # the needle has 25..28
    attended = torch.rand(4, 5, 24)
    attended /= attended.sum(dim=-1, keepdim=True)
    planted = torch.zeros(24)
    planted[5:9] = 0.25
    attended[2, [1, 2]] = planted  # rows that gave 26 and 27
    attended[1, [0, 3, 4]] = planted
    merits = needle_merits(attended, tokens, probe, 19)
    assert merits is not None
    assert merits[2] == pytest.approx(1.0)
    assert float(merits[[0, 1, 3]].max()) < 0.5
    assert HeadMap.first(merits[None], 1) == [(2,)]
    assert needle_merits(attended, [*probe.tokens, 7, 8, 9, 10], probe, 19) is None


def test_heads_are_ranked_inside_their_layer_and_ties_go_to_the_lower() -> None:
    merits = torch.tensor([[0.1, 0.3, 0.2], [0.5, 0.5, 0.5]])
    assert HeadMap.first(merits, 2) == [(1, 2), (0, 1)]
    assert HeadMap.first(merits, 9) == [(0, 1, 2), (0, 1, 2)]


def test_probes_are_averaged_where_they_are_answered(
    target: Target, tiny_model_dir: Path, tiny_longspec_dir: Path
) -> None:
    """Against transformers' own attention weights."""
    import transformers

    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, 300, (50,), generator=generator).tolist()
    probe = Probe(prompt, 12, 20, "the silver key", 50, 0.3)
    answer = [5, prompt[13], prompt[17]]
    lookahead = load_lookahead(SimpleNamespace(kind="longspec", model=tiny_longspec_dir, tree_widths=[]), target)  # type: ignore[arg-type]
    ranking = NeedleRanking(target, lookahead)
    with pytest.raises(InvalidArgumentError, match="none of 0"):
        ranking.result()
    assert not ranking.add(probe, answer, "a wooden flute")
    assert ranking.add(probe, answer, "It is the Silver key.")
    assert (ranking.kept, ranking.asked) == (1, 2)
    eager = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_model_dir, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        attentions = eager(torch.tensor([prompt + answer]), output_attentions=True).attentions
    needle = set(prompt[12:20])
    rows = [49 + i for i, token in enumerate(answer) if token in needle]
    expected = torch.stack([a[0, :, rows, 12:20].sum(-1).mean(-1) for a in attentions])
    found = ranking.result()
    torch.testing.assert_close(found.target, expected, rtol=1e-4, atol=1e-6)
    assert found.drafter is not None
    assert found.drafter.shape == (1, 4)


def test_recovery_merit_is_what_a_heads_own_choice_recovers() -> None:
    mass = torch.tensor([[0.1, 0.6, 0.3]])
    scores = torch.tensor([[[0.0, 1.0, 0.5]], [[1.0, 0.5, 0.0]]])
    torch.testing.assert_close(recovery_merits(scores, mass, 2), torch.tensor([0.9, 0.7]))


def test_recall_counts_words_as_often_as_they_are_expected() -> None:
    assert recall("The silver KEY, yes.", "the silver key under the bridge") == pytest.approx(3 / 6)
    assert recall("key key key", "silver key") == 0.5
    assert recall("", "key") == 0.0


def test_a_probe_says_where_its_needle_is(tiny_model_dir: Path) -> None:
    texts = [Text("prose", "the cat sat on a mat. " * 200)]
    haystack = Haystack(texts, tiny_model_dir)
    generator = random.Random(2)
    shallow, deep = (
        haystack.probe([needle := sentence_needle(generator)], 400, depth, generator) for depth in (0.0, 1.0)
    )
    from fastspec import Tokenizer

    decode = Tokenizer.load(tiny_model_dir).decode
    for probe in (shallow, deep):
        assert len(probe.tokens) == 400
    assert decode(deep.tokens[deep.begin : deep.end]).strip() == needle.sentence
    assert shallow.begin == 0
    assert needle.question in decode(deep.tokens[deep.end :])
    several = haystack.probe(number_needles(generator, 3), 400, 0.5, generator)
    assert decode(several.tokens).count("The secret number of") == 3
    assert several.answer in decode(several.tokens[several.begin : several.end])
    with pytest.raises(InvalidArgumentError, match="the texts have"):
        haystack.probe([needle], 9000, 0.5, generator)


# --- objectives on a model --------------------------------------------------------------------------------------------


def trajectory(seed: int = 0) -> Trajectory:
    tokens = torch.randint(3, 300, (90,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Trajectory("prose", tokens, 60, [(60, 3), (63, 1), (64, 5), (69, 4)])


def test_everything_selected_is_dense_and_less_is_not(target: Target) -> None:
    heads = [(0, 1)] * 3
    one = record(target, None, trajectory(), heads, [], "mean")
    almost = Budget(59, 4, 16)  # one token less than the first context
    found = objectives.figures(target, [one], oracle_lists(almost))
    fewer = objectives.figures(target, [one], oracle_lists(Budget(24, 4, 16)))
    assert found.arr > 0.95
    assert found.agreement >= fewer.agreement
    assert found.kl < fewer.kl
    everything = torch.arange(60).expand(4, -1)
    whole = Recording(
        **{
            **vars(one),
            "roots": torch.full((4,), 60),
            "rows": one.rows[:1].expand(4, -1),
            "counted": one.counted[:1].expand(4, -1),
        }
    )
    agreed, kl = objectives.verified(target, whole, everything)
    assert bool(agreed.all())
    assert float(kl.max()) < 1e-6


def test_recording_averages_the_named_heads(target: Target, tiny_longspec_dir: Path) -> None:
    from fastspec.sparse.trajectories import history_scores

    lookahead = load_lookahead(SimpleNamespace(kind="longspec", model=tiny_longspec_dir, tree_widths=[2, 2]), target)  # type: ignore[arg-type]
    one = record(target, lookahead, trajectory(), [(0, 2), (1,), (3,)], [(0, 3)], "mean")
    assert one.history.shape == (3, 4, 69)
    each = history_scores(one.reading, 0, one.roots)
    torch.testing.assert_close(one.history[0], (each[0] + each[2]) / 2)
    assert one.lookahead is not None
    for scores in (*one.history, *one.lookahead, one.mass, one.everywhere):
        torch.testing.assert_close(scores.sum(dim=-1), torch.ones(4))
    assert one.counted.sum(dim=1).tolist() == [3, 1, 5, 4]
    assert one.dense.shape == (4, 5, target.vocab_size)


def test_windowed_models_are_refused_by_name(tiny_model_dir: Path, tmp_path: Path) -> None:
    refuse_windows(tiny_model_dir)
    config = json.loads((tiny_model_dir / "config.json").read_text())
    windowed = config | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 32}
    (tmp_path / "config.json").write_text(json.dumps(windowed))
    with pytest.raises(UnsupportedError, match="layer 0 sees a sliding window of 32 tokens"):
        refuse_windows(tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


SMALL = ("--contexts", 64, "--budget", 32, "--sinks", 2, "--recent", 4, "--each", 2, "--held-out", 1, "--heads", 2)


def test_profile_of_a_tiny_pair(
    tiny_model_dir: Path, tiny_longspec_dir: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "manifest.json"
    given = ("profile", "srh", "--target", tiny_model_dir, "--drafter", f"longspec:{tiny_longspec_dir}")
    code = run(*given, "--data", text_file, "--out", out, *SMALL, "--max-tokens", 16, "--ranking", "recovery")
    assert code == 0
    found = Manifest.load(out)
    found.check(out, tiny_model_dir, tiny_longspec_dir)
    assert (found.budget, found.objective) == (Budget(32, 2, 4), "kl")
    assert 1 <= len(found.target.layers) <= 3
    assert all(len(heads) == 2 for heads in found.target.layers.values())
    held_out = found.notes["held_out"]
    assert set(held_out) >= {"profiled", "history of all heads", "lookahead", "streaming", "oracle"}
    assert found.arr == pytest.approx(held_out["profiled"]["arr"], abs=1e-5)
    assert held_out["oracle"]["arr"] >= max(figures["arr"] for figures in held_out.values())
    assert "| profiled |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--objective", "speed"), "objective is 'speed'"),
        (("--budget", 64), "fits the budget"),
        (("--contexts", "120", "--max-tokens", "64"), "takes 128"),
        (("--plot", "picture.txt"), "expected a name that ends in"),
        (("--probe-depths", "2", "--ranking", "needle"), "probe_depths is 2"),
    ],
)
def test_bad_input_is_refused_before_work(
    tiny_model_dir: Path,
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    given = ("profile", "srh", "--target", tiny_model_dir, "--data", text_file, "--out", tmp_path / "m.json")
    assert run(*given, *SMALL, "--ranking", "recovery", *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [("profile", "srh"), ("evaluate", "sparse"), ("profile", "plot"), ("evaluate", "acceptance")]
)
def test_help(command: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*command, "--help")
    assert ended.value.code == 0
    assert "usage: python -m fastspec " + " ".join(command) in capsys.readouterr().out


def test_held_out_text_is_not_searched() -> None:
    lines = "\n".join(f"line {i}" for i in range(100))
    seen, kept = split([Text("a", lines), Text("b", "x\ny\nz\nw\n")], 0.75)
    assert seen[0].text + kept[0].text == lines
    assert 0.7 < len(seen[0].text) / len(lines) < 0.8
    assert kept[0].text.startswith("line ")
    assert [text.kind for text in kept] == ["a", "b"]


def test_published_drafters_are_read(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Their prefix, their cross attention's unused keys, and no section of ours in config.json."""
    from make_longspec import make_random

    from fastspec.train.drafter_files import load_drafter

    config = json.loads((tiny_model_dir / "config.json").read_text())
    directory = make_random(tmp_path / "published", config, prefix="draft_model.")
    target = Target(tiny_model_dir, CPU, torch.float32)
    block = load_drafter(directory, target)
    assert (block.shape.window, block.shape.final_norm) == (512, False)
    shutil.rmtree(directory)
