"""The PEP 517 build backend: scikit-build-core, with an early and plain answer where a build cannot work.

Also its metadata provider: a wheel depends on exactly the torch release that its library was linked to, because
libtorch keeps no binary interface between releases. Must not import torch or anything outside the standard library and
scikit-build-core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

DEFAULT_TORCH = "2.13.0"  # brought in where the environment has no torch yet; tools/bootstrap.sh names the same

try:
    from scikit_build_core.build import (
        build_editable,
        build_sdist,
        build_wheel,
        get_requires_for_build_sdist,
        prepare_metadata_for_build_editable,
        prepare_metadata_for_build_wheel,
    )
    from scikit_build_core.build import get_requires_for_build_wheel as _requires_for_wheel
except ImportError:
    raise SystemExit(
        "fastspec: --no-build-isolation needs the build tools in this environment: "
        f"{sys.executable} -m pip install scikit-build-core pybind11 cmake ninja torch"
    ) from None

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "dynamic_metadata",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def _torch_version(*flags: str) -> str | None:
    """Version of the torch that this interpreter, started with the flags, would import."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "locate_torch.py")
    done = subprocess.run([sys.executable, *flags, script], capture_output=True, text=True, check=False)
    return done.stdout.split(";")[0].strip() or None


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Requirements of a build: torch only where the environment to install into has none (-I looks into that one)."""
    requires = list(_requires_for_wheel(config_settings))
    if _torch_version("-I") is None:
        requires.append(f"torch=={os.environ.get('FASTSPEC_TORCH', DEFAULT_TORCH)}")
    return requires


get_requires_for_build_editable = get_requires_for_build_wheel


def dynamic_metadata(field: str, settings: Mapping[str, Any] | None = None, *_: Any) -> list[str]:
    """The wheel's dependencies; `field` is always "dependencies"."""
    if field != "dependencies" or settings:
        raise ValueError(f"pyproject.toml: build_backend provides dependencies without settings, not {field!r}")
    version = _torch_version("-I") or _torch_version()
    if version is None:
        raise SystemExit(f"fastspec: torch is missing in {sys.executable}: pip install torch=={DEFAULT_TORCH}")
    return [f"torch=={version}", "tqdm>=4.60"]
