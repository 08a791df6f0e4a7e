"""What the commands that train and measure share: options from dataclasses, checks before long work, log lines."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from fastspec.errors import NotFoundError, UnsupportedError

TARGET_HELP = "directory, name on the Hugging Face hub, or .gguf file"
FILES_HELP = ".txt or .jsonl files"


def add_fields(parser: argparse.ArgumentParser, of: Any, prefix: str = "") -> None:
    """An option a field, with the help of the class's docstring; absent ones are None."""
    group = parser.add_argument_group(prefix.rstrip("_") or of.__name__)
    helps = dict(re.findall(r"\n {4,8}(\w+): (.*?)(?=\n {4,8}\w+: |\Z)", inspect.getdoc(of) or "", re.DOTALL))
    for field in fields(of):
        text = " ".join(helps.get(field.name, "of the engine or the run").split()).replace("%", "%%")
        group.add_argument(
            f"--{(prefix + field.name).replace('_', '-')}",
            dest=prefix + field.name,
            type=_parser_of(field),
            metavar=str(field.type).upper(),
            help=f"{text} (default: {field.default})" if field.default is not MISSING else text,
        )


def _parser_of(field: Field[Any]) -> Any:
    kinds = {"int": int, "float": float, "str": str, "bool": _boolean}
    kinds |= {"tuple[int, ...]": _numbers(int), "tuple[float, ...]": _numbers(float)}
    return kinds[str(field.type)]


def _numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(",") if part)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers with commas between them") from error

    return parse


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected true or false")
    return text.lower() == "true"


def changes(options: argparse.Namespace, of: Any, prefix: str = "") -> dict[str, Any]:
    """The fields that were given."""
    found = {field.name: getattr(options, prefix + field.name) for field in fields(of)}
    return {name: value for name, value in found.items() if value is not None}


def need_torch() -> None:
    """Raises UnsupportedError where the extra [train] is not installed."""
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(f"this command needs {error.name}: pip install 'fastspec-engine[train]'") from error


def check_files(paths: Iterable[Path]) -> None:
    """Raises NotFoundError naming what is no file."""
    for path in paths:
        if not path.is_file():
            raise NotFoundError(f"{path} is no file" if path.exists() else f"{path}: no such file")


def vocab_size(target: Path) -> int:
    """Of a model's directory. Raises NotFoundError where it is none."""
    return int(_config(target)["vocab_size"])


def longest_sequence(target: Path) -> int:
    """Tokens that a model takes. Raises NotFoundError where the directory is none."""
    return int(_config(target)["max_position_embeddings"])


def _config(target: Path) -> dict[str, Any]:
    path = target / "config.json"
    if not path.is_file():
        raise NotFoundError(f"{target} is no model: it has no config.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def say(line: str) -> None:
    """Prints a line now."""
    print(line, flush=True)
