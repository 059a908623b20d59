"""What an evaluation leaves behind: a record for each bar, and from it the equity curve and the round trips."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROUND_TRIP", "equity_curve", "round_trips"]

ROUND_TRIP = np.dtype(
    [("entry", np.int64), ("exit", np.int64), ("contracts", np.int32), ("net", np.float64), ("fees", np.float64)]
)
"""entry, exit: bars of the first and last fill; contracts: signed, the largest position held; net: money, after
half-spread, slippage and fees; fees: money."""


def equity_curve(results: NDArray[Any]) -> NDArray[np.float64]:
    """Net equity at the close of each bar, money, from 0: float64 (n,) of `bar_result` (n,)."""
    return np.cumsum(results["net"])


def round_trips(results: NDArray[Any], tick_value: float, fee: float, first: int = 0) -> NDArray[Any]:
    """Trades from flat to flat; a flip ends one and begins the next.

    Parameters
    ----------
    results : bar_result (n,)
        In bar order, of walks that begin and end flat (`walks.session_walks`).
    tick_value, fee : float
        Of the `ExecutionModel` that made them.
    first : int
        Bar of results[0].

    Returns
    -------
    ROUND_TRIP (trades,)
        In order of entry. The sum of `net` is the sum of the bars' `net`.

    Raises
    ------
    ValueError
        A position is left open at the end.
    """
    order, forced = results["contracts"].astype(np.int64), results["exit_contracts"].astype(np.int64)
    quantity = np.stack([order, forced], 1).reshape(-1)  # within a bar: the order, then the forced exit
    price = np.stack([results["price"], results["exit_price"]], 1).reshape(-1)
    bar = np.repeat(np.arange(len(results), dtype=np.int64) + first, 2)
    kept = quantity != 0
    quantity, price, bar = quantity[kept], price[kept], bar[kept]
    after = np.cumsum(quantity)
    if len(after) == 0:
        return np.zeros(0, ROUND_TRIP)
    if after[-1] != 0:
        raise ValueError(f"{after[-1]} contracts are open at the end; evaluate walks that end flat (session_walks)")
    # A flip becomes two fills, to flat and from flat, so that every fill belongs to one trade.
    before = after - quantity
    flips = before * after < 0
    parts = np.where(flips, 2, 1)
    index = np.repeat(np.arange(len(quantity)), parts)
    second = np.zeros(len(index), np.bool_)
    second[np.cumsum(parts)[flips] - 1] = True
    quantity = np.where(flips[index], np.where(second, after[index], -before[index]), quantity[index])
    price, bar = price[index], bar[index]
    after = np.cumsum(quantity)
    opens = (after - quantity) == 0
    trade = np.cumsum(opens) - 1
    trips = np.zeros(int(opens.sum()), ROUND_TRIP)
    trips["entry"], trips["exit"] = bar[opens], bar[after == 0]
    trips["fees"] = fee * np.bincount(trade, np.abs(quantity))
    trips["net"] = -tick_value * np.bincount(trade, quantity * price) - trips["fees"]
    begin = np.flatnonzero(opens)
    largest = np.maximum.reduceat(np.abs(after), begin)
    trips["contracts"] = largest * np.sign(after[begin])
    return trips
