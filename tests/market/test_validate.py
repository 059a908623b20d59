"""Validation: each rule finds its rows, the policies do what they say, and real files give the counts measured by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import Config, MarketConfig
from foxhunt_rt.market.bars import BarsError, load_bars
from foxhunt_rt.market.validate import RULES

Write = Callable[..., Path]

FAULTS = {
    # rule -> how row 5 (line 7 of the file) is broken
    "non_positive": lambda cells: [cells[0], cells[1], cells[2], "-0.25", *cells[4:]],
    "crossed": lambda cells: [cells[0], cells[1], cells[3], cells[2], *cells[4:]],
    "not_a_number": lambda cells: [*cells[:4], "nan", *cells[5:]],
    "negative_volume": lambda cells: [*cells[:5], "-4", cells[6]],
    "order": lambda cells: ["2024-01-02T14:00:00Z", *cells[1:]],
    "duplicate": lambda cells: ["2024-01-02T15:04:00Z", *cells[1:]],
}


def with_policy(policy: str, *more: str) -> MarketConfig:
    return Config().with_set([f"market.policy={policy}", *more]).market


@pytest.fixture
def broken(csv_file: Write, rows: list[str]) -> Callable[[str], Path]:
    def write(rule: str) -> Path:
        rows[5] = ",".join(FAULTS[rule](rows[5].split(",")))
        return csv_file(*rows)

    return write


@pytest.mark.parametrize("rule", FAULTS)
def test_raise_names_row_rule_and_mend(broken: Callable[[str], Path], rule: str) -> None:
    with pytest.raises(BarsError, match=rf"bars\.csv: row 7 \(2024-01-02T1[45]:\d\d:00.000Z\): .*rule {rule}.*; mend"):
        load_bars(broken(rule), with_policy("raise"))


@pytest.mark.parametrize("rule", FAULTS)
def test_drop_removes_and_counts(broken: Callable[[str], Path], rule: str) -> None:
    bars, _, report = load_bars(broken(rule), with_policy("drop"))
    assert len(bars) == 9
    assert report.dropped == 1
    assert report.problems[rule].count == 1
    assert report.problems[rule].rows == (7,)
    assert any("1 faulty rows dropped" in note for note in bars.notes)
    assert (bars.low > 0).all()


def test_mark_keeps_doubts(csv_file: Write) -> None:
    rows = long_rows(100)
    cells = rows[50].split(",")
    rows[50] = f"{cells[0]},{cells[1]},{float(cells[2]) * 1.05},{cells[3]},{float(cells[4]) * 1.05},60,ESH4"
    bars, _, report = load_bars(csv_file(*rows), with_policy("mark", "market.strict=true"))
    assert len(bars) == 100
    np.testing.assert_array_equal(np.flatnonzero(bars.mark), [50])
    assert bars.mark[50] == RULES["spike"][0]
    assert report.problems["spike"].count == 1
    assert any("1 bars are marked (spike) and kept" in note for note in bars.notes)


@pytest.mark.parametrize("rule", ["crossed", "not_a_number", "order", "duplicate", "non_positive", "negative_volume"])
def test_mark_refuses_the_rest(broken: Callable[[str], Path], rule: str) -> None:
    with pytest.raises(BarsError, match=f"rule {rule}.*drop it"):
        load_bars(broken(rule), with_policy("mark"))


def test_nothing_left(csv_file: Write, rows: list[str]) -> None:
    dead = [row.replace(",48", ",-48") for row in rows]
    with pytest.raises(BarsError, match="no row is left"):
        load_bars(csv_file(*dead), with_policy("drop"))


def test_rows_count_on_the_first_row(csv_file: Write, rows: list[str]) -> None:
    """A file whose first row is the bad one: no neighbour to lean on."""
    rows[0] = ",".join(FAULTS["crossed"](rows[0].split(",")))
    with pytest.raises(BarsError, match="row 2 "):
        load_bars(csv_file(*rows), with_policy("raise"))


def long_rows(n: int) -> list[str]:
    rng = np.random.Generator(np.random.PCG64(3))
    ticks = 19200 + np.cumsum(rng.integers(-2, 3, n))
    out = []
    for i, tick in enumerate(ticks):
        c = tick * 0.25
        out.append(f"2024-01-02T{i // 60:02d}:{i % 60:02d}:00Z,{c},{c + 0.5},{c - 0.5},{c},{50 + i % 3},ESH4")
    return out


def test_spike_is_a_doubt(csv_file: Write) -> None:
    rows = long_rows(200)
    cells = rows[100].split(",")
    rows[100] = f"{cells[0]},{cells[1]},{float(cells[2]) * 1.05},{cells[3]},{float(cells[4]) * 1.05},60,ESH4"
    path = csv_file(*rows)
    bars, _, report = load_bars(path, with_policy("raise"))
    assert len(bars) == 200
    assert report.problems["spike"].rows == (102,)
    assert report.problems["spike"].severity == "doubt"
    with pytest.raises(BarsError, match="rule spike"):
        load_bars(path, with_policy("raise", "market.strict=true"))


def test_stuck_is_a_doubt(csv_file: Write) -> None:
    rows = long_rows(200)
    tail = rows[50].split(",", 1)[1]
    for i in range(50, 120):
        rows[i] = rows[i].split(",", 1)[0] + "," + tail
    _, _, report = load_bars(csv_file(*rows), with_policy("raise"))
    assert report.problems["stuck"].count == 69  # the first of the run is sound
    assert report.problems["stuck"].rows[0] == 53


def test_filler_rule_by_hand(csv_file: Write) -> None:
    """Three minutes without a trade hold the price of the next trade; two others repeat the last one and are honest."""
    rows = long_rows(30)

    def fill(i: int, like: int) -> None:
        c = rows[like].split(",")[4]
        rows[i] = f"{rows[i].split(',')[0]},{c},{c},{c},{c},0,ESH4"

    ticks = [float(row.split(",")[4]) for row in rows]
    moves = [i for i in range(1, 29) if ticks[i - 1] != ticks[i + 1]]
    leaks, honest = moves[0:9:3][:3], moves[12:18:3]
    for i in leaks:
        fill(i, i + 1)
    for i in honest:
        fill(i, i - 1)
    with pytest.raises(BarsError, match="lookahead_filler"):
        load_bars(csv_file(*rows), with_policy("raise"))
    rows_honest = long_rows(30)
    for i in honest:
        c = rows_honest[i - 1].split(",")[4]
        rows_honest[i] = f"{rows_honest[i].split(',')[0]},{c},{c},{c},{c},0,ESH4"
    _, _, report = load_bars(csv_file(*rows_honest, name="honest.csv"), with_policy("raise"))
    assert "lookahead_filler" not in report.problems
    assert report.problems["zero_volume"].count == len(honest)


def test_filler_of_the_real_file(data_file: Callable[[str], Path]) -> None:
    path = data_file("yndx_moex_stock_1m_2015_RAW-lookahead-filler.csv.gz")
    with pytest.raises(BarsError, match=r"rule lookahead_filler, 71627 rows in all\); .*market.policy=drop"):
        load_bars(path, with_policy("raise"))
    bars, _, report = load_bars(path, with_policy("drop"))
    assert (len(bars), report.dropped) == (58_939, 71_627)
    clean, _, _ = load_bars(data_file("yndx_moex_stock_1m_2015-2016_traded-bars.parquet"), with_policy("raise"))
    np.testing.assert_array_equal(bars.ts, clean.ts[:58_939])
    np.testing.assert_array_equal(bars.close, clean.close[:58_939])
    marked, _, _ = load_bars(path, with_policy("mark"))
    assert len(marked) == 130_566
    assert int((marked.mark != 0).sum()) == 71_627


#: file, bars, sessions, zero-volume bars, gaps inside sessions: from the data's README, where it counts them.
REAL = [
    ("yndx_moex_stock_1m_2016_traded-bars.csv.gz", 60_429, 252, 0, None),
    ("yndx_moex_stock_1m_2015-2016_traded-bars.parquet", 119_368, 502, 0, 37_379 + 9_006 + 94),
    ("spy_etf_1m_2011-01.csv.gz", 14_180, 20, 0, 1_310 + 106),
    ("spy_etf_1m_2011-03.csv.gz", 17_577, 23, 0, 1_305 + 87),
    ("copyleft-lgpl3/6e_euro-fx_future_6EH4_1m_2024-01.csv.gz", 29_996, 18 + 4 + 1, 0, 353),
    ("copyleft-lgpl3/eurusd_spot-bid_1m_2017-01_2017-06.parquet", 186_348, None, 186_348, 281),
]


@pytest.mark.parametrize(("name", "count", "sessions", "zero", "gaps"), REAL, ids=[row[0][:12] for row in REAL])
def test_real_files_are_sound(
    data_file: Callable[[str], Path],
    market: MarketConfig,
    name: str,
    count: int,
    sessions: int | None,
    zero: int,
    gaps: int | None,
) -> None:
    bars, _, report = load_bars(data_file(name), market)
    assert len(bars) == count
    assert report.faults == []
    assert "spike" not in report.problems
    assert "stuck" not in report.problems
    assert not bars.mark.any()
    assert (np.diff(bars.ts) > 0).all()
    assert bars.clock == "1 minute"
    if sessions is not None:
        assert bars.session[-1] + 1 == sessions
    assert (report.problems["zero_volume"].count if "zero_volume" in report.problems else 0) == zero
    if gaps is not None:
        assert report.problems["gap"].count == gaps
