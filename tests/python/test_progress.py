"""The bar of loading: after a second, where it is wanted, and right for several models one after another."""

import pytest

from fastspec import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_short_load_shows_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.LoadProgress(shown=True) as bar:
        clock[0] += 0.9
        bar.update(50, 100)
    assert capsys.readouterr().err == ""


def test_a_long_load_shows_bytes_of_one_model_after_the_other(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.LoadProgress(shown=True) as bar:
        clock[0] += 1.5
        bar.update(500, 1000)
        assert (bar._bar.n, bar._bar.total) == (500, 1000)
        bar.update(1000, 1000)
        bar.update(10, 40)
        assert (bar._bar.n, bar._bar.total) == (10, 40)
    assert "loading" in capsys.readouterr().err


def test_an_unwanted_bar_stays_away(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.LoadProgress(shown=False) as bar:
        clock[0] += 9
        bar.update(1, 2)
    assert capsys.readouterr().err == ""
