"""A simulated market with a seed: for machines without a network, and for tests that must know the right answer.

One-minute bars of a futures contract like ES (tick 0.25), 23 hours a weekday. What it has of a real market, and how:

* regimes: up, flat, down, as a Markov chain whose state lasts 240 minutes on average; a drift of `drift` ticks a minute;
* volatility clustering: log volatility is an autoregression (a discrete stochastic-volatility model, Taylor 1986);
* an intraday season of volatility and volume, with a peak at the cash open;
* bid-ask bounce (Roll 1984): each trade prints at bid or ask, so one-minute returns are negatively autocorrelated;
* all prices on the tick; volume grows with volatility.

The optimal policy is known: the regime's duration is memoryless, so being long in an up regime earns `drift` ticks a minute for
240 minutes on average whenever one enters; it is right to hold the regime's direction as long as that exceeds the cost
of a round trip, else to stay flat (`SyntheticMarket.optimal_direction`). Statistics of the past reveal the regime only in part.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from .bars import I64, Bars
from .contract import PRESETS, ContractSpec
from .rolling import Stretches, ema

__all__ = ["SyntheticMarket", "simulate"]

VERSION = 2  # of the simulated numbers; part of the cache's file name
MINUTES = 1380  # of a session: 00:00 to 23:00 UTC
STAY = 240.0  # mean minutes of a regime
_STEPS = 8  # trades simulated a bar
_MINUTE = 60_000_000_000


@dataclasses.dataclass(frozen=True)
class SyntheticMarket:
    """Simulated bars and the truth behind them.

    Attributes
    ----------
    bars : Bars
    regime : int8 (n,)
        -1, 0, 1: direction of the drift during the bar.
    drift : float
        Ticks a minute in a regime of direction 1.
    """

    bars: Bars
    regime: NDArray[np.int8]
    drift: float

    def optimal_direction(self, spec: ContractSpec) -> NDArray[np.int8]:
        """(n,) int8: the position a trader who knows the regime holds, at the costs of `spec`, by the rule above."""
        round_trip = 2.0 * spec.market_cost / spec.tick_value
        return self.regime if self.drift * STAY > round_trip else np.zeros_like(self.regime)


def simulate(bars: int, seed: int, *, drift: float = 0.1) -> SyntheticMarket:
    """`bars` bars from `seed`; the same arguments give the same bars.

    `drift` is in ticks a minute; at 0.1 a regime moves the price by 24 ticks on average, against a noise of about 30.
    """
    if bars < 2:
        raise ValueError(f"bars = {bars}; simulate at least 2")
    rng = np.random.Generator(np.random.Philox(seed))
    ts = _clock(bars)
    regime = _regimes(bars, rng)
    slow, _ = ema(rng.standard_normal(bars), 240, Stretches.of(np.zeros(bars, np.int32)))  # deviation 1/sqrt(span)
    phase = (ts // _MINUTE) % 1440 / 1440.0
    season = 0.6 + 1.2 * np.exp(-(((phase - 0.6) / 0.08) ** 2)) + 0.3 * np.exp(-(((phase - 0.85) / 0.03) ** 2))
    volatility = 1.6 * season * np.exp(0.5 * np.sqrt(240.0) * slow - 0.125)  # ticks a minute
    steps = rng.standard_normal((bars, _STEPS)) * (volatility / np.sqrt(_STEPS))[:, None]
    steps += (drift * regime / _STEPS)[:, None]
    middle = 8000.0 + np.cumsum(steps.ravel())  # in ticks
    # Reflected between 500 and 3,500 points whatever the seed and length; a reflected drift changes its direction.
    phase_of_path = (middle - 2000.0) % 24000.0
    middle = 14000.0 - np.abs(phase_of_path - 12000.0)
    regime = np.where(phase_of_path.reshape(bars, _STEPS)[:, 0] < 12000.0, regime, -regime).astype(np.int8)
    bid = np.floor(middle)
    trade = ((bid + (rng.random(middle.shape) < 0.5)) * 0.25).reshape(bars, _STEPS)
    volume = np.floor(np.exp(rng.standard_normal(bars) * 0.5 + 4.0) * volatility) + 1.0
    day = np.floor_divide(ts, 1440 * _MINUTE)
    return SyntheticMarket(
        Bars(
            ts=ts,
            open=trade[:, 0].copy(),
            high=trade.max(axis=1),
            low=trade.min(axis=1),
            close=trade[:, -1].copy(),
            volume=volume,
            session=(np.cumsum(np.diff(day, prepend=day[0]) != 0)).astype(np.int32),
            segment=np.zeros(bars, np.int32),
            mark=np.zeros(bars, np.uint16),
            symbol=PRESETS["SYNTHETIC"].symbol,
            clock="1 minute",
            source=f"simulated market, seed {seed}",
            notes=("these bars are simulated",),
        ),
        regime,
        drift,
    )


def _clock(bars: int) -> I64:
    """Minutes of weekdays from Monday 2024-01-01 on, 23 hours each."""
    day, minute = np.divmod(np.arange(bars, dtype=np.int64), MINUTES)
    date = np.busday_offset(np.datetime64("2024-01-01"), day).astype("datetime64[ns]").astype(np.int64)
    ts: I64 = date + minute * _MINUTE
    return ts


def _regimes(bars: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """A Markov chain over -1, 0, 1: with probability 1/STAY a minute it moves to one of the two others."""
    move = rng.random(bars) < 1.0 / STAY
    step = np.where(move, rng.integers(1, 3, bars), 0)
    return ((np.cumsum(step) % 3) - 1).astype(np.int8)
