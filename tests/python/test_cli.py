"""fastspec-cli: the same tokens as Python, one JSON object, exit codes, one line for an error, Ctrl-C."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_shape import SHAPE

from fastspec import LLM, SamplingParams

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

PROMPT = "the quick brown fox"
REFERENCE = ("--device", "cpu:reference", "--max-num-seqs", "4")


def assert_refused(result: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("fastspec-cli: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_help_and_version(run_cli: RunCli) -> None:
    assert "generate" in run_cli("--help").stdout
    for command in ("generate", "bench", "chat", "info"):
        result = run_cli(command, "--help")
        assert result.returncode == 0
        assert "Examples:" in result.stdout
        assert "--drafter" in result.stdout
    assert run_cli("--version").stdout.strip().count(".") == 2


def test_generate_is_what_python_generates(run_cli: RunCli, tiny_model_dir: Path, llm: LLM) -> None:
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=20, top_k=50, logprobs=2, ignore_eos=True)
    [expected] = llm.generate(PROMPT, params, progress=False)
    output = expected.outputs[0]
    options = ["--temperature", 0.9, "--seed", 4, "--max-tokens", 20, "--top-k", 50, "--logprobs", 2, "--ignore-eos"]
    result = run_cli("generate", "--model", tiny_model_dir, "--prompt", PROMPT, "--json", *options, *REFERENCE)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["token_ids"] == output.token_ids
    assert found["text"] == output.text
    assert found["finish_reason"] == "length"
    assert found["seed"] == 4
    assert found["guarantee"] == "exact"
    assert found["stats"]["acceptance_length"] == 1.0
    assert found["stats"]["completion_tokens"] == 20
    assert len(found["logprobs"]) == 20
    assert all(len(position["top"]) == 2 for position in found["logprobs"])
    text = run_cli("generate", "--model", tiny_model_dir, "--prompt", PROMPT, *options, *REFERENCE)
    assert text.stdout == output.text + "\n"


def test_forms_of_prompts(run_cli: RunCli, tiny_model_dir: Path, llm: LLM, tmp_path: Path) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    (tmp_path / "prompt.txt").write_text(PROMPT)
    common = ("generate", "--model", tiny_model_dir, "--max-tokens", 8, *REFERENCE)
    outputs = {
        run_cli(*common, *prompt, stdin=PROMPT).stdout
        for prompt in (
            ("--prompt", PROMPT),
            ("--prompt-file", tmp_path / "prompt.txt"),
            ("--prompt-file", "-"),
            ("--token-ids", ",".join(map(str, ids))),
            ("--token-ids", *ids),
        )
    }
    assert outputs == {llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=8), progress=False)[0].text + "\n"}


def test_samples_stops_and_bias(run_cli: RunCli, tiny_model_dir: Path, llm: LLM) -> None:
    common = ("generate", "--model", tiny_model_dir, "--prompt", PROMPT, *REFERENCE)
    found = json.loads(run_cli(*common, "--n", 2, "--temperature", 1, "--seed", 1, "--max-tokens", 5, "--json").stdout)
    params = SamplingParams(n=2, seed=1, max_tokens=5)
    expected = llm.generate(PROMPT, params, progress=False)[0].outputs
    assert [sample["token_ids"] for sample in found["samples"]] == [output.token_ids for output in expected]
    free = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=30), progress=False)[0].text
    stopped = run_cli(*common, "--max-tokens", 30, "--stop", "not there", "--stop", free[6:8])
    assert stopped.stdout == free[: free.index(free[6:8])] + "\n"
    forced = json.loads(run_cli(*common, "--max-tokens", 3, "--logit-bias", "42=1000", "--json").stdout)
    assert forced["token_ids"] == [42, 42, 42]


@pytest.mark.parametrize("drafter", ["ngram", "standalone", "longspec", "dflash"])
def test_drafters(
    run_cli: RunCli,
    tiny_model_dir: Path,
    tiny_draft_dir: Path,
    tiny_longspec_dir: Path,
    tiny_dflash_dir: Path,
    drafter: str,
) -> None:
    directories = {"standalone": tiny_draft_dir, "longspec": tiny_longspec_dir, "dflash": tiny_dflash_dir}
    name = f"{drafter}:{directories[drafter]}" if drafter in directories else drafter
    common = ("generate", "--model", tiny_model_dir, "--prompt", PROMPT * 3, "--max-tokens", 24, "--json", *REFERENCE)
    common += ("--logit-bias", "42=1000")  # a random model repeats nothing by itself
    plain = json.loads(run_cli(*common).stdout)
    result = run_cli(*common, "--drafter", name, "--max-draft-tokens", 3, "--stats")
    found = json.loads(result.stdout)
    assert found["token_ids"] == plain["token_ids"]
    assert found["stats"]["drafted_tokens"] > 0
    assert "acceptance length" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--prompt"]),
        (["--prompt", "a", "--token-ids", "1"], ["--token-ids"]),
        (["--prompt", "a", "--temperature", "-1"], ["temperature"]),
        (["--prompt", "a", "--temperature", "hot"], ["temperature"]),
        (["--prompt", "a", "--no-such-option"], ["--no-such-option"]),
        (["--prompt", "a", "--drafter", "oracle"], ["oracle", "ngram"]),
        (["--prompt", "a", "--drafter", "standalone:/no/such"], ["/no/such"]),
        (["--prompt", "a", "--max-draft-tokens", "3"], ["--max-draft-tokens", "--drafter"]),
        (["--prompt", "a", "--drafter", "longspec:/no/such"], ["longspec:/no/such"]),
        (["--prompt", "a", "--ngram-min", "3"], ["--ngram-min"]),
        (["--prompt", "a", "--tree-widths", "4,4"], ["--tree-widths", "longspec"]),
        (["--prompt", "a", "--drafter", "ngram", "--draft-window", "64"], ["--draft-window", "dflash"]),
        (["--prompt", "a", "--dtype", "int2"], ["int2"]),
        (["--prompt", "a", "--device", "tpu"], ["tpu"]),
        (["--prompt", "a", "--logit-bias", "x"], ["--logit-bias x"]),
        (["--prompt", ""], []),
        (["--prompt", "a " * 200], ["128"]),
        (["--token-ids", "1,999"], ["999"]),
        (["--prompt-file", "/no/such/file"], ["/no/such/file"]),
        (["--prompt-file", "/dev"], ["/dev", "directory"]),
        (["--prompt-file", "/dev/zero"], ["/dev/zero", "limit"]),
        (["--prompt", "a", "--n", "0"], ["n"]),
        (["--prompt", "a", "--seed", "-1"], ["--seed", '"-1"']),
        (["--prompt", "a", "--seed", str(2**64)], ["--seed", "out of range"]),
        (["--prompt", "a", "--kv-cache-bytes", "9" * 20], ["--kv-cache-bytes", "out of range"]),
        (["--prompt", "a", "--kv-cache-bytes", "1"], ["kv_cache_bytes"]),
        (["--prompt", "a", "--gpu-memory-utilization", "0"], ["gpu_memory_utilization"]),
        (["--prompt", "a", "--gpu-memory-utilization", "x"], ["--gpu-memory-utilization", "number"]),
        (["--prompt", "a", "--max-num-seqs", str(2**32 + 1)], ["--max-num-seqs", "out of range"]),
        (["--prompt", "a", "--temperature", "1e-60"], ["--temperature", "out of range"]),
        (["--token-ids", "1,,2"], ["--token-ids", "whole number"]),
        (["--token-ids", "1,2,"], ["--token-ids", "whole number"]),
        (["--token-ids", str(2**32)], ["--token-ids", "out of range"]),
        (["--prompt", "a", "--stop-token-ids", "1,x"], ["--stop-token-ids", '"x"']),
        (["--prompt", "a", "--logit-bias", "5=1e39"], ["5=1e39", "out of range"]),
        (["--prompt", "a", "--logit-bias", "5"], ["TOKEN=VALUE"]),
        (["--prompt", "a", "--drafter", "\x1b[2J\u009b"], ["\\x1b[2J\\xc2\\x9b"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run_cli: RunCli, tiny_model_dir: Path, options: list[str], words: list[str]
) -> None:
    assert_refused(run_cli("generate", "--model", tiny_model_dir, *options), *words)


def test_models_that_are_refused(run_cli: RunCli, model_copy: Path) -> None:
    assert_refused(run_cli("info", "--model", "org/name"), "org/name", "python -m fastspec fetch")
    assert_refused(run_cli("generate"), "--model")
    assert_refused(run_cli(), "subcommand")
    assert_refused(run_cli("bogus"), '"bogus"', "generate")
    (model_copy / "config.json").write_text('{"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}')
    assert_refused(run_cli("info", "--model", model_copy), "amba2")
    (model_copy / "config.json").write_text("[")
    assert_refused(run_cli("generate", "--model", model_copy, "--prompt", "x"), "config.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
@pytest.mark.parametrize("command", [["info"], ["chat"], ["generate", "--prompt", "x"]])
def test_a_model_that_may_not_be_read(run_cli: RunCli, model_copy: Path, command: list[str]) -> None:
    model_copy.chmod(0)
    result = run_cli(*command, "--model", model_copy)
    model_copy.chmod(0o700)
    assert_refused(result, str(model_copy), "permission denied")


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["info"],
        ["generate", "--prompt", "x", "--max-tokens", "3"],
        ["generate", "--prompt", "x", "--max-tokens", "3", "--json"],
        ["chat"],
        ["bench", "--context", "64", "--max-tokens", "4", "--repeat", "1"],
    ],
)
def test_output_that_cannot_be_written(cli_path: str, model_copy: Path, arguments: list[str], closed: bool) -> None:
    (model_copy / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    command = [cli_path, *arguments] + ([] if arguments == ["--help"] else ["--model", str(model_copy)])
    script = 'exec "$@" >&-' if closed else 'exec "$@" >/dev/full'
    result = subprocess.run(
        ["sh", "-c", script, "sh", *command], input="question\n", stderr=subprocess.PIPE, text=True, check=False
    )
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("fastspec-cli: standard output: ")
    assert result.stderr.count("\n") == 1


def test_info(run_cli: RunCli, tiny_model_dir: Path, llm: LLM) -> None:
    text = run_cli("info", "--model", tiny_model_dir).stdout
    assert "Llama" in text
    assert "token" in text
    assert "weights" in text
    assert "activations" in text
    found = json.loads(run_cli("info", "--model", tiny_model_dir, "--json", "--device", "cpu:reference").stdout)
    expected = llm.info.to_dict()
    assert set(found) == set(expected)
    for name in ("architecture", "num_parameters", "weight_bytes", "kv_bytes_per_token", "vocab_size", "eos_token_ids"):
        assert found[name] == expected[name]


@pytest.fixture
def endless(model_copy: Path) -> Path:
    """The tiny model with a limit that a test does not reach."""
    config = json.loads((model_copy / "config.json").read_text())
    config["max_position_embeddings"] = 200000
    (model_copy / "config.json").write_text(json.dumps(config))
    return model_copy


@pytest.mark.parametrize("form", ["text", "json"])
def test_interrupt_keeps_what_is_there(cli_path: str, endless: Path, form: str) -> None:
    command = [cli_path, "generate", "--model", str(endless), "--prompt", PROMPT, "--max-num-seqs", "1"]
    command += ["--max-tokens", "190000", "--ignore-eos", "--max-model-len", "195000"]
    with subprocess.Popen(
        command + (["--json"] if form == "json" else []), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        if form == "text":
            start = process.stdout.read(1)
        else:
            start = b""
            wait_until_generating(process.pid)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    if form == "json":
        found = json.loads(rest)
        assert found["finish_reason"] == "cancelled"
        assert 0 < len(found["token_ids"]) < 190000
    else:
        assert len(start + rest) > 1
        assert rest.endswith(b"\n")


def wait_until_generating(pid: int) -> None:
    """Until the process has used two seconds of the processors: far behind loading a model of 100 kB."""
    ticks = os.sysconf("SC_CLK_TCK")
    for _ in range(3000):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if (int(fields[11]) + int(fields[12])) / ticks > 2:
            return
        signal.sigtimedwait([], 0.02)
    pytest.fail("the program did not start to generate")


def test_interrupt_between_answers_ends_the_chat(cli_path: str, model_copy: Path) -> None:
    (model_copy / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    command = [cli_path, "chat", "--model", str(model_copy), "--max-tokens", "3", "--stats"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"lazy\n")
        process.stdin.flush()
        assert b"tokens/s" in process.stderr.readline()  # the answer is done
        signal.sigtimedwait([], 0.5)  # and the next line is waited for
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_chat(run_cli: RunCli, model_copy: Path) -> None:
    (model_copy / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}A"
    )
    options = ("chat", "--model", model_copy, "--temperature", 0, "--max-tokens", 3, "--system", "s", *REFERENCE)
    result = run_cli(*options, stdin="one\n\n/reset\none\ntwo\n/exit\nthree\n")
    assert result.returncode == 0, result.stderr
    with LLM(model_copy, device="cpu:reference", max_num_seqs=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=3)
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]
        first = llm.chat(messages, params, progress=False)[0].text
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "two"}]
        second = llm.chat(messages, params, progress=False)[0].text
    assert result.stdout == f"{first}\n{first}\n{second}\n"


def test_a_refused_turn_does_not_end_the_chat(run_cli: RunCli, model_copy: Path) -> None:
    (model_copy / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('never') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    options = ("chat", "--model", model_copy, "--temperature", 0, "--max-tokens", 3, *REFERENCE)
    first, second = run_cli(*options, stdin="one\ntwo\n").stdout.splitlines(keepends=True)
    long = "word " * 500
    result = run_cli(*options, stdin=f"one\n{long}\nno\ntwo\n/reset\none\n")
    assert result.stdout == first + second + first
    assert result.stderr.count("\n") == 2
    assert "max_model_len" in result.stderr
    assert "never" in result.stderr
    assert result.returncode == 2


def test_chat_without_template(run_cli: RunCli, tiny_model_dir: Path) -> None:
    assert_refused(run_cli("chat", "--model", tiny_model_dir), "no chat template")


def test_bench(run_cli: RunCli, tiny_model_dir: Path, model_copy: Path) -> None:
    options = ["--batch", "1,3", "--context", "80", "--max-tokens", 16, "--repeat", 3, "--device", "cpu:reference"]
    options += ["--drafter", f"standalone:{tiny_model_dir}"]
    result = run_cli("bench", "--model", tiny_model_dir, *options, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["machine"]["read_bytes_per_second"] > 1e8
    assert [(case["batch"], case["context"]) for case in found["cases"]] == [(1, 80), (3, 80)]
    for case in found["cases"]:
        assert case["equal"]
        assert case["ratio"] > 0
        assert case["plain"]["acceptance_length"] == 1.0
        assert case["plain"]["drafted_tokens"] == 0
        assert case["speculative"]["acceptance_length"] > 2  # the model drafts for itself
        assert 0 <= case["plain"]["overhead"] < 1
    (model_copy / "tokenizer.json").unlink()
    text = run_cli("bench", "--model", model_copy, *options[2:-1], "ngram").stdout
    assert "outputs equal" in text
    assert "synthetic" in text
    assert "MB/s" in text or "GB/s" in text


def test_bench_of_a_shape_with_synthetic_acceptance(run_cli: RunCli, tmp_path: Path) -> None:
    shape = tmp_path / "tiny.json"
    shape.write_text(json.dumps(SHAPE))
    options = ["bench", "--shape", shape, "--dtype", "float32", "--batch", "1,3", "--context", "64", "--steps", 4]
    options += ["--repeat", 2, "--synthetic-rows", 4, "--synthetic-acceptance", 2.5, "--rate", 0.1]
    found = json.loads(run_cli(*options, "--json").stdout)
    assert [(point["batch"], point["synthetic_rows"]) for point in found["points"]] == [(1, 0), (1, 4), (3, 0), (3, 4)]
    for plain, speculative in zip(found["points"][::2], found["points"][1::2], strict=True):
        assert plain["acceptance_length"] == 1
        assert speculative["acceptance_length"] == 3.5
        ratio = speculative["tokens_per_second"] / plain["tokens_per_second"]
        assert speculative["over_plain"] == pytest.approx(ratio)
        assert speculative["weight_bytes"] == plain["weight_bytes"]
        assert speculative["ms_per_step_by_verb"]["draft"] > 0
        assert speculative["roofline_ms"] == pytest.approx(
            (speculative["weight_bytes"] + speculative["kv_bytes"]) / 1e8, rel=1e-9
        )
    text = run_cli(*options).stdout
    assert text.count("SYNTHETIC speculation, 5 rows a sequence, tau 3.500") == 2
    assert text.count("x the tokens/s of plain decoding") == 2
    assert "SYNTHETIC" not in run_cli(*options[:-6], "--rate", 0.1).stdout


def test_bench_refuses_impossible_acceptance(run_cli: RunCli, tiny_model_dir: Path) -> None:
    options = ["--synthetic-rows", 2, "--synthetic-acceptance", 3]
    assert_refused(run_cli("bench", "--shape", tiny_model_dir, *options), "synthetic_acceptance")
    assert_refused(run_cli("bench", "--model", tiny_model_dir, *options), "--shape")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--batch", "0"], "--batch"),
        (["--context", "8"], "--context"),
        (["--context", "500"], "128"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--batch", "8", "--max-num-seqs", "2"], "--max-num-seqs"),
        (["--repeat", "0"], "--repeat"),
        (["--trace-steps", "-1"], "--trace-steps"),
    ],
)
def test_bench_refuses(run_cli: RunCli, tiny_model_dir: Path, options: list[str], word: str) -> None:
    result = run_cli("bench", "--model", tiny_model_dir, *options)
    assert result.returncode == 2
    assert word in result.stderr
    assert result.stderr.count("\n") == 1
