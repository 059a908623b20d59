"""Metrics against an independent library's numbers and closed forms; baselines by hand; nothing made up where undefined."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.market.bars import Bars, load_bars
from foxhunt_rt.market.baselines import BASELINES, RESULT, backtest, baseline
from foxhunt_rt.market.contract import PRESETS, ContractSpec
from foxhunt_rt.market.metrics import (
    _deflated,
    daily_returns,
    deflated_sharpe,
    drawdown,
    sharpe_ratio,
    sortino_ratio,
    summarize,
)

DAY = 86_400_000_000_000
MONDAY = 19_723 * DAY  # 2024-01-01
FREE = ContractSpec("TEST", 1.0, 1.0, 0.0, 0.0, 0.0, 180, 3, "utc")
COSTLY = ContractSpec("TEST", 0.5, 10.0, 1.0, 1.0, 0.5, 180, 3, "utc")
CONFIG = Config().with_set(["market.slippage_range=0", "market.position_limit=2"]).market

# empyrical-reloaded 0.7.1 on these daily returns: sharpe_ratio, sortino_ratio, max_drawdown, calmar_ratio.
RETURNS = np.array([0.012, -0.004, 0.0, 0.0075, -0.0131, 0.0022, 0.0059, -0.0008, 0.0, -0.0217, 0.0164, 0.0031])
EMPYRICAL = {"sharpe": 0.9608198607514677, "sortino": 1.3386963427791767, "drawdown": 0.02746142920683395,
             "calmar": 5.68605843283481}  # fmt: skip


def record(net: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    results = np.zeros(len(net), RESULT)
    results["net"] = net
    for name, values in columns.items():
        results[name] = values
    return results


def weekdays(count: int) -> np.ndarray:
    return np.array([MONDAY + (i // 5 * 7 + i % 5) * DAY for i in range(count)])


def test_against_an_independent_library() -> None:
    equity = 1000.0 * np.cumprod(1 + RETURNS)
    net = np.diff(equity, prepend=1000.0)
    result = summarize(record(net), weekdays(12), FREE, capital=1000.0, clock="1 day")
    assert result.sharpe == pytest.approx(EMPYRICAL["sharpe"], rel=1e-9)
    assert result.sortino == pytest.approx(EMPYRICAL["sortino"], rel=1e-9)
    assert result.max_drawdown_share == pytest.approx(EMPYRICAL["drawdown"], rel=1e-9)
    assert result.calmar == pytest.approx(EMPYRICAL["calmar"], rel=1e-9)
    assert result.net_pnl == pytest.approx(equity[-1] - 1000.0)
    assert result.days_per_year == 252
    assert result.clock == "daily returns of 12 trading dates, 252 a year; bars of 1 day"


def test_sharpe_does_not_depend_on_the_bar() -> None:
    """The same days cut into 1, 7 or 390 bars."""
    equity = 1000.0 * np.cumprod(1 + RETURNS)
    day = np.diff(equity, prepend=1000.0)
    for pieces in (1, 7, 390):
        net = np.repeat(day / pieces, pieces)
        ts = np.repeat(weekdays(12), pieces) + np.tile(np.arange(pieces), 12) * 60_000_000_000
        result = summarize(record(net), ts, FREE, capital=1000.0, clock="x")
        assert result.sharpe == pytest.approx(EMPYRICAL["sharpe"], rel=1e-9)
        assert result.sortino == pytest.approx(EMPYRICAL["sortino"], rel=1e-9)


def test_closed_forms() -> None:
    # Two returns a, b: Sharpe = sqrt(A) (a + b) / (|a - b| sqrt(2)).
    a, b = 0.03, -0.01
    assert sharpe_ratio(np.array([a, b]), 252) == pytest.approx(math.sqrt(252) * (a + b) / (abs(a - b) * math.sqrt(2)))
    # One loss among n: Sortino = sqrt(A) mean / (|loss| / sqrt(n)).
    r = np.array([0.01, 0.01, 0.01, -0.02])
    assert sortino_ratio(r, 252) == pytest.approx(math.sqrt(252) * 0.0025 / 0.01)
    assert drawdown(np.array([10.0, -4.0, -2.0, 20.0, -5.0]), 100.0) == (6.0, 6.0 / 110.0)
    assert drawdown(np.array([-5.0, 10.0]), 100.0) == (5.0, 0.05)  # the start is a peak
    dates = np.array([3, 3, 5, 5, 5])
    np.testing.assert_allclose(daily_returns(np.array([1.0, 1.0, 2.0, -1.0, 0.0]), dates, 100.0), [0.02, 1.0 / 102.0])


def test_undefined_is_none_with_its_reason() -> None:
    result = summarize(
        record(np.array([1.0, -2.0])), np.array([MONDAY, MONDAY + 60]), FREE, capital=10.0, clock="8 trades"
    )
    assert (result.sharpe, result.sortino, result.calmar) == (None, None, None)
    assert result.reasons["sharpe"] == "1 trading date; daily returns need at least 2"
    assert result.reasons["hit_rate"] == "no trade"
    flat = summarize(record(np.zeros(3)), weekdays(3), FREE, capital=10.0, clock="1 day")
    assert flat.sharpe is None
    assert flat.reasons == {
        "sharpe": "the daily returns do not vary",
        "sortino": "no daily return is negative",
        "calmar": "no drawdown",
        "hit_rate": "no trade",
        "average_trade": "no trade",
    }
    broke = summarize(record(np.array([-20.0, 1.0, 1.0])), weekdays(3), FREE, capital=10.0, clock="1 day")
    assert broke.sharpe is None
    assert "equity" in broke.reasons["sharpe"]
    json.dumps(flat.to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match="at least one bar"):
        summarize(record(np.zeros(0)), np.zeros(0, np.int64), FREE, capital=1.0, clock="x")


def test_weekend_market_has_365_days() -> None:
    ts = MONDAY + np.arange(14) * DAY
    result = summarize(record(np.tile([1.0, -0.5], 7)), ts, FREE, capital=100.0, clock="1 day")
    assert result.days_per_year == 365
    assert "365 a year" in result.clock


def test_deflated_sharpe_of_the_paper() -> None:
    """Bailey & Lopez de Prado 2014: annual 2.5 over 1,250 days, 100 trials of variance 1/2, skew -3, kurtosis 10: 0.9004."""
    value = _deflated(2.5 / math.sqrt(250), 1250, -3.0, 10.0, 0.5 / 250, 100)
    assert value == pytest.approx(0.9004, abs=1e-4)
    rng = np.random.Generator(np.random.PCG64(0))
    noise = rng.standard_normal((200, 500)) * 0.01
    sharpes = noise.mean(axis=1) / noise.std(axis=1, ddof=1)
    best = deflated_sharpe(noise[np.argmax(sharpes)], sharpes)
    assert best < 0.95  # the best of 200 coin flips is no discovery
    assert deflated_sharpe(noise[0] + 0.01, sharpes) > 0.99


def bars_of(prices: list[tuple[float, float]], session: list[int], segment: list[int] | None = None) -> Bars:
    """Bars from (open, close); high and low enclose them."""
    opened, close = (np.array(x, np.float64) for x in zip(*prices))
    n = len(close)
    return Bars(
        MONDAY + np.arange(n) * 60_000_000_000 + np.array(session) * DAY,
        opened,
        np.maximum(opened, close),
        np.minimum(opened, close),
        close,
        np.ones(n),
        np.array(session, np.int32),
        np.array(segment or [0] * n, np.int32),
        np.zeros(n, np.uint16),
        "TEST",
        "1 minute",
        "by hand",
    )


PRICES = [(100, 101), (101.5, 102), (102, 101), (103, 105), (110, 111), (112, 113)]


def test_backtest_by_hand() -> None:
    """Long 2 after bar 0, short 1 after bar 1, flat at the session's last bar 3; the decision of bar 3 is not used."""
    bars = bars_of(PRICES, [0, 0, 0, 0, 1, 1])
    results = backtest(bars, np.array([2, -1, -1, 5, 0, 9]), COSTLY, CONFIG)
    # Ticks of 0.5 worth 5: market order 1 + 0.5 ticks, exit 1 + 2 * 0.5 ticks, fee 1.
    assert results["contracts"].tolist() == [0, 2, -3, 0, 0, 0]
    assert results["exit_contracts"].tolist() == [0, 0, 0, 1, 0, 0]
    assert results["position"].tolist() == [0, 2, -1, 0, 0, 0]
    cost = [0, 2 * (1 + 7.5), 3 * (1 + 7.5), 1 * (1 + 10), 0, 0]
    gross = [0, 2 * 10 * 0.5, 10 * (2 * 0 - (101 - 102)), -10 * (105 - 101), 0, 0]
    np.testing.assert_allclose(results["cost"], cost)
    np.testing.assert_allclose(results["net"], np.array(gross) - cost)
    # Fill prices in ticks: 101.5 / 0.5 + 1.5, 102 / 0.5 - 1.5, exit of a short 105 / 0.5 + 2.
    assert results["price"].tolist() == [0, 204.5, 202.5, 0, 0, 0]
    assert results["exit_price"].tolist() == [0, 0, 0, 212, 0, 0]

    metrics = summarize(results, bars.ts, COSTLY, capital=1000.0, clock=bars.clock)
    # By fills: long 2 at 102.25 to 101.25 = -20 - 4 fees; short 1 at 101.25 to 106 = -47.5 - 2 fees.
    assert metrics.trades == 2
    assert metrics.average_trade == pytest.approx((-24.0 - 49.5) / 2)
    assert metrics.net_pnl == pytest.approx(-24.0 - 49.5)
    assert metrics.hit_rate == 0.0
    assert metrics.turnover == 6
    assert metrics.exposure == pytest.approx(3 / 6)
    assert metrics.costs == pytest.approx(sum(cost))
    assert metrics.gross_pnl == pytest.approx(sum(gross))
    assert any("exceed gross" in alarm for alarm in metrics.alarms)
    assert any("trades a bar" in alarm for alarm in metrics.alarms)


