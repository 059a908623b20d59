"""Policies to stand beside the learner's: buy-and-hold, always flat, random; and the plain backtest that runs them.

`backtest` is vectorized NumPy over whole windows and shares no code with the environment's kernels, on purpose: for market
orders the two must agree (a test holds them against each other). Orders, costs and forced exits are the environment's: a
decision at the close of bar t executes at the open of t + 1 at half-spread and slippage of normal urgency; at the end of a
session the position leaves at the close with aggressive urgency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .bars import Bars
from .contract import ContractSpec

if TYPE_CHECKING:
    from foxhunt_rt.config import MarketConfig

__all__ = ["BASELINES", "RESULT", "backtest", "baseline"]

#: The fields of the environment's `bar_result` that the metrics read; see cuda_src/abi/types.h for their meaning.
RESULT = np.dtype(
    [
        ("net", np.float64),
        ("cost", np.float64),
        ("price", np.float64),
        ("exit_price", np.float64),
        ("contracts", np.int32),
        ("exit_contracts", np.int32),
        ("position", np.int32),
    ]
)

BASELINES = ("buy_and_hold", "flat", "random")


def backtest(
    bars: Bars, target: NDArray[Any], spec: ContractSpec, config: MarketConfig, *, overnight: bool = False
) -> NDArray[Any]:
    """Runs wanted positions over `bars`.

    Parameters
    ----------
    bars : Bars
        The window (n bars); flat before and after.
    target : integers (n,)
        Signed contracts wanted after the decision at the close of bar t; that of a session's last bar is not used.
    overnight : bool
        Hold through session ends (buy-and-hold); never through the end of a segment.

    Returns
    -------
    RESULT (n,)
    """
    n = len(bars)
    wanted = np.asarray(target)
    if wanted.shape != (n,) or wanted.dtype.kind not in "iu":
        raise ValueError(f"target is {wanted.dtype} {wanted.shape}; give integers ({n},)")
    end = (bars.segment_end if overnight else bars.session_end).copy()
    end[-1] = True
    first = np.ones(n, np.bool_)
    first[1:] = end[:-1]
    held = np.zeros(n, np.int64)  # during bar t, after its open
    held[1:] = np.where(first[1:], 0, wanted[:-1])
    before = np.zeros(n, np.int64)
    before[1:] = np.where(first[1:], 0, held[:-1])
    order, leave = held - before, np.where(end, -held, 0)

    opened, closed = bars.open / spec.tick, bars.close / spec.tick
    last = np.concatenate((closed[:1], closed[:-1]))
    _, normal, aggressive = config.slippage_urgency
    slippage = spec.slippage_ticks + config.slippage_range * (bars.high - bars.low) / spec.tick
    friction, exit_friction = spec.half_spread_ticks + normal * slippage, spec.half_spread_ticks + aggressive * slippage

    fees = spec.fee * (np.abs(order) + np.abs(leave))
    results = np.zeros(n, RESULT)
    results["cost"] = fees + spec.tick_value * (np.abs(order) * friction + np.abs(leave) * exit_friction)
    results["net"] = spec.tick_value * (before * (opened - last) + held * (closed - opened)) - results["cost"]
    results["price"] = np.where(order != 0, opened + np.sign(order) * friction, 0.0)
    results["exit_price"] = np.where(leave != 0, closed + np.sign(leave) * exit_friction, 0.0)
    results["contracts"], results["exit_contracts"] = order, leave
    results["position"] = held + leave
    return results


def baseline(name: str, bars: Bars, spec: ContractSpec, config: MarketConfig, *, seed: int) -> NDArray[Any]:
    """The record of one of `BASELINES` over the window `bars`: RESULT (n,).

    buy_and_hold: long the full limit, held through session ends, out at the ends of segments. flat: never trades.
    random: at every close a direction and a size, uniformly; market orders; forced flat at session ends.
    """
    n = len(bars)
    if name == "flat":
        return np.zeros(n, RESULT)
    if name == "buy_and_hold":
        return backtest(bars, np.full(n, config.position_limit), spec, config, overnight=True)
    if name == "random":
        rng = np.random.Generator(np.random.Philox(seed))
        direction = rng.integers(-1, 2, n)
        # Quarters of the limit, rounded half up, at least one contract: the environment's sizes.
        size = np.maximum((config.position_limit * rng.integers(1, 5, n) + 2) // 4, 1)
        return backtest(bars, direction * size, spec, config)
    raise ValueError(f"unknown baseline {name!r}; choose one of {', '.join(BASELINES)}")
