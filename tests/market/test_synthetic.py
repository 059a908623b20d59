"""The simulated market has what it claims, is the same for the same seed, and its known policy is the best of those tried."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.market.baselines import backtest
from foxhunt_rt.market.contract import PRESETS
from foxhunt_rt.market.synthetic import MINUTES, STAY, simulate

SPEC = PRESETS["SYNTHETIC"]
CONFIG = Config().with_set(["market.position_limit=1", "market.slippage_range=0"]).market


@pytest.fixture(scope="module")
def market() -> object:
    return simulate(50_000, 11)


def test_same_seed_same_bars() -> None:
    a, b, c = simulate(3000, 1), simulate(3000, 1), simulate(3000, 2)
    for name in ("ts", "open", "high", "low", "close", "volume", "session"):
        np.testing.assert_array_equal(getattr(a.bars, name), getattr(b.bars, name))
    assert (a.bars.close != c.bars.close).any()


@pytest.mark.parametrize("seed", range(4))
def test_sound_bars(seed: int) -> None:
    bars = simulate(5000, seed).bars
    assert (bars.high >= np.maximum(bars.open, bars.close)).all()
    assert (bars.low <= np.minimum(bars.open, bars.close)).all()
    assert (bars.low >= 500).all()
    assert (bars.volume >= 1).all()
    assert (np.diff(bars.ts) > 0).all()
    for price in (bars.open, bars.high, bars.low, bars.close):
        np.testing.assert_array_equal(price * 4, np.rint(price * 4))
    sizes = np.bincount(bars.session)
    assert (sizes[:-1] == MINUTES).all()
    weekday = (bars.ts // 86_400_000_000_000 + 3) % 7
    assert weekday.max() <= 4


def test_stylized_facts(market: object) -> None:
    bars = market.bars  # type: ignore[attr-defined]
    same = np.diff(bars.session) == 0
    step = np.diff(bars.close)[same]
    bounce = np.corrcoef(step[1:], step[:-1])[0, 1]
    assert bounce < -0.05  # Roll: cov / var = -s^2 / (sigma^2 + 2 s^2) for half-spread s
    size = np.abs(step)
    assert np.corrcoef(size[1:], size[:-1])[0, 1] > 0.15  # clustering
    assert np.corrcoef(size[60:], size[:-60])[0, 1] > 0.05
    minute = (bars.ts[1:][same] // 60_000_000_000) % 1440
    by_hour = np.array([size[minute // 60 == hour].mean() for hour in range(23)])
    assert by_hour[14] > 1.5 * by_hour[3]  # the cash open
    kurtosis = np.mean((step - step.mean()) ** 4) / step.var() ** 2
    assert kurtosis > 4
    volume = np.log(bars.volume[1:][same])
    assert np.corrcoef(volume, size)[0, 1] > 0.2


def test_regimes(market: object) -> None:
    regime = market.regime  # type: ignore[attr-defined]
    changes = np.flatnonzero(np.diff(regime))
    assert len(regime) / (len(changes) + 1) == pytest.approx(STAY, rel=0.25)
    assert set(np.unique(regime)) == {-1, 0, 1}
    step = np.diff(market.bars.close) / 0.25  # type: ignore[attr-defined]
    up, down = step[regime[1:] == 1].mean(), step[regime[1:] == -1].mean()
    error = step.std() / np.sqrt(len(step) / 3)
    assert up == pytest.approx(0.1, abs=4 * error)
    assert down == pytest.approx(-0.1, abs=4 * error)


def test_known_policy_beats_the_others() -> None:
    """Over 150,000 minutes the regime's direction earns its expectation; the opposite, always long and flat do not."""
    market = simulate(150_000, 5)
    best = market.optimal_direction(SPEC).astype(np.int64)
    assert (best == market.regime).all()

    def earned(target: np.ndarray) -> float:
        return float(backtest(market.bars, target, SPEC, CONFIG)["net"].sum()) / SPEC.tick_value

    held = np.abs(market.regime).mean() * len(best)
    best_pnl = earned(best)
    assert best_pnl > 0.5 * 0.1 * held  # ticks, after costs
    assert best_pnl > max(earned(-best), earned(np.ones_like(best)), 0.0)
    assert earned(-best) < 0


def test_costs_above_the_drift_make_flat_optimal() -> None:
    dear = dataclasses.replace(SPEC, fee=200.0)
    market = simulate(2000, 0)
    assert not market.optimal_direction(dear).any()
    assert market.optimal_direction(SPEC).any()


def test_too_short() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        simulate(1, 0)
