"""The soak, short: tests/soak/soak.py has the checks and the long form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GPU

SOAK = Path(__file__).resolve().parents[1] / "soak" / "soak.py"
sys.path.insert(0, str(SOAK.parent))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_short_soak(device: str) -> None:
    command = [sys.executable, str(SOAK), "--minutes", str(20 / 60), "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_growth_beyond_a_limit_is_seen() -> None:
    from watch import Limits, Reading, judge

    flat = [Reading(float(second), 300.0 + second % 3, 100.0, 18, 7) for second in range(0, 200, 10)]
    assert judge(flat, 20, Limits())[1] == []
    leaking = [Reading(r.seconds, r.resident_mib + 0.1 * r.seconds, r.device_mib, r.threads, r.files) for r in flat]
    assert "resident_mib" in judge(leaking, 20, Limits())[1][0]
    handles = [
        Reading(r.seconds, r.resident_mib, r.device_mib, r.threads, r.files + int(r.seconds > 150)) for r in flat
    ]
    assert "files" in judge(handles, 20, Limits())[1][0]


def test_what_a_filter_could_decide_otherwise_is_a_near_tie() -> None:
    from recompute import is_at_cutoff

    from fastspec import SamplingParams

    logprobs = {0: -0.5, 1: -1.5, 2: -1.6, 3: -4.0}
    top_k = SamplingParams(top_k=2)
    assert is_at_cutoff(logprobs, top_k, 1, 0.2)
    assert is_at_cutoff(logprobs, top_k, 2, 0.2)
    assert not is_at_cutoff(logprobs, top_k, 1, 0.05)
    assert not is_at_cutoff(logprobs, top_k, 0, 0.2)
    assert is_at_cutoff(logprobs, SamplingParams(min_p=0.035), 3, 0.3)
    assert not is_at_cutoff(logprobs, SamplingParams(min_p=0.035), 3, 0.1)
    assert is_at_cutoff(logprobs, SamplingParams(top_p=0.82), 2, 0.05)
    assert not is_at_cutoff(logprobs, SamplingParams(top_p=0.7), 2, 0.05)
    assert not is_at_cutoff(logprobs, SamplingParams(temperature=0.0), 1, 0.2)
