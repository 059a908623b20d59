"""Front month, roll, sessions and segments: by hand, against zoneinfo, and on the real chain with its known holes."""

from __future__ import annotations

import dataclasses
import zoneinfo
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.market.bars import BarsError, load_bars
from foxhunt_rt.market.contract import PRESETS
from foxhunt_rt.market.read import read_table
from foxhunt_rt.market.sessions import CALENDARS, DAY, HOUR, cut_sessions, local_time, trading_date

Write = Callable[..., Path]
ES = "es_futures_1m_2013-10_2020-01_all-expiries.csv.gz"


def chosen(*assignments: str) -> MarketConfig:
    return Config().with_set(assignments).market


@pytest.mark.parametrize(
    ("calendar", "zone"),
    [("cme", "America/Chicago"), ("us-equity", "America/New_York"), ("fx", "America/New_York"), ("utc", "UTC")],
)
def test_local_time_agrees_with_the_zone_database(calendar: str, zone: str) -> None:
    try:
        tz = zoneinfo.ZoneInfo(zone)
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("no time-zone database is installed")
    start = int(np.datetime64("1990-01-01", "ns").astype(np.int64))
    ts = start + np.arange(0, 50 * 365 * 24 * HOUR, 1747 * 60_000_000_000)  # coprime steps hit all hours
    # Every half hour around the clock changes of some years.
    for year in (1995, 2006, 2007, 2013, 2024):
        for month in (3, 4, 10, 11):
            first = int(np.datetime64(f"{year}-{month:02d}-01", "ns").astype(np.int64))
            ts = np.append(ts, first + np.arange(0, 31 * DAY, HOUR // 2))
    import datetime

    want = np.array(
        [
            int(tz.utcoffset(datetime.datetime.fromtimestamp(t // 10**9, tz)).total_seconds()) * 10**9  # type: ignore[union-attr]
            for t in ts.tolist()
        ]
    )
    np.testing.assert_array_equal(local_time(ts, calendar) - ts, want)


def test_moscow_is_three_hours_ahead_in_the_years_of_the_data() -> None:
    ts = np.array([int(np.datetime64("2016-06-01T07:00", "ns").astype(np.int64))])
    assert local_time(ts, "moex")[0] - ts[0] == 3 * HOUR


def test_sunday_evening_belongs_to_monday() -> None:
    ts = np.array(["2013-10-06T22:00", "2013-10-07T21:59", "2013-10-07T22:00"], "datetime64[ns]").astype(np.int64)
    date = trading_date(ts, "cme").astype("datetime64[D]")
    assert [str(day) for day in date] == ["2013-10-07", "2013-10-07", "2013-10-08"]
    assert set(CALENDARS) == {"cme", "us-equity", "fx", "moex", "utc"}


def test_real_chain(data_file: Callable[[str], Path], market: MarketConfig) -> None:
    """Front month alone: 19,083 bars; ESZ3 to 2013-12-03, then ESH4, then ESH0 in 2020 (the data's README)."""
    bars, spec, report = load_bars(data_file(ES), market)
    assert len(bars) == 19_083
    assert bars.contracts == ("ESZ3", "ESH4", "ESH0")
    assert spec.symbol == "ES"
    assert report.faults == []
    assert any("-6.25" in note for note in bars.notes)  # ESH4 minus ESZ3: -6.75 to -5.75, mean -6.26 on the roll's day
    # Nothing of the missing days or of the roll is left inside a segment: no step over 1 %.
    step = np.abs(np.diff(np.log(bars.close)))
    inside = np.diff(bars.segment) == 0
    assert step[inside].max() < 0.01
    assert step[~inside].max() > 0.5  # the one into 2020
    # Prices stay on the tick.
    for price in (bars.open, bars.high, bars.low, bars.close):
        np.testing.assert_array_equal(price / 0.25, np.rint(price / 0.25))
    first_of = [
        str(np.datetime64(int(t), "ns"))[:10] for t in bars.ts[np.flatnonzero(np.diff(bars.segment, prepend=-1))]
    ]
    assert first_of == [
        "2013-10-06",
        "2013-10-29",
        "2013-11-18",
        "2013-12-02",
        "2013-12-18",
        "2013-12-20",
        "2020-01-05",
    ]
    assert (np.diff(bars.session)[np.diff(bars.segment) > 0] > 0).all()
    # The 15-minute halt stays inside a session; the daily break of 45 minutes or more ends one.
    pause = np.diff(bars.ts) // 60_000_000_000
    assert (np.diff(bars.session)[pause >= 45] == 1).all()
    assert (np.diff(bars.session)[pause < 45] == 0).all()


def test_unadjusted_chain_is_the_file(data_file: Callable[[str], Path]) -> None:
    raw, _, _ = load_bars(data_file(ES), chosen("market.adjust=none"))
    moved, _, _ = load_bars(data_file(ES), chosen("market.adjust=difference"))
    ratio, _, _ = load_bars(data_file(ES), chosen("market.adjust=ratio"))
    roll = int(np.searchsorted(raw.ts, int(np.datetime64("2013-12-18", "ns").astype(np.int64))))
    assert raw.close[0] == 1675.25  # first row of the file, ESZ3
    np.testing.assert_array_equal(moved.close[:roll], raw.close[:roll] - 6.25)
    np.testing.assert_array_equal(moved.close[roll:], raw.close[roll:])
    np.testing.assert_allclose(
        np.diff(np.log(ratio.close[:roll])), np.diff(np.log(raw.close[:roll])), rtol=0, atol=1e-12
    )
    assert ratio.close[0] == pytest.approx(raw.close[0] * (1 - 6.25 / 1790), abs=0.1)


def test_one_expiry_of_the_chain(data_file: Callable[[str], Path]) -> None:
    bars, _, _ = load_bars(data_file(ES), chosen("market.symbol=ESZ3"))
    assert len(bars) == 16_673
    with pytest.raises(BarsError, match="symbol 'NQ' is not in the file"):
        load_bars(data_file(ES), chosen("market.symbol=NQ"))


def chain_rows(days: list[tuple[str, int, int]], spread: bool = False) -> list[str]:
    """Three bars a date of a near (price 100) and a far (price 103) expiry with the given volumes."""
    rows = []
    for date, near, far in days:
        for minute in range(3):
            stamp = f"{date}T15:{minute:02d}:00Z"
            if near:
                rows.append(f"{stamp},100,100.5,99.5,{100 + minute / 4},{near},ESH4")
            if far:
                rows.append(f"{stamp},103,103.5,102.5,{103 + minute / 4},{far},ESM4")
            if spread:
                rows.append(f"{stamp},-3,-2.5,-3.5,-3,999,ESH4-ESM4")
    return rows


def test_roll_uses_yesterdays_volume_and_never_goes_back(csv_file: Write, market: MarketConfig) -> None:
    days = [
        ("2024-03-04", 90, 10),
        ("2024-03-05", 40, 60),  # the far one leads today: known tomorrow
        ("2024-03-06", 30, 70),  # rolled
        ("2024-03-07", 80, 20),  # the near one leads once more: left for good
        ("2024-03-08", 80, 20),
    ]
    bars, _, _ = load_bars(csv_file(*chain_rows(days)), market)
    assert bars.contracts == ("ESH4", "ESM4")
    assert bars.volume[::3].tolist() == [90, 40, 70, 20, 20]
    assert bars.segment[::3].tolist() == [0, 0, 1, 1, 1]
    assert bars.close[::3].tolist() == [103, 103, 103, 103, 103]  # +3 before the roll
    assert len(bars) == 15


def test_spreads_are_left_out(csv_file: Write, market: MarketConfig) -> None:
    rows = chain_rows([("2024-03-04", 90, 10)], spread=True)
    bars, _, _ = load_bars(csv_file(*rows), market)
    assert len(bars) == 3
    assert "3 rows of calendar spreads left out" in bars.notes
    with pytest.raises(BarsError, match="calendar spreads only"):
        load_bars(csv_file(*(row for row in rows if "-ESM4" in row), name="s.csv"), market)


def test_expired_contract_is_followed_by_the_one_that_trades(csv_file: Write, market: MarketConfig) -> None:
    bars, _, _ = load_bars(csv_file(*chain_rows([("2024-03-04", 90, 10), ("2024-03-05", 0, 10)])), market)
    assert bars.volume.tolist() == [90] * 3 + [10] * 3


def test_difference_below_zero_is_refused(csv_file: Write) -> None:
    rows = chain_rows([("2024-03-04", 90, 10), ("2024-03-05", 10, 90), ("2024-03-06", 10, 90)])
    rows = [row.replace(",103,103.5,102.5,103", ",3,3.5,2.5,3") for row in rows]
    rows = [row.replace(",100,100.5,99.5,100", ",97,97.5,0.5,97") if row.endswith("ESH4") else row for row in rows]
    with pytest.raises(BarsError, match="adjust=ratio"):
        load_bars(csv_file(*rows), chosen("market.adjust=difference"))
    assert len(load_bars(csv_file(*rows), chosen("market.adjust=ratio"))[0]) == 9


def test_two_unrelated_symbols(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    mixed = [*rows, *(row.replace("ESH4", "SPY") for row in rows)]
    with pytest.raises(BarsError, match=r"2 symbols in one file \(ESH4, SPY\); choose one"):
        load_bars(csv_file(*mixed), market)
    assert len(load_bars(csv_file(*mixed), chosen("market.symbol=SPY"))[0]) == 10


def test_file_without_symbols(csv_file: Write, rows: list[str], market: MarketConfig) -> None:
    header, bare = "ts_event,open,high,low,close,volume", [row.rsplit(",", 1)[0] for row in rows]
    path = csv_file(*bare, header=header)
    bars, spec, _ = load_bars(path, market)
    assert (bars.symbol, spec.multiplier) == ("", 1.0)
    assert any("no preset for symbol (none)" in note for note in bars.notes)
    assert load_bars(path, chosen("market.contract=ES"))[1] == PRESETS["ES"]
    with pytest.raises(BarsError, match=r"names no symbol; .* market\.contract"):
        load_bars(path, chosen("market.symbol=ES"))


def test_expiries_one_after_the_other_in_the_file(csv_file: Write, market: MarketConfig) -> None:
    """A file sorted by symbol, then time, is in order within each symbol: sound."""
    rows = chain_rows([("2024-03-04", 90, 10), ("2024-03-05", 40, 60), ("2024-03-06", 30, 70)])
    sorted_rows = sorted(rows, key=lambda row: row[-4:])
    a = load_bars(csv_file(*rows, name="a.csv"), market)[0]
    b = load_bars(csv_file(*sorted_rows, name="b.csv"), market)[0]
    np.testing.assert_array_equal(a.ts, b.ts)
    np.testing.assert_array_equal(a.close, b.close)


def test_weekend_is_no_hole_and_an_empty_thursday_is(csv_file: Write, market: MarketConfig) -> None:
    def one(date: str) -> list[str]:
        return [f"{date}T15:0{i}:00Z,100,101,99,100,5,ESH4" for i in range(2)]

    dates = ("2024-01-04", "2024-01-05", "2024-01-08", "2024-01-10")  # Thu Fri Mon Wed
    bars, _, _ = load_bars(csv_file(*(row for date in dates for row in one(date))), market)
    assert bars.segment[::2].tolist() == [0, 0, 0, 1]
    assert bars.session[::2].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(np.flatnonzero(bars.session_end), [1, 3, 5, 7])
    np.testing.assert_array_equal(np.flatnonzero(bars.segment_end), [5, 7])
    assert any("2024-01-08 to 2024-01-10" in note for note in bars.notes)


def test_a_segment_ends_its_session_even_without_a_pause(
    csv_file: Write, rows: list[str], market: MarketConfig
) -> None:
    """A roll in the middle of a session (no data set does that today) still forces positions flat."""
    raw = read_table(csv_file(*rows), timezone="")
    raw = dataclasses.replace(raw, segment=np.repeat([0, 1], 5).astype(np.int32))
    bars = cut_sessions(raw, PRESETS["ES"])
    assert bars.session.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_array_equal(np.flatnonzero(bars.session_end), [4, 9])
