"""DBN: the vendor's own fixtures of all versions, the real chain against its CSV, and every way a file can be short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import MarketConfig
from foxhunt_rt.market.bars import BarsError, load_bars
from foxhunt_rt.market.read import read_table

pa = pytest.importorskip("pyarrow")

Find = Callable[[str], Path]
ES = "es_futures_1m_2013-10_2020-01_all-expiries"


def plain(path: Path) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd") as stream:
        return bytes(stream.read())


def test_chain_equals_its_csv(data_file: Find, market: MarketConfig) -> None:
    a, b = (read_table(data_file(ES + ending), timezone="") for ending in (".dbn.zst", ".csv.gz"))
    assert len(a) == 23_948
    for name in ("ts", "open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert [a.symbols[i] for i in a.code] == [b.symbols[i] for i in b.code]
    assert a.clock == b.clock
    front, spec, _ = load_bars(data_file(ES + ".dbn.zst"), market)
    assert len(front) == 19_083
    assert front.contracts == ("ESZ3", "ESH4", "ESH0")
    assert spec.symbol == "ES"


#: file, bars, symbol, first open and volume, clock: from the data's README and the vendor's tests.
FIXTURES = [
    ("databento-python__GLBX.MDP3__ohlcv-1m.dbn.zst", 4, "ESH1", 3702.75, 306, "1 minute"),
    ("databento-python__GLBX.MDP3__ohlcv-1s.dbn.zst", 4, "ESH1", None, None, "1 second"),
    ("databento-python__GLBX.MDP3__ohlcv-1h.dbn.zst", 4, "ESH1", None, None, "1 hour"),
    ("databento-python__EQUS.MINI__ohlcv-1m.dbn.zst", 4, "QQQ", None, None, "1 minute"),
    ("databento-python__XNAS.ITCH__ohlcv-1m.dbn.zst", 4, "NVDA", None, None, "1 minute"),
    ("dbn__ohlcv-1m.dbn", 2, "ESH1", 372_025.0, None, "1 minute"),
    ("dbn__ohlcv-1m.v1.dbn.zst", 2, "ESH1", 372_025.0, None, "1 minute"),
    ("dbn__ohlcv-1m.v2.dbn.zst", 2, "ESH1", 372_025.0, None, "1 minute"),
    ("dbn__ohlcv-1m.v3.dbn.zst", 2, "ESH1", 372_025.0, None, "1 minute"),
]


@pytest.mark.parametrize(
    ("name", "count", "symbol", "first", "volume", "clock"), FIXTURES, ids=[f[0] for f in FIXTURES]
)
def test_fixtures(
    data_file: Find, name: str, count: int, symbol: str, first: float | None, volume: int | None, clock: str
) -> None:
    raw = read_table(data_file(f"dbn/{name}"), timezone="")
    assert len(raw) == count
    assert raw.symbols == (symbol,)
    assert raw.clock == clock
    assert (raw.high >= raw.low).all()
    if first is not None:
        assert raw.open[0] == first
    if volume is not None:
        assert (raw.high[0], raw.low[0], raw.close[0], raw.volume[0]) == (3704.75, 3702.50, 3704.75, volume)
        assert raw.ts[0] == int(np.datetime64("2020-12-28T00:00", "ns").astype(np.int64))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("databento-python__GLBX.MDP3__trades.dbn.zst", "its schema is not"),
        ("databento-python__GLBX.MDP3__definition.dbn.zst", "its schema is not"),
        ("databento-python__LIVE__live.dbn.zst", "its schema is not"),
        ("dbn__ohlcv-1d.v3.dbn.zst", "no bar"),
        ("dbn__ohlcv-1m.dbz", "legacy DBZ"),
    ],
)
def test_refused_fixtures(data_file: Find, market: MarketConfig, name: str, part: str) -> None:
    with pytest.raises(BarsError, match=f"{part}.*;"):
        load_bars(data_file(f"dbn/{name}"), market)


def test_bars_of_four_venues_are_duplicates(data_file: Find, market: MarketConfig) -> None:
    with pytest.raises(BarsError, match="rule duplicate, 3 rows in all"):
        load_bars(data_file("dbn/databento-python__OPRA.PILLAR__ohlcv-1m.dbn.zst"), market)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.9999])
def test_truncated_zstd(data_file: Find, market: MarketConfig, tmp_path: Path, keep: float) -> None:
    data = data_file(ES + ".dbn.zst").read_bytes()
    path = tmp_path / "cut.dbn.zst"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(BarsError, match=r"^cut\.dbn\.zst: the zstd stream is truncated; fetch"):
        load_bars(path, market)


@pytest.mark.parametrize("cut", [1, 55, 57])
def test_truncated_record(data_file: Find, market: MarketConfig, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.dbn"
    path.write_bytes(plain(data_file(ES + ".dbn.zst"))[:-cut])
    with pytest.raises(
        BarsError, match=rf"truncated: {56 - cut % 56} bytes are left after row {23_948 - 1 - cut // 56};"
    ):
        load_bars(path, market)


@pytest.mark.parametrize("keep", [4, 50, 107, 500])
def test_truncated_metadata(data_file: Find, market: MarketConfig, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.dbn"
    path.write_bytes(plain(data_file(ES + ".dbn.zst"))[:keep])
    with pytest.raises(BarsError, match=r"cut\.dbn: is (truncated inside its metadata|not DBN)"):
        load_bars(path, market)


def test_cut_between_records_is_noted(data_file: Find, tmp_path: Path) -> None:
    path = tmp_path / "cut.dbn"
    path.write_bytes(plain(data_file(ES + ".dbn.zst"))[: -56 * 2000])
    assert any("before the end of the request" in note for note in read_table(path, timezone="").notes)
    assert read_table(data_file(ES + ".dbn.zst"), timezone="").notes == ()


def test_undefined_price(data_file: Find, market: MarketConfig, tmp_path: Path) -> None:
    data = bytearray(plain(data_file(ES + ".dbn.zst")))
    data[-16:-8] = (2**63 - 1).to_bytes(8, "little")  # close of the last record
    path = tmp_path / "bad.dbn"
    path.write_bytes(data)
    with pytest.raises(BarsError, match="row 23948 .*rule not_a_number"):
        load_bars(path, market)


def test_mixed_records(data_file: Find, market: MarketConfig, tmp_path: Path) -> None:
    data = bytearray(plain(data_file(ES + ".dbn.zst")))
    data[-55] = 32  # one record of seconds
    path = tmp_path / "mixed.dbn"
    path.write_bytes(data)
    with pytest.raises(BarsError, match="row 23948: record type 32"):
        load_bars(path, market)
