"""Fixtures of the market tests: real files where they are at hand, and small handmade bars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.market.bars import Bars

HEADER = "ts_event,open,high,low,close,volume,symbol"
MINUTE = 60_000_000_000


@pytest.fixture(scope="session")
def market() -> MarketConfig:
    """The default market section."""
    return Config().market


@pytest.fixture(scope="session")
def data_file() -> Callable[[str], Path]:
    """Path of a real data file, `shared/data` beside the repository; skips where it is not."""

    def find(name: str) -> Path:
        path = Path(__file__).parents[2].parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"real data file {name} is not available")
        return path

    return find


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a CSV of minute bars from rows of text, or from the good ones with some replaced."""

    def write(*rows: str, header: str = HEADER, name: str = "bars.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join((header, *rows)) + "\n")
        return path

    return write


def good_rows(n: int) -> list[str]:
    """`n` rows of ES minute bars without a fault, from 2024-01-02 15:00 UTC."""
    rows = []
    for i in range(n):
        price = 4800.0 + 0.25 * (i % 7)
        rows.append(
            f"2024-01-02T{15 + i // 60:02d}:{i % 60:02d}:00Z,{price},{price + 0.5},{price - 0.25},{price + 0.25},{10 + i},ESH4"
        )
    return rows


@pytest.fixture
def rows() -> list[str]:
    """Ten good rows."""
    return good_rows(10)


@pytest.fixture
def random_bars() -> Callable[..., Bars]:
    """Bars of a lognormal walk with several sessions and segments."""

    def make(n: int, seed: int = 0, sessions: int = 4, segments: int = 2) -> Bars:
        rng = np.random.Generator(np.random.PCG64(seed))
        close = 100.0 * np.exp(np.cumsum(rng.standard_normal(n) * 1e-3))
        opened = close * np.exp(rng.standard_normal(n) * 3e-4)
        high = np.maximum(opened, close) * np.exp(np.abs(rng.standard_normal(n)) * 2e-4)
        low = np.minimum(opened, close) * np.exp(-np.abs(rng.standard_normal(n)) * 2e-4)
        session = (np.arange(n) * sessions // n).astype(np.int32)
        segment = (np.arange(n) * segments // n).astype(np.int32)
        ts = np.int64(1_704_207_600_000_000_000) + np.arange(n) * MINUTE + session.astype(np.int64) * 8 * 60 * MINUTE
        volume = np.floor(rng.exponential(50.0, n))
        mark = np.zeros(n, np.uint16)
        return Bars(ts, opened, high, low, close, volume, session, segment, mark, "TEST", "1 minute", "random walk")

    return make