def test_buy_and_hold_keeps_overnight_but_not_across_segments() -> None:
    bars = bars_of(PRICES, [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1])
    results = baseline("buy_and_hold", bars, FREE, CONFIG, seed=0)
    # 2 contracts: open of bar 1 (101.5) to the close of bar 3 (105), and open of bar 5 (112) to its close (113).
    assert results["net"].sum() == pytest.approx(2 * (105 - 101.5) + 2 * (113 - 112))
    assert results["contracts"].tolist() == [0, 2, 0, 0, 0, 2]
    assert results["exit_contracts"].tolist() == [0, 0, 0, -2, 0, -2]


def test_flat_is_zero_and_random_is_seeded() -> None:
    bars = bars_of(PRICES * 50, [i // 30 for i in range(300)])
    assert not baseline("flat", bars, COSTLY, CONFIG, seed=0)["net"].any()
    a, b = (baseline("random", bars, COSTLY, CONFIG, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(a, baseline("random", bars, COSTLY, CONFIG, seed=1))
    assert (a["contracts"] != b["contracts"]).any()
    ends = np.flatnonzero(bars.session_end)
    assert (a["position"][ends] == 0).all()
    assert set(np.unique(a["position"])) <= {-2, -1, 0, 1, 2}
    assert len(set(np.unique(a["position"]))) == 5
    assert set(BASELINES) == {"buy_and_hold", "flat", "random"}
    with pytest.raises(ValueError, match="unknown baseline"):
        baseline("momentum", bars, COSTLY, CONFIG, seed=0)


def test_decisions_do_not_see_the_bar_they_execute_in() -> None:
    """A policy that knows the close of its own execution bar would earn; the backtest gives it the bar after."""
    rng = np.random.Generator(np.random.PCG64(5))
    close = 100 + np.cumsum(rng.choice([-1.0, 1.0], 2000))
    opened = np.append(close[:1], close[:-1])
    bars = bars_of(list(zip(opened, close)), [0] * 2000)
    move = np.sign(close - opened).astype(np.int64)
    late = backtest(bars, move, FREE, CONFIG)["net"].sum()  # decides on the bar just seen: a fair coin
    prophet = backtest(bars, np.append(move[1:], 0), FREE, CONFIG)["net"].sum()
    assert abs(late) < 4 * math.sqrt(2000)
    assert prophet == pytest.approx(1999.0)


def test_record_left_open_is_refused() -> None:
    results = record(np.zeros(3), contracts=np.array([1, 0, 0]), position=np.array([1, 1, 1]))
    with pytest.raises(ValueError, match="open at the end"):
        summarize(results, weekdays(3), FREE, capital=1.0, clock="x")


def test_baselines_of_a_real_file(data_file: Callable[[str], Path]) -> None:
    config = Config().market
    bars, spec, _ = load_bars(data_file("yndx_moex_stock_1m_2016_traded-bars.csv.gz"), config)
    assert spec == PRESETS["YNDX"]
    hold = baseline("buy_and_hold", bars, spec, dataclasses.replace(config, slippage_range=0.0), seed=0)
    # Bought once, sold once: by hand from the first and last prices.
    entry = bars.open[1] + 0.1 * (0.5 + 0.25)
    leave = bars.close[-1] - 0.1 * (0.5 + 2 * 0.25)
    assert hold["net"].sum() == pytest.approx(4 * (leave - entry) - 8 * 0.1)
    metrics = summarize(hold, bars.ts, spec, capital=10_000.0, clock=bars.clock)
    assert metrics.days == 252
    assert metrics.trades == 1
    assert metrics.sharpe is not None
    chance = summarize(
        baseline("random", bars, spec, config, seed=3), bars.ts, spec, capital=10_000.0, clock=bars.clock
    )
    assert chance.net_pnl < 0
    assert chance.alarms
