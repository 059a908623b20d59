"""Reading bar files: every kind of broken file gives one line that names file, place, rule and mend; nothing is written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.market.bars import BarsError, load_bars

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

Write = Callable[..., Path]


def refused(path: Path, market: MarketConfig, *parts: str) -> str:
    """The error of loading `path`: one line with the file's name, the given parts and a mend after a semicolon."""
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    content = path.read_bytes() if path.is_file() else b""
    with pytest.raises(BarsError) as info:
        load_bars(path, market)
    text = str(info.value)
    assert "\n" not in text
    assert path.name in text
    assert ";" in text
    for part in parts:
        assert part in text
    assert (sorted(path.parent.iterdir()) if path.parent.is_dir() else []) == before
    assert (path.read_bytes() if path.is_file() else b"") == content
    return text


def table(n: int = 20, **columns: object) -> pa.Table:
    """A good Parquet table, with columns replaced."""
    ts = 1_704_207_600_000_000_000 + np.arange(n) * 60_000_000_000
    price = 100.0 + np.arange(n) * 0.25
    values: dict[str, object] = {
        "ts_event": pa.array(ts).cast(pa.timestamp("ns", tz="UTC")),
        "open": price,
        "high": price + 0.5,
        "low": price - 0.5,
        "close": price,
        "volume": np.arange(n) + 1,
        "symbol": ["ESH4"] * n,
    }
    values.update(columns)
    return pa.table({key: value for key, value in values.items() if value is not None})


