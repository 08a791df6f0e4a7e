"""What a process holds: memory, threads, files, device memory; and whether that stays flat."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Reading:
    """Taken while nothing runs."""

    seconds: float
    resident_mib: float
    device_mib: float  # of this process where the driver tells, else of the device; 0 on the CPU
    threads: int
    files: int


def take_reading(seconds: float, device: str) -> Reading:
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Reading(
        seconds,
        int(resident.split()[1]) / 1024,
        device_mib(device),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


def device_mib(device: str) -> float:
    """Device memory that this process holds, or all that is used where the driver does not say by process."""
    if not device.startswith("cuda"):
        return 0.0
    index = device.partition(":")[2] or "0"
    own = _ask(index, "--query-compute-apps=pid,used_memory")
    for pid, used in own:
        if pid == str(os.getpid()) and used.isdigit():
            return float(used)
    return float(_ask(index, "--query-gpu=memory.used")[0][0])


def _ask(index: str, query: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--id={index}", query, "--format=csv,noheader,nounits"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout
    return [[cell.strip() for cell in line.split(",")] for line in printed.splitlines() if line.strip()]


@dataclass(frozen=True)
class Limits:
    """What may be added between the first and the last quarter of the readings after warm-up (medians)."""

    resident_mib: float = 12.0
    device_mib: float = 8.0
    threads: int = 0
    files: int = 0


def growth(readings: list[Reading]) -> dict[str, float]:
    """Median of the last quarter minus median of the first, by name."""
    quarter = max(1, len(readings) // 4)
    return {
        name: median(getattr(reading, name) for reading in readings[-quarter:])
        - median(getattr(reading, name) for reading in readings[:quarter])
        for name in ("resident_mib", "device_mib", "threads", "files")
    }


def judge(readings: list[Reading], warm_up_seconds: float, limits: Limits) -> tuple[str, list[str]]:
    """A line for people, and what grew beyond its limit. Nothing is judged with fewer than four readings."""
    warm = [reading for reading in readings if reading.seconds >= warm_up_seconds]
    if len(warm) < 4:
        return f"{len(warm)} idle readings after {warm_up_seconds:.0f} s of warm-up: growth is not judged", []
    grown = growth(warm)
    line = f"growth over {warm[-1].seconds - warm[0].seconds:.0f} s after {warm_up_seconds:.0f} s of warm-up:"
    failures = []
    for name, value in grown.items():
        limit = getattr(limits, name)
        line += f" {name} {value:+.1f} (limit {limit:g}),"
        if value > limit:
            failures.append(f"{name} grew by {value:.1f}, limit {limit:g}")
    return line.rstrip(","), failures
