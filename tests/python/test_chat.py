"""Chat templates: Python's and the command line program's renderings are those of transformers."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CONVERSATIONS, SNIPPETS, TEMPLATES

import fastspec
from fastspec import LLM, InvalidArgumentError, SamplingParams
from fastspec.chat import ChatTemplate

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

# No template has this in it, so the joined snippets stay apart.
SEPARATOR = ".====="


def write_template(directory: Path, source: str, where: str = "config") -> Path:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
    }
    if where == "jinja":
        (directory / "chat_template.jinja").write_text(source)
        config["chat_template"] = "the other file goes first"
    elif where == "list":
        named = {"default": source, "tool_use": "never"}
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    elif where == "chat_template.json":
        (directory / "chat_template.json").write_text(json.dumps({"chat_template": source}))
    else:
        config["chat_template"] = source
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def template_dir(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """A directory with the tiny tokenizer and a given template."""

    def make(source: str, where: str = "config") -> Path:
        shutil.copy(tiny_model_dir / "tokenizer.json", tmp_path)
        return write_template(tmp_path, source, where)

    return make


def render_with_transformers(directory: Path, messages: list[dict[str, str]], **arguments: Any) -> str | None:
    """The oracle; None where the template refuses."""
    import jinja2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments))
    except jinja2.exceptions.TemplateError:
        return None


def render_here(directory: Path, messages: list[dict[str, str]], **arguments: Any) -> str | None:
    try:
        return ChatTemplate.load(directory).render(messages, **arguments)
    except InvalidArgumentError:
        return None


def render_in_cli(run_cli: RunCli, directory: Path, messages: list[dict[str, str]]) -> str | None:
    result = run_cli("chat", "--model", directory, "--show-prompt", "-", stdin=json.dumps(messages))
    if result.returncode != 0:
        assert result.returncode == 2, result.stderr
        assert "refuses this conversation" in result.stderr
        return None
    return result.stdout


@pytest.mark.parametrize("family", TEMPLATES)
def test_families(family: str, template_dir: Callable[..., Path], run_cli: RunCli) -> None:
    directory = template_dir(TEMPLATES[family])
    for name, messages in CONVERSATIONS.items():
        expected = render_with_transformers(directory, messages)
        assert render_here(directory, messages) == expected, name
        assert render_in_cli(run_cli, directory, messages) == expected, name


def test_the_language(template_dir: Callable[..., Path], run_cli: RunCli) -> None:
    directory = template_dir(f"\n{SEPARATOR}\n".join(SNIPPETS) + "\n\n")
    expected = render_with_transformers(directory, CONVERSATIONS["turns"])
    assert expected is not None
    assert render_here(directory, CONVERSATIONS["turns"]) == expected
    found = render_in_cli(run_cli, directory, CONVERSATIONS["turns"])
    assert found is not None
    for snippet, ours, theirs in zip(SNIPPETS, found.split(SEPARATOR), expected.split(SEPARATOR), strict=True):
        assert ours == theirs, snippet


@pytest.mark.parametrize("where", ["jinja", "list", "chat_template.json"])
def test_places_of_a_template(where: str, template_dir: Callable[..., Path], run_cli: RunCli) -> None:
    directory = template_dir(TEMPLATES["llama3"], where)
    expected = "<s><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
    expected += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert render_here(directory, CONVERSATIONS["one"]) == expected
    assert render_in_cli(run_cli, directory, CONVERSATIONS["one"]) == expected


def test_template_arguments(template_dir: Callable[..., Path]) -> None:
    directory = template_dir(TEMPLATES["chatml_thinking"])
    for enable in (True, False):
        expected = render_with_transformers(directory, CONVERSATIONS["turns"], enable_thinking=enable)
        assert render_here(directory, CONVERSATIONS["turns"], enable_thinking=enable) == expected
    tool = {"type": "function", "function": {"name": "über", "parameters": {"type": "object", "properties": {}}}}
    directory = template_dir(TEMPLATES["chatml_tools"])
    expected = render_with_transformers(directory, CONVERSATIONS["system"], tools=[tool])
    assert render_here(directory, CONVERSATIONS["system"], tools=[tool]) == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages | tojson }}", 'the filter "tojson"'),
        ("{{ messages[0].content.title() }}", "the method title()"),
        ("{% if 1 is divisibleby 2 %}{% endif %}", 'the test "divisibleby"'),
        ("{{ cycler(1, 2) }}", "the function cycler()"),
        ("{% include 'x' %}", "{% include %}"),
        ("{{ messages }}", "printing a value of type array"),
    ],
)
def test_what_the_cli_refuses(source: str, words: str, template_dir: Callable[..., Path], run_cli: RunCli) -> None:
    directory = template_dir(source)
    result = run_cli("chat", "--model", directory, "--show-prompt", "-", stdin=json.dumps(CONVERSATIONS["one"]))
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert f"python -m fastspec chat --model {directory}" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "source",
    [
        "{{",
        "{% if %}x{% endif %}",
        "{% for x in y %}",
        "{{ 'open }}",
        "{# open",
        "{{ a b }}",
        "{% endif %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ x.y.z }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=['x']) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set a %}{% for i in range(2000) %}aaaaaaaaaa{% endfor %}{% endset %}{{ a.replace('a', a) }}",
        "{% set a %}{% for i in range(2000) %}aaaaaaaaaa{% endfor %}{% endset %}{{ range(9000)|join(a) }}",
        "{% macro m(x=m()) %}{% endmacro %}{{ m() }}",
        "{{ 1" + " + 1" * 30000 + " }}",
        "{{ 'a'" + " ~ 'a'" * 30000 + " }}",
        "{{ 1" + " and 1" * 30000 + " }}",
        "{{ a" + ".b" * 30000 + " }}",
        "{{ a" + "[0]" * 30000 + " }}",
        "{{ a" + "()" * 30000 + " }}",
        "{{ 1" + " | trim" * 30000 + " }}",
        "{{ 1" + " if 1" * 30000 + " }}",
        "{% set s %}" + "a" * 900000 + "{% endset %}{% for i in range(100000) %}{% if s[0] %}{% endif %}{% endfor %}",
        "{% set s %}" + "a" * 900000 + "{% endset %}{% for i in range(100000) %}{{ s | length }}{% endfor %}",
        "{% set s %}"
        + "a" * 900000
        + "{% endset %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{{ messages[0].least // (0 - 1) }}",
        "{{ messages[0].least % (0 - 1) }}",
        "{{ messages[0].most // (0 - 1) }}",
        "{% for i in range(messages[0].least, 9000000000000000000) %}{% endfor %}",
        "{{ 'abc'[messages[0].most] }}",
        "{{ " + "9" * 400 + ".0 }}",
        "{{ messages[0].get(key='role') }}",
        "{{ strftime_now('" + "%A" * 200 + "') }}",
        "{{ " + "a" * 1000 + " }}",
        "{{ 1 // 0 }}",
        "{{ raise_exception('no') }}",
        "{{ '\\ud800' }}",
    ],
)
def test_hostile_templates_end_in_one_line(source: str, template_dir: Callable[..., Path], run_cli: RunCli) -> None:
    directory = template_dir(source, "jinja")
    messages = [{**CONVERSATIONS["one"][0], "least": -(2**63), "most": 2**64 - 1}]
    result = run_cli("chat", "--model", directory, "--show-prompt", "-", stdin=json.dumps(messages))
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("fastspec-cli: ")
    assert result.stderr.count("\n") == 1


DEEP = "[" * 100000 + "]" * 100000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer_config.json", DEEP, "nested too deeply"),
        ("tokenizer_config.json", f'{{"bos_token": {{"content": {DEEP}}}}}', "nested too deeply"),
        ("special_tokens_map.json", f'{{"a": {DEEP}}}', "nested too deeply"),
        ("chat_template.json", f'{{"chat_template": {DEEP}}}', "nested too deeply"),
        ("tokenizer_config.json", 100 << 30, "the limit is"),
        ("special_tokens_map.json", 100 << 30, "the limit is"),
        ("chat_template.jinja", 100 << 30, "the limit is"),
        ("chat_template.jinja", None, "no regular file"),
        ("tokenizer_config.json", None, "no regular file"),
        ("conversation", f'[{{"role": "user", "content": {DEEP}}}]', "nested too deeply"),
        ("conversation", json.dumps([{str(i): i for i in range(2000)}]), "more than a thousand members"),
        ("conversation", 100 << 30, "the limit is"),
        ("conversation", "[" + "x" * 100000, "parse error"),
    ],
)
def test_files_that_are_too_much(
    name: str, text: str | int | None, words: str, template_dir: Callable[..., Path], run_cli: RunCli
) -> None:
    directory = template_dir("x", "chat_template.json")
    path = directory / name
    conversation = directory / "conversation"
    conversation.write_text(json.dumps(CONVERSATIONS["one"]))
    if text is None:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    elif isinstance(text, int):
        path.write_text("")
        os.truncate(path, text)
    else:
        path.write_text(text)
    result = run_cli("chat", "--model", directory, "--show-prompt", conversation)
    assert result.returncode == 2, result.stderr
    assert name in result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1000


def test_interrupt_ends_a_rendering(cli_path: str, template_dir: Callable[..., Path]) -> None:
    directory = template_dir("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "jinja")
    command = [cli_path, "chat", "--model", str(directory), "--show-prompt", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        status = Path(f"/proc/{process.pid}/status")
        while not int(status.read_text().split("SigCgt:")[1].split()[0], 16) & 1 << (signal.SIGINT - 1):
            signal.sigtimedwait([], 0.02)
        process.stdin.write(b"[{}]")
        process.stdin.close()  # now the rendering begins
        signal.sigtimedwait([], 0.1)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 130
    assert errors == b"fastspec-cli: interrupted\n"


def test_broken_files(tiny_model_dir: Path, model_copy: Path) -> None:
    with pytest.raises(fastspec.NotFoundError, match="no chat template"):
        ChatTemplate.load(tiny_model_dir)
    (model_copy / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(fastspec.InvalidFileError, match=r"tokenizer_config\.json"):
        ChatTemplate.load(model_copy)
    write_template(model_copy, "{{ open")
    with pytest.raises(fastspec.InvalidFileError, match="no jinja template"):
        ChatTemplate.load(model_copy)


def test_chat_of_an_llm(model_copy: Path) -> None:
    write_template(model_copy, TEMPLATES["chatml_default_system"])
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(model_copy, device="cpu:reference", max_num_seqs=2) as llm:
        one, system = llm.chat([CONVERSATIONS["one"], CONVERSATIONS["system"]], params, progress=False)
        [alone] = llm.chat(CONVERSATIONS["one"], params, progress=False)
        assert one.prompt == render_with_transformers(model_copy, CONVERSATIONS["one"])
        assert one.prompt_token_ids == llm.tokenizer.encode(one.prompt, add_special_tokens=False)
        assert one.token_ids == alone.token_ids
        assert system.prompt != one.prompt
        streamed = list(llm.stream_chat(CONVERSATIONS["one"], params))
        assert "".join(map(str, streamed)) == alone.text
        with pytest.raises(InvalidArgumentError, match="role"):
            llm.chat([{"content": "x"}], params, progress=False)
        with pytest.raises(InvalidArgumentError, match="plain data"):
            llm.chat(CONVERSATIONS["one"], params, progress=False, enable_thinking=object())


def test_templates_cannot_reach_out(template_dir: Callable[..., Path]) -> None:
    for source in (
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
    ):
        directory = template_dir(source)
        try:
            text = ChatTemplate.load(directory).render(CONVERSATIONS["one"])
        except InvalidArgumentError:
            continue
        assert "class" not in text
