"""Chat templates: a conversation to the text the model was trained on, by the template in the model's own directory.

Renders with jinja2 in a sandbox, the way transformers does, because templates come from strangers. Knows no model
family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fastspec.errors import FastSpecError, InvalidArgumentError, InvalidFileError, NotFoundError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        source: the jinja text.
        special_tokens: variables such as bos_token that templates may use.
        name: what error messages call it.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], name: str = "the chat template") -> None:
        """Compiles a template. Raises InvalidFileError when it is no jinja template."""
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.name = name
        self._compiled = _compile(source, name)

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate:
        """Reads chat_template.jinja, or the chat_template of tokenizer_config.json or chat_template.json.

        Raises:
            NotFoundError: there is none.
            InvalidFileError: a file is malformed.
        """
        config = _read_json(directory / "tokenizer_config.json")
        source: Any = _read_text(directory / "chat_template.jinja")
        for candidate in (config, _read_json(directory / "chat_template.json")):
            if source is None:
                source = candidate.get("chat_template")
        if isinstance(source, list):  # several named ones
            named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
            source = named[0].get("template") if named else None
        if source is None:
            raise NotFoundError(
                f"{directory} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "this may be a base model; use generate() with a prompt of your own"
            )
        if not isinstance(source, str):
            raise InvalidFileError(f"{directory}: chat_template is {type(source).__name__}, expected a string")
        return cls(source, _special_tokens(directory, config), f"the chat template of {directory}")

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **arguments: Any
    ) -> str:
        """The prompt of a conversation.

        Args:
            messages: {"role": ..., "content": ...} each, and what else the template reads.
            add_generation_prompt: end with the opening of the assistant's turn.
            **arguments: further variables of the template: enable_thinking, tools, documents, ...

        Raises:
            InvalidArgumentError: the template refuses the messages, with its own words in the message, or fails.
        """
        import jinja2

        if not messages:
            raise InvalidArgumentError("a conversation without messages")
        for message in messages:
            if not isinstance(message, Mapping) or "role" not in message:
                raise InvalidArgumentError(f'a message must be {{"role": ..., "content": ...}}, got {message!r}')
        variables = {
            "tools": None,
            "documents": None,
            **self.special_tokens,
            **arguments,
            # A missing key is what templates test for; None would be printed.
            "messages": [{key: value for key, value in message.items() if value is not None} for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return str(self._compiled.render(_plain(variables)))
        except FastSpecError:
            raise
        except jinja2.exceptions.TemplateError as error:
            raise InvalidArgumentError(f"{self.name} refuses this conversation: {error}") from error
        except Exception as error:  # a template is a stranger's program: it may divide by zero or recurse for ever
            raise InvalidArgumentError(
                f"{self.name} fails on this conversation: {type(error).__name__}: {error}"
            ) from error


def _compile(source: str, name: str) -> Any:
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise NotFoundError("chat templates need the package jinja2: pip install 'jinja2>=3.1'") from error

    class Generation(jinja2.ext.Extension):  # type: ignore[misc,unused-ignore]
        """{% generation %} marks the assistant's words for training; for a prompt it is transparent."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja's own filter escapes for HTML, which no model was trained on.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now
    try:
        return environment.from_string(source)
    except Exception as error:  # besides jinja's own errors those of Python's compiler, for too deep a nesting
        raise InvalidFileError(f"{name} is no jinja template: {error or type(error).__name__}") from error


def _plain(value: Any) -> Any:
    """Only plain data enters a template, so that it finds no methods to call."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise InvalidArgumentError(f"chat template variables are plain data (JSON types), got {type(value).__name__}")


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for source in (_read_json(directory / "special_tokens_map.json"), config):
        for name in _SPECIAL_TOKENS:
            value = source.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens[name] = value
    return tokens


def _read_text(file: Path) -> str | None:
    """None when there is no such file."""
    try:
        return file.read_text(encoding="utf-8") if file.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFileError(f"{file}: {error}") from error


def _read_json(file: Path) -> Mapping[str, Any]:
    text = _read_text(file)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{file}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidFileError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value
