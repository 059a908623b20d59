"""Features: causal to the bit, finite everywhere, odd or even under the mirror as declared, and equal to plain definitions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.config import Config, FeatureConfig
from foxhunt_rt.market.bars import Bars, load_bars
from foxhunt_rt.market.contract import PRESETS
from foxhunt_rt.market.features import FLOOR, FeatureTable, Normalizer, build_features
from foxhunt_rt.market.rolling import Stretches, ema, rolling_max, rolling_mean, rolling_min

Make = Callable[..., Bars]
SPEC = PRESETS["ES"]
CONFIG = Config().market.features
ROBUST = Config().with_set(["market.features.normalizer=robust"]).market.features


def table(bars: Bars, config: FeatureConfig = CONFIG) -> FeatureTable:
    return build_features(bars, config, SPEC)


def column(result: FeatureTable, name: str) -> np.ndarray:
    return result.values[:, result.names.index(name)].astype(np.float64)


# ---- rolling helpers against loops ----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64, 500])
def test_rolling_against_loops(window: int) -> None:
    rng = np.random.Generator(np.random.PCG64(window))
    x = rng.standard_normal(201)
    stretches = Stretches.of(np.repeat([0, 1, 2, 3], [1, 60, 100, 40]).astype(np.int32))
    start = np.repeat([0, 1, 61, 161], [1, 60, 100, 40])
    windows = [x[max(start[i], i + 1 - window) : i + 1] for i in range(len(x))]
    np.testing.assert_allclose(rolling_mean(x, window, stretches), [w.mean() for w in windows], atol=1e-12)
    np.testing.assert_array_equal(rolling_max(x, window, stretches), [w.max() for w in windows])
    np.testing.assert_array_equal(rolling_min(x, window, stretches), [w.min() for w in windows])


@pytest.mark.parametrize("span", [3, 12, 27, 99])
def test_ema_against_its_definition(span: int) -> None:
    rng = np.random.Generator(np.random.PCG64(span))
    x = rng.standard_normal(700)
    start = np.repeat([0, 150], [150, 550])
    value, memory = ema(x, span, Stretches.of(np.repeat([0, 1], [150, 550]).astype(np.int32)))
    decay = 1 - 2 / (span + 1)
    for i in range(len(x)):
        window = x[max(start[i], i + 1 - memory) : i + 1][::-1]
        weight = decay ** np.arange(len(window))
        assert value[i] == pytest.approx((weight @ window) / weight.sum(), abs=1e-12)
    assert decay**memory < np.exp(-8) * 1.001


# ---- causality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 255, 700, 1100, 1499])
def test_no_feature_sees_the_future(random_bars: Make, cut: int) -> None:
    """Everything after the cut is another market: no earlier value moves by a bit."""
    bars = random_bars(1500)
    other = random_bars(1500, seed=99)
    changed = dataclasses.replace(
        bars,
        **{
            name: np.concatenate((getattr(bars, name)[:cut], getattr(other, name)[cut:] * 3.0))
            for name in ("open", "high", "low", "close", "volume")
        },
        ts=np.concatenate((bars.ts[:cut], bars.ts[cut:] + 1_000_000_000)),
    )
    before, after = table(bars), table(changed)
    np.testing.assert_array_equal(before.values[:cut], after.values[:cut])
    assert (before.values[cut:] != after.values[cut:]).any()


@pytest.mark.parametrize("cut", [300, 701, 1499])
def test_no_feature_needs_the_future(random_bars: Make, cut: int) -> None:
    """The features of a shorter series are the beginning of those of the longer one."""
    bars = random_bars(1500)
    np.testing.assert_array_equal(table(bars.slice(0, cut)).values, table(bars).values[:cut])


def test_a_leak_is_caught(random_bars: Make) -> None:
    """The test above has teeth: the same comparison sees a column that looks one bar ahead."""
    bars = random_bars(400)
    leaky = np.append(np.diff(bars.close), 0.0)
    shorter = bars.slice(0, 300)
    assert (np.append(np.diff(shorter.close), 0.0) != leaky[:300]).any()


def test_horizon_is_exact(random_bars: Make) -> None:
    """A change `horizon` bars back is not felt; in price columns one bar less is."""
    bars = random_bars(900, sessions=1, segments=1)
    horizon = table(bars).horizon
    session_wide = [i for i, name in enumerate(table(bars).names) if name in ("vwap", "session_phase")]

    def felt(distance: int) -> bool:
        close = bars.close.copy()
        at = len(bars) - 1 - distance
        close[at] = bars.low[at] if close[at] != bars.low[at] else bars.high[at]
        changed = table(dataclasses.replace(bars, close=close)).values[-1] != table(bars).values[-1]
        changed[session_wide] = False
        return bool(changed.any())

    assert horizon == 257
    assert felt(horizon - 1)
    # Sums by cumsum keep the rounding of what has left the window: 1e-16 of the total, which float32 rounds off.
    assert not felt(horizon)


# ---- segments -------------------------------------------------------------------------------------------------------


def test_nothing_crosses_a_segment(random_bars: Make) -> None:
    """Scaling all prices of the first segment leaves the second one's features alone (up to cumsum's rounding)."""
    bars = random_bars(1200, sessions=4, segments=2)
    first = bars.segment == 0
    scale = np.where(first, 7.0, 1.0)
    changed = dataclasses.replace(
        bars, **{name: getattr(bars, name) * scale for name in ("open", "high", "low", "close")}
    )
    a, b = table(bars), table(changed)
    np.testing.assert_allclose(a.values[~first], b.values[~first], rtol=1e-4, atol=1e-6)
    at = int(np.argmax(~first))
    for lag in CONFIG.return_lags:
        assert column(b, f"ret_{lag}")[at] == 0.0
    assert not a.valid[at : at + a.horizon - 1].any()
    assert a.valid[at + a.horizon - 1]
    assert a.valid.sum() == len(bars) - 2 * (a.horizon - 1)


# ---- finite ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 300])
def test_flat_market_without_volume(random_bars: Make, n: int) -> None:
    bars = random_bars(n, sessions=1, segments=1)
    flat = np.full(n, 1640.25)
    flat_bars = dataclasses.replace(bars, open=flat, high=flat, low=flat, close=flat, volume=np.zeros(n))
    result = table(flat_bars)
    assert np.isfinite(result.values).all()
    assert (result.values[:, result.directional] == 0).all()
    normalizer = Normalizer.fit(result, 0, n, CONFIG)
    assert np.isfinite(normalizer.apply(result.values)).all()


def test_same_time_stamps(random_bars: Make) -> None:
    """Trade bars share milliseconds."""
    bars = random_bars(500, sessions=1, segments=1)
    result = table(dataclasses.replace(bars, ts=np.full(500, bars.ts[0]), clock="8 trades"))
    assert np.isfinite(result.values).all()


@pytest.mark.parametrize(
    "name",
    [
        "es_futures_1m_2013-10_2020-01_all-expiries.csv.gz",
        "yndx_moex_stock_1m_2016_traded-bars.csv.gz",
        "copyleft-lgpl3/eurusd_spot-bid_1m_2017-01_2017-06.parquet",
    ],
)
@pytest.mark.parametrize("config", [CONFIG, ROBUST], ids=["moments", "robust"])
def test_real_files_are_finite_and_scaled(data_file: Callable[[str], Path], name: str, config: FeatureConfig) -> None:
    bars, spec, _ = load_bars(data_file(name), Config().market)
    result = build_features(bars, config, spec)
    assert result.values.dtype == np.float32
    assert result.values.flags.c_contiguous
    assert np.isfinite(result.values).all()
    normalizer = Normalizer.fit(result, 0, len(bars) // 2, config)
    scaled = normalizer.apply(result.values)
    assert np.abs(scaled).max() <= config.clip
    assert np.isfinite(scaled).all()
    if config is CONFIG:
        rows = result.valid & (np.arange(len(bars)) < len(bars) // 2)
        moving = result.values[rows].std(axis=0) > 1e-6
        spread = np.sqrt((scaled[rows].astype(np.float64) ** 2).mean(axis=0))[moving]
        names = np.array(result.names)[moving]
        assert (spread < 1.001).all()
        assert (spread[names != "pace"] > 0.8).all()  # pace: clipping takes the nights out of a column of minutes


# ---- mirror ---------------------------------------------------------------------------------------------------------


def test_mirrored_market(random_bars: Make) -> None:
    """p -> c^2 / p: directional columns are negated, the others stay; after the normalizer as well."""
    bars = random_bars(1500)
    c = bars.close[0] ** 2
    mirrored = dataclasses.replace(bars, open=c / bars.open, high=c / bars.low, low=c / bars.high, close=c / bars.close)
    a, b = table(bars), table(mirrored)
    sign = np.where(a.directional, -1.0, 1.0)
    np.testing.assert_allclose(b.values, a.values * sign, rtol=1e-5, atol=2e-6)
    for config in (CONFIG, ROBUST):
        normalizer = Normalizer.fit(a, 0, 900, config)
        np.testing.assert_allclose(normalizer.apply(b.values), normalizer.apply(a.values) * sign, rtol=1e-4, atol=1e-3)
    assert 0 < a.directional.sum() < a.width


def test_the_mirror_in_price_differs_by_the_square_of_the_move(random_bars: Make) -> None:
    """p -> 2c - p, in which profits are mirrored exactly: columns at the bar whose close is c turn over up to the square of the
    largest move that they look back on (docs/counterfactual.md)."""
    bars = random_bars(400, sessions=1, segments=1)
    plain = table(bars)
    sign = np.where(plain.directional, -1.0, 1.0)
    worst = 0.0
    for t in (300, 350, 399):
        c = 2.0 * bars.close[t]
        mirrored = dataclasses.replace(
            bars, open=c - bars.open, high=c - bars.low, low=c - bars.high, close=c - bars.close
        )
        span = np.abs(np.log(np.stack([bars.high, bars.low])[:, t - 299 : t + 1] / bars.close[t])).max()
        scale = np.maximum(np.abs(plain.values[t]), 1.0)
        scale[[name.startswith(("ret", "body")) for name in plain.names]] = span  # others are ratios of moves
        error = np.abs(table(mirrored).values[t] - plain.values[t] * sign) / scale
        assert 1e-4 < span < 0.05
        assert error.max() < 8.0 * span, plain.names[int(error.argmax())]
        worst = max(worst, float(error.max()))
    assert worst > 1e-5, "the two mirrors are not the same"


# ---- values ---------------------------------------------------------------------------------------------------------


def test_values_against_plain_definitions(random_bars: Make) -> None:
    bars = random_bars(700, sessions=2, segments=1)
    result = table(bars)
    log = np.log(bars.close)
    ret = np.append(0.0, np.diff(log))
    i = 650
    assert column(result, "ret_8")[i] == pytest.approx(log[i] - log[i - 8], rel=1e-5)
    assert column(result, "body")[i] == pytest.approx(np.log(bars.close[i] / bars.open[i]), rel=1e-4)
    vol = np.sqrt(np.mean(ret[i - 63 : i + 1] ** 2))
    assert column(result, "vol_64")[i] == pytest.approx(np.log(vol + FLOOR), rel=1e-5)
    top, bottom = bars.high[i - 63 : i + 1].max(), bars.low[i - 63 : i + 1].min()
    channel = 2 * np.log(bars.close[i] / bottom) / np.log(top / bottom) - 1
    assert column(result, "channel_64")[i] == pytest.approx(channel, rel=1e-4, abs=1e-6)
    x = np.log1p(bars.volume[i - 63 : i + 1])
    assert column(result, "volume_z")[i] == pytest.approx((x[-1] - x.mean()) / x.std(), rel=1e-4)
    # RSI by Wilder's recursion, run from the start: the truncation at 4 spans and more is below 1e-3.
    gain = loss = 0.0
    for r in ret[: i + 1]:
        gain += (max(r, 0.0) - gain) / 14
        loss += (max(-r, 0.0) - loss) / 14
    assert column(result, "rsi")[i] == pytest.approx((gain - loss) / (gain + loss), abs=1e-3)
    fast = slow = log[0]
    for value in log[1 : i + 1]:
        fast += (value - fast) * 2 / 13
        slow += (value - slow) * 2 / 27
    longest = np.sqrt(np.mean(ret[i - 255 : i + 1] ** 2)) + FLOOR
    assert column(result, "macd")[i] == pytest.approx((fast - slow) / longest, abs=2e-3)
    typical = np.log(bars.high * bars.low * bars.close) / 3
    session = slice(350, i + 1)
    vwap = np.average(typical[session], weights=bars.volume[session])
    assert column(result, "vwap")[i] == pytest.approx((log[i] - vwap) / longest / np.sqrt(i - 349), rel=1e-4)
    # 2024-01-02 15:00 UTC is 9:00 in Chicago, a Tuesday.
    assert column(result, "day_sin")[0] == pytest.approx(np.sin(2 * np.pi * 9 / 24), abs=1e-6)
    assert column(result, "week_cos")[0] == pytest.approx(np.cos(2 * np.pi * (24 + 9) / 168), abs=1e-6)
    assert column(result, "pace")[1] == pytest.approx(np.log1p(60), rel=1e-6)


def test_phase_uses_finished_sessions_only(random_bars: Make) -> None:
    bars = random_bars(400, sessions=4, segments=1)
    phase = column(table(bars), "session_phase")
    assert phase[0] == 0.0
    assert phase[99] == pytest.approx(99 / (8 * 60))
    assert phase[199] == pytest.approx(1.0)  # as long as the one before
    assert phase.max() <= 1.5


# ---- normalizer -----------------------------------------------------------------------------------------------------


def test_normalizer_sees_the_training_rows_only(random_bars: Make) -> None:
    bars = random_bars(1500, segments=1)
    result = table(bars)
    values = result.values.copy()
    values[800:] *= -50.0
    changed = dataclasses.replace(result, values=values)
    a, b = Normalizer.fit(result, 0, 800, CONFIG), Normalizer.fit(changed, 0, 800, CONFIG)
    np.testing.assert_array_equal(a.center, b.center)
    np.testing.assert_array_equal(a.scale, b.scale)
    c = Normalizer.fit(changed, 0, 801, CONFIG)
    assert (c.scale != a.scale).any()


def test_normalizer_round_trip_and_errors(random_bars: Make) -> None:
    result = table(random_bars(600))
    normalizer = Normalizer.fit(result, 0, 600, CONFIG)
    again = Normalizer.from_arrays(normalizer.to_arrays())
    np.testing.assert_array_equal(again.apply(result.values), normalizer.apply(result.values))
    for start, stop in ((5, 5), (-1, 10), (0, 601)):
        with pytest.raises(ValueError, match="training window"):
            Normalizer.fit(result, start, stop, CONFIG)


def test_marked_bars_are_not_valid(random_bars: Make) -> None:
    bars = random_bars(700, sessions=1, segments=1)
    mark = np.zeros(700, np.uint16)
    mark[500] = 4
    result = table(dataclasses.replace(bars, mark=mark))
    assert not result.valid[500]
    assert result.valid[501]


def test_speed(random_bars: Make) -> None:
    """62,500 bars in under half a second (0.1 s measured on one core); processor time, the best of three."""
    bars = random_bars(62_500, sessions=50)
    best = np.inf
    for _ in range(3):
        began = time.process_time()
        table(bars)
        best = min(best, time.process_time() - began)
    assert best < 0.5
