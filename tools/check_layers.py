"""Fails where an include points up, or where a header of torch, CUDA or Python is seen outside its folder.

    python tools/check_layers.py [ROOT]

The layers are those of the architecture: includes point down, or sideways within a folder. Prints one line for each
violation and ends with exit code 1 if there is any. Reads the text of the sources only; it does not compile.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Folder of cpp/ -> the folders (besides itself and the public headers) that it may include.
FOUNDATION = {"base", "step", "io", "text"}
VERBS = {"draft", "budget", "sparse", "verify"}
BELOW_VERBS = FOUNDATION | {"backend", "memory", "model"}
ALLOWED: dict[str, set[str]] = {
    "include": set(),
    "base": set(),
    "step": {"base"},
    "io": {"base"},
    "text": {"base", "io"},
    "backend": FOUNDATION,
    "memory": FOUNDATION | {"backend"},
    "model": FOUNDATION | {"backend", "memory"},
    "draft": BELOW_VERBS,
    "budget": BELOW_VERBS,
    "sparse": BELOW_VERBS,
    "verify": BELOW_VERBS,
    "engine": BELOW_VERBS | VERBS,
    "cli": set(),
}

# Header of a third party -> the path prefixes that may include it.
FOREIGN: list[tuple[str, re.Pattern[str], tuple[str, ...]]] = [
    ("torch", re.compile(r"(torch|ATen|c10|caffe2)/"), ("cpp/backend/torch/", "cpp/backend/cuda/", "tests/")),
    (
        "CUDA",
        re.compile(r"(cuda|cublas|cudnn|cupti|nccl|cub/|thrust/|cooperative_groups)"),
        ("cpp/backend/cuda/", "cuda/", "tests/cuda/"),
    ),
    ("Python", re.compile(r"(pybind11/|Python\.h)"), ("python/bindings/",)),
    ("CLI11", re.compile(r"CLI/"), ("cpp/cli/",)),
    ("PCRE2", re.compile(r"pcre2"), ("cpp/text/",)),
    ("GoogleTest", re.compile(r"g(test|mock)/"), ("tests/",)),
    ("JSON", re.compile(r"nlohmann/"), ("cpp/io/", "cpp/text/", "cpp/model/", "cpp/engine/", "cpp/cli/", "tests/")),
]

SOURCE_SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def sources(root: Path) -> Iterator[Path]:
    """Every C++ and CUDA source that the rules are about."""
    for top in ("cpp", "cuda", "python/bindings", "tests"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path


def includes(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line number, "<" or '"', included name) of each include of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def foreign_fault(name: str, bracket: str, where: str) -> str | None:
    """Why a file may not include this third-party header, or None."""
    if bracket != "<" and not name.startswith(("torch/", "ATen/", "c10/", "cuda")):
        return None
    for party, pattern, prefixes in FOREIGN:
        if pattern.match(name) and not where.startswith(prefixes):
            return f"<{name}>: headers of {party} may be included in {', '.join(prefixes)} only"
    return None


def layer_fault(root: Path, name: str, bracket: str, where: str) -> str | None:
    """Why an include of the project's own headers is against the layers, or None."""
    if name.startswith("fastspec/"):
        return None if (root / "cpp/include" / name).is_file() else f"{name}: no such public header"
    if bracket == "<":
        return None
    if where.startswith("tests/"):
        return None
    if where.startswith("python/bindings/"):
        return None if (root / "python/bindings" / name).is_file() else f'"{name}": bindings see <fastspec/...> only'
    if where.startswith("cuda/"):
        known = name in ("backend/params.h", "backend/noise.h") or (root / "cuda" / name).is_file()
        return None if known else f'"{name}": cuda/ sees backend/params.h, backend/noise.h and its own headers only'
    folder, target = where.split("/")[1], name.split("/")[0]
    if folder not in ALLOWED:
        return f"cpp/{folder}: not a folder of the architecture"
    if not (root / "cpp" / name).is_file():
        if folder == "backend" and where.startswith("cpp/backend/cuda/") and (root / "cuda" / name).is_file():
            return None
        return f'"{name}": no such file below cpp/ (includes are written from there)'
    if target != folder and target not in ALLOWED[folder]:
        seen = ", ".join(sorted(ALLOWED[folder])) or "no other folder"
        return f'"{name}": {folder}/ may include <fastspec/...> and {seen}; this points up or across'
    return None


def check(root: Path) -> list[str]:
    """One line for each violation below root."""
    faults = []
    for path in sources(root):
        where = path.relative_to(root).as_posix()
        for number, bracket, name in includes(path):
            fault = foreign_fault(name, bracket, where) or layer_fault(root, name, bracket, where)
            if fault:
                faults.append(f"{where}:{number}: {fault}")
    return faults


def main() -> int:
    """Command line: see the module's text."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    if not (root / "cpp").is_dir():
        print(f"check_layers: {root}: no folder cpp", file=sys.stderr)
        return 2
    faults = check(root)
    for fault in faults:
        print(fault)
    if not faults:
        print(f"layers: {sum(1 for _ in sources(root))} files, no include points up")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
