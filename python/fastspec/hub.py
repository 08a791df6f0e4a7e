"""From what a user calls a model to a local directory: a directory, a .gguf file, a name on the Hugging Face hub, or,
for LongSpec, the name of a drafter that comes with this package (drafters/).

Loads no model and imports huggingface_hub only when a name has to be looked up.
"""

from __future__ import annotations

import os
import re
import reprlib
from pathlib import Path

from fastspec._fastspec import DrafterConfig
from fastspec.errors import FastSpecError, InvalidArgumentError, NotFoundError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")

# All that loading and chatting reads; other formats of the same weights would only fill the disk.
_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]

_SHIPPED = Path(__file__).parent / "drafters"


def cache_directory() -> Path:
    """Where converted models live: $FASTSPEC_CACHE, else fastspec under $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("FASTSPEC_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastspec"


def resolve_model(model: str | os.PathLike[str]) -> Path:
    """The directory of a model.

    Args:
        model: a Hugging Face directory (returned as it is), a .gguf file (converted once into cache_directory()), or a
            hub name such as "org/name" (downloaded once into the hub's own cache).

    Raises:
        NotFoundError: none of these; the message says what was tried.
        InvalidArgumentError: an empty name, or a file that is no .gguf.
    """
    if not os.fspath(model):
        raise InvalidArgumentError("model: an empty name")
    try:
        path = Path(model).expanduser()
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be read, ~ of nobody
        raise NotFoundError(f"model {reprlib.repr(os.fspath(model))}: {getattr(error, 'strerror', error)}") from error
    if is_directory:
        return path
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise InvalidArgumentError(
                f"{path} is a file; a model is a Hugging Face directory, a .gguf file or a name on the hub"
            )
        from fastspec.gguf import convert_cached

        return convert_cached(path)
    name = os.fspath(model)
    if not _HUB_NAME.fullmatch(name) or name.lower().endswith(".gguf"):
        raise NotFoundError(
            f"{path.absolute()}: no such directory or file, and '{name}' is no name on the Hugging Face hub"
        )
    return _download(name)


def shipped_drafters() -> list[str]:
    """Names of the LongSpec drafters that come with this package; each is that of its target."""
    return sorted(path.parent.name for path in _SHIPPED.glob("*/config.json"))


def resolve_drafter(drafter: str | DrafterConfig | None) -> DrafterConfig:
    """A drafter with its model as a local directory.

    Args:
        drafter: None, "ngram", "KIND:MODEL" or a DrafterConfig, which is not changed. MODEL is what resolve_model()
            takes; of "longspec:MODEL" it may be one of shipped_drafters(), unless a directory has that name.

    Raises:
        TypeError: something else.
        NotFoundError, InvalidArgumentError: as resolve_model(), or the text names no kind of drafter.
    """
    if drafter is None:
        return DrafterConfig()
    if isinstance(drafter, str):
        drafter = DrafterConfig.parse(drafter)
    if not isinstance(drafter, DrafterConfig):
        raise TypeError(
            "drafter: expected None, 'ngram', 'standalone:MODEL', 'longspec:MODEL', 'dflash:MODEL' or a DrafterConfig, "
            f"got {drafter!r}"
        )
    if not drafter.model:
        return drafter
    shipped = shipped_drafters() if drafter.kind == "longspec" else []
    if drafter.model in shipped and not Path(drafter.model).exists():
        directory = _SHIPPED / drafter.model
    else:
        try:
            directory = resolve_model(drafter.model)
        except NotFoundError as error:
            if not shipped:
                raise
            raise NotFoundError(f"{error}. Drafters that come with FastSpec: {', '.join(shipped)}") from error
    fields = {name: getattr(drafter, name) for name in DrafterConfig._fields}
    return DrafterConfig(**{**fields, "model": str(directory)})


def expand_selector(selector: str) -> str:
    """The text of a selector with the home directory in its manifest's path."""
    kind, colon, manifest = selector.partition(":")
    return f"{kind}:{Path(manifest).expanduser()}" if manifest else kind + colon


def _download(name: str) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError as error:
        raise NotFoundError(
            f"no directory {Path(name).absolute()}; looking up '{name}' on the Hugging Face hub needs the package "
            "huggingface_hub: pip install huggingface_hub"
        ) from error
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_PATTERNS))
    except FastSpecError:
        raise
    except Exception as error:  # the hub's client raises its own, HTTP and operating system errors
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        reason = str(error).strip().split("\n")[0] or "no reason given"
        raise NotFoundError(
            f"model '{name}': tried the directory {Path(name).absolute()}, the hub cache {constants.HF_HUB_CACHE} and "
            f"{constants.ENDPOINT}/{name}{offline}: {type(error).__name__}: {reason}. On a machine without network: "
            "fetch the model elsewhere, copy its directory here and give its path"
        ) from error
