"""A small market whose optimal policy can be computed: a Markov chain that is visible, and moves of a few ticks that it drives.

Its state is a slow direction (up or down, some 40 bars long) and a fast one (none, up or down, some 4 bars long). The mean of
the next bar's move is the sum of the two, and the fast one is the stronger while it lasts. Whoever follows the sign of that
mean pays for every turn of the fast one; the right policy knows its position and the costs, and mostly sits the fast one out.

The bars are made so that the environment (docs/environment.md) offers no more than a solver models: a bar opens where the
last one closed and moves by at most `MOVE` ticks, so a limit order at a half-spread above that never fills, and nor does a
stop that far away. There is no slippage and no fee; with a position limit of 1 all sizes are the same. What is left at every
close is the choice of being short, flat or long from the next open on, at the half-spread a contract and side.

Everything is exact in ticks. The dynamic program that gives the optimum stands with the tests.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from .bars import F64, Bars
from .contract import PRESETS, ContractSpec
from .features import FeatureTable

__all__ = ["MOVE", "SETTINGS", "KnownMarket", "simulate_known"]

MOVE = 3  # ticks: a bar moves by -MOVE, 0 or MOVE
SLOW, FAST = np.array([-1, -1, -1, 1, 1, 1]), np.array([-1, 0, 1, -1, 0, 1])  # of the states 0 to 5
_SLOW_MEAN, _FAST_MEAN = 0.5, 1.2  # ticks a bar
_MOVES = 0.7  # chance that a bar moves at all
_SLOW_STAY, _FAST_BEGIN, _FAST_END = 1.0 - 1.0 / 40.0, 0.08, 0.25
_HALF_SPREAD = 3.5  # ticks; above MOVE
_MINUTE, _DAY = 60_000_000_000, 86_400_000_000_000
_START = 100_000.0  # ticks

#: Of the configuration: without these the environment's costs are not those of the market here.
SETTINGS = {
    "position_limit": 1, "slippage_range": 0.0, "stop_offset_ticks": 1000.0, "half_spread_ticks": _HALF_SPREAD,
    "slippage_ticks": 0.0, "fee": 0.0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class KnownMarket:
    """Bars, what is to be seen at each close, and the chain behind them.

    Attributes
    ----------
    bars : Bars
        One session a day.
    features : FeatureTable
        `slow`, `fast` (-1, 0, 1) and `left`, the share of the session that is still to come.
    spec : ContractSpec
    state : int64 (n,)
        Of the chain, known at the close of bar t; it governs the move of bar t + 1.
    transition : float64 (6, 6)
        Rows sum to 1.
    up, down : float64 (6,)
        Chance that the next bar moves up or down.
    session_bars : int
    """

    bars: Bars
    features: FeatureTable
    spec: ContractSpec
    state: NDArray[np.int64]
    transition: F64
    up: F64
    down: F64
    session_bars: int

    @property
    def mean_move(self) -> F64:
        """(6,) ticks that the next bar moves on average."""
        return MOVE * (self.up - self.down)

    @property
    def side_cost(self) -> float:
        """Ticks a contract and side."""
        return self.spec.market_cost / self.spec.tick_value


def simulate_known(sessions: int, seed: int, *, session_bars: int = 120, drift: float = 1.0) -> KnownMarket:
    """`sessions` sessions from `seed`; the same arguments give the same bars.

    Parameters
    ----------
    sessions, seed, session_bars : int
    drift : float
        Factor on the mean of the moves, 0 to 1. With 0 the chain drives nothing: bars are noise, and the optimum is to stay flat.

    Raises
    ------
    ValueError
        Too few bars, or so many that prices reach zero, or a drift outside 0 to 1.
    """
    if not 0.0 <= drift <= 1.0:
        raise ValueError(f"a drift of {drift:g} is no share of the moves; give 0 to 1")
    if sessions < 1 or session_bars < 2:
        raise ValueError(f"{sessions} sessions of {session_bars} bars; simulate at least 1 of 2")
    n = sessions * session_bars
    slow = np.array([[_SLOW_STAY, 1.0 - _SLOW_STAY], [1.0 - _SLOW_STAY, _SLOW_STAY]])
    fast = np.array([[1.0 - _FAST_END, _FAST_END, 0.0], [_FAST_BEGIN / 2, 1.0 - _FAST_BEGIN, _FAST_BEGIN / 2],
                     [0.0, _FAST_END, 1.0 - _FAST_END]])  # fmt: skip
    transition = np.kron(slow, fast)
    edge = drift * (_SLOW_MEAN * SLOW + _FAST_MEAN * FAST) / MOVE  # chance of up less chance of down
    up, down = (_MOVES + edge) / 2.0, (_MOVES - edge) / 2.0

    random = np.random.Generator(np.random.Philox(seed))
    state = _walk(transition, n, random)
    draw, move = random.random(n), np.zeros(n)
    before = state[:-1]  # bar t + 1 moves as the state at the close of bar t says
    move[1:] = np.where(draw[1:] < up[before], MOVE, np.where(draw[1:] >= 1.0 - down[before], -MOVE, 0))
    close = _START + np.cumsum(move)
    if close.min() <= 0:
        raise ValueError(f"{n} bars take the price to zero; simulate fewer sessions")
    opened = close - move
    spec = dataclasses.replace(PRESETS["SYNTHETIC"], half_spread_ticks=_HALF_SPREAD, slippage_ticks=0.0, fee=0.0)
    at = np.arange(n) % session_bars
    ts = np.arange(n) // session_bars * _DAY + at * _MINUTE + np.datetime64("2024-01-01", "ns").astype(np.int64)
    bars = Bars(
        ts=ts.astype(np.int64), open=opened * spec.tick, high=np.maximum(opened, close) * spec.tick,
        low=np.minimum(opened, close) * spec.tick, close=close * spec.tick, volume=np.ones(n),
        session=(np.arange(n) // session_bars).astype(np.int32), segment=np.zeros(n, np.int32), mark=np.zeros(n, np.uint16),
        symbol=spec.symbol, clock="1 minute", source=f"market of known optimum, seed {seed}",
        notes=("these bars are simulated",),
    )  # fmt: skip
    left = 1.0 - (at + 1) / session_bars
    values = np.ascontiguousarray(np.stack([SLOW[state], FAST[state], left], axis=1), np.float32)
    features = FeatureTable(
        values, ("slow", "fast", "left"), np.array([True, True, False]), np.ones(n, np.bool_), horizon=1
    )
    return KnownMarket(bars, features, spec, state, transition, up, down, session_bars)


def _walk(transition: F64, n: int, random: np.random.Generator) -> NDArray[np.int64]:
    """A path of the chain from its stationary distribution, which is uniform over slow and known for fast."""
    cumulative, draws = np.cumsum(transition, axis=1), random.random(n)
    stationary = np.linalg.matrix_power(transition, 4096)[0]
    path = np.empty(n, np.int64)
    path[0] = min(int(np.searchsorted(np.cumsum(stationary), draws[0], side="right")), len(SLOW) - 1)
    for t in range(1, n):
        path[t] = min(int(np.searchsorted(cumulative[path[t - 1]], draws[t], side="right")), len(SLOW) - 1)
    return path