def test_good_csv(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    bars, spec, report = load_bars(csv_file(*rows), market)
    assert len(bars) == 10
    assert bars.clock == "1 minute"
    assert bars.symbol == "ESH4"
    assert spec.symbol == "ES"
    assert bars.ts[0] == 1_704_207_600_000_000_000  # 2024-01-02 15:00 UTC, by date -u -d
    assert bars.open[1] == 4800.25
    assert bars.volume[3] == 13
    assert report.faults == []
    for name in ("open", "high", "low", "close", "volume"):
        assert getattr(bars, name).dtype == np.float64


@pytest.mark.parametrize(
    "header",
    [
        "Timestamp,Open,High,Low,Close,Volume,Ticker",
        "<DATETIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<TICKER>",
        "time,o,h,l,c,v,contract",
    ],
)
def test_column_aliases(csv_file: Write, rows: list[str], market: MarketConfig, header: str) -> None:
    wanted, _, _ = load_bars(csv_file(*rows, name="a.csv"), market)
    bars, _, _ = load_bars(csv_file(*rows, header=header, name="b.csv"), market)
    for name in ("ts", "open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(bars, name), getattr(wanted, name))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_delimiters(csv_file: Write, rows: list[str], market: MarketConfig, delimiter: str) -> None:
    text = [row.replace(",", delimiter) for row in rows]
    header = "ts_event,open,high,low,close,volume,symbol".replace(",", delimiter)
    assert len(load_bars(csv_file(*text, header=header), market)[0]) == 10


def test_csv_gzip_and_parquet_agree(csv_file: Write, rows: list[str], market: MarketConfig, tmp_path: Path) -> None:
    plain = csv_file(*rows)
    packed = tmp_path / "bars.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    a, b = load_bars(plain, market)[0], load_bars(packed, market)[0]
    stored = tmp_path / "bars.parquet"
    parquet.write_table(
        pa.table(
            {"ts_event": pa.array(a.ts).cast(pa.timestamp("ns", tz="UTC")), "open": a.open, "high": a.high}
            | {"low": a.low, "close": a.close, "volume": a.volume, "symbol": [a.symbol] * len(a)}
        ),
        stored,
    )
    c = load_bars(stored, market)[0]
    for name in ("ts", "open", "high", "low", "close", "volume", "session", "segment"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(getattr(a, name), getattr(c, name))


def test_missing(tmp_path: Path, market: MarketConfig) -> None:
    refused(tmp_path / "none.csv", market, "no such file", "check the path")


def test_folder(tmp_path: Path, market: MarketConfig) -> None:
    refused(tmp_path, market, "is a folder")


@pytest.mark.parametrize("name", ["bars.csv", "bars.csv.gz", "bars.parquet"])
def test_empty(tmp_path: Path, market: MarketConfig, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    refused(path, market, "empty")


def test_header_only(csv_file: Write, market: MarketConfig) -> None:
    refused(csv_file(), market, "no rows")


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.99])
def test_truncated_gzip(csv_file: Write, rows: list[str], market: MarketConfig, tmp_path: Path, keep: float) -> None:
    data = gzip.compress(csv_file(*rows).read_bytes())
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(data[: int(len(data) * keep)])
    refused(path, market, "truncated", "fetch the file again")


def test_damaged_gzip(csv_file: Write, rows: list[str], market: MarketConfig, tmp_path: Path) -> None:
    data = bytearray(gzip.compress(csv_file(*rows).read_bytes()))
    data[-6] ^= 0xFF  # the checksum
    path = tmp_path / "bad.csv.gz"
    path.write_bytes(data)
    refused(path, market, "damaged")


def test_not_gzip(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    refused(csv_file(*rows, name="bars.csv.gz"), market, "not a gzip file")


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.98])
def test_truncated_parquet(tmp_path: Path, market: MarketConfig, keep: float) -> None:
    path = tmp_path / "bars.parquet"
    parquet.write_table(table(), path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    refused(path, market, "truncated")


def test_damaged_parquet(tmp_path: Path, market: MarketConfig) -> None:
    path = tmp_path / "bars.parquet"
    parquet.write_table(table(), path)
    data = bytearray(path.read_bytes())
    data[4:40] = bytes(36)  # the header of the first page
    path.write_bytes(data)
    refused(path, market, "damaged Parquet")


def test_truncated_csv_line(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    rows[-1] = rows[-1][:35]
    refused(csv_file(*rows), market, "row 11", "Expected 7 columns")


def test_blank_line(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    rows.insert(4, "")
    refused(csv_file(*rows), market, "row 6")


def test_text_in_a_price(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    rows[6] = rows[6].replace("4801.5", "n/k")
    refused(csv_file(*rows), market, "row 8", "n/k")


@pytest.mark.parametrize("column", ["open", "close", "volume", "ts_event"])
def test_missing_column(csv_file: Write, rows: list[str], market: MarketConfig, column: str) -> None:
    header = "ts_event,open,high,low,close,volume,symbol".replace(column, "x")
    refused(csv_file(*rows, header=header), market, f"no column {column}", "rename")


def test_price_column_of_text(tmp_path: Path, market: MarketConfig) -> None:
    path = tmp_path / "bars.parquet"
    parquet.write_table(table(close=["1.0"] * 20), path)
    refused(path, market, "column close has type string", "float64")


def test_fixed_point_prices(tmp_path: Path, market: MarketConfig) -> None:
    price = (np.arange(20) + 4800) * 10**9
    path = tmp_path / "bars.parquet"
    parquet.write_table(table(open=price, high=price, low=price, close=price), path)
    refused(path, market, "fixed point")


def test_naive_time_is_refused_and_named_zone_taken(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    naive = csv_file(*(row.replace("Z,", ",") for row in rows), name="naive.csv")
    refused(naive, market, "no time zone", "market.timezone")
    utc, _, _ = load_bars(naive, Config().with_set(["market.timezone=UTC"]).market)
    assert utc.ts[0] == 1_704_207_600_000_000_000
    chicago, _, _ = load_bars(naive, Config().with_set(["market.timezone=America/Chicago"]).market)
    assert chicago.ts[0] - utc.ts[0] == 6 * 3_600_000_000_000
    assert any("America/Chicago" in note for note in chicago.notes)


def test_offset_times(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    wanted, _, _ = load_bars(csv_file(*rows, name="a.csv"), market)
    shifted = [row.replace("T15:", "T18:").replace("Z,", "+03:00,") for row in rows]
    bars, _, _ = load_bars(csv_file(*shifted, name="b.csv"), market)
    np.testing.assert_array_equal(bars.ts, wanted.ts)


def test_unreadable_time(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    rows[2] = rows[2].replace("2024-01-02", "2024-13-02")
    refused(csv_file(*rows), market, "row 4", "2024-13-02")


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)])
def test_epoch_integers(csv_file: Write, rows: list[str], market: MarketConfig, unit: str, scale: int) -> None:
    wanted, _, _ = load_bars(csv_file(*rows, name="a.csv"), market)
    text = [f"{ts // scale}," + row.split(",", 1)[1] for ts, row in zip(wanted.ts, rows)]
    bars, _, _ = load_bars(csv_file(*text, name="b.csv"), market)
    np.testing.assert_array_equal(bars.ts, wanted.ts)
    assert any(f"taken as {unit} since" in note for note in bars.notes)


def test_date_and_time_columns(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    text = [row.replace("T", ",", 1).replace("Z", "") for row in rows]
    refused(csv_file(*text, header="date,time,open,high,low,close,volume,symbol"), market, "two columns", "join")


def test_byte_order_mark(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    path = csv_file(*rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load_bars(path, market)[0]) == 10


def test_windows_line_ends(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    path = csv_file(*rows)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(load_bars(path, market)[0]) == 10


def test_unknown_ending(tmp_path: Path, market: MarketConfig) -> None:
    path = tmp_path / "bars.xls"
    path.write_bytes(b"something")
    refused(path, market, "format")


def test_one_bar(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    refused(csv_file(rows[0]), market, "1 bar")
