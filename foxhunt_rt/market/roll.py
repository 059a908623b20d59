"""One series from a file of many: calendar spreads out, one symbol chosen, or the front month of a futures chain.

The front month of a trading date is the expiry with the largest volume on the date before (what a trader knew), or on
the date itself where the date before is missing from the file; an expiry once left is not taken up again. Each roll ends a
segment, so that neither a return nor a position crosses it. `adjust` moves the earlier prices to the level of the later
expiry: by the difference (ticks and PnL stay exact) or by the ratio (returns stay exact); the step is the middle one of
the observations nearest in time at which both expiries traded.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from .bars import BarsError
from .contract import futures_root, preset_of
from .read import RawBars
from .sessions import trading_date

__all__ = ["choose_symbol", "outrights"]

_NEAREST = 61  # observations of the roll's price step: one hour of minutes


def outrights(raw: RawBars, *, symbol: str) -> RawBars:
    """The rows of `symbol` (a ticker, an expiry, or a root; "" for all) without calendar spreads (`ESZ3-ESH4`)."""
    names = np.array(raw.symbols)
    spread = np.array(["-" in name or ":" in name for name in raw.symbols])
    wanted = ~spread
    if symbol:
        wanted = np.array(
            [name == symbol or (futures_root(name) == symbol and not s) for name, s in zip(names, spread)]
        )
        if not wanted.any():
            if raw.symbols == ("",):
                raise BarsError(
                    f"{raw.source}: the file names no symbol; leave market.symbol out and set market.contract"
                )
            held = ", ".join(raw.symbols[:8])
            raise BarsError(f"{raw.source}: symbol {symbol!r} is not in the file (it holds {held}); choose one of them")
    if not wanted.any():
        raise BarsError(f"{raw.source}: the file holds calendar spreads only; fetch the outright contracts")
    if wanted.all():
        return raw
    keep = wanted[raw.code]
    left_out = int((spread & ~wanted)[raw.code].sum())
    return raw.take(keep).with_note(f"{left_out} rows of calendar spreads left out" if left_out else "")


def choose_symbol(raw: RawBars, *, adjust: str) -> RawBars:
    """One bar a time stamp: the only symbol of the file, or the front month of its only futures chain."""
    codes = np.unique(raw.code)
    if codes.size == 1:
        return dataclasses.replace(raw, symbol=raw.symbols[int(codes[0])])
    roots = {futures_root(raw.symbols[int(code)]) for code in codes}
    if len(roots) != 1 or None in roots:
        held = ", ".join(raw.symbols[int(code)] for code in codes[:8])
        raise BarsError(f"{raw.source}: {codes.size} symbols in one file ({held}); choose one: --set market.symbol=...")
    return _front_month(raw.take(np.argsort(raw.ts, kind="stable")), str(roots.pop()), adjust)


def _front_month(raw: RawBars, root: str, adjust: str) -> RawBars:
    preset = preset_of(root)
    date = trading_date(raw.ts, preset.calendar if preset else "utc")
    dates, day = np.unique(date, return_inverse=True)
    front = _leaders(raw, dates, day)
    chosen = raw.take(raw.code == front[day])
    rolled = np.zeros(len(chosen), np.int32)
    rolled[1:] = np.diff(chosen.code) != 0
    order = [int(chosen.code[0]), *(int(code) for code in chosen.code[1:][rolled[1:] == 1])]
    contracts = tuple(raw.symbols[code] for code in order)
    chosen = dataclasses.replace(chosen, symbol=root, contracts=contracts, segment=np.cumsum(rolled).astype(np.int32))
    return _back_adjust(raw, chosen, order, adjust)


def _leaders(raw: RawBars, dates: NDArray[np.int64], day: NDArray[np.intp]) -> NDArray[np.int64]:
    """Code of the front month on each date."""
    held = len(raw.symbols)
    volume = np.bincount(day * held + raw.code, raw.volume, len(dates) * held).reshape(len(dates), held)
    rows = np.bincount(day * held + raw.code, minlength=len(dates) * held).reshape(len(dates), held)
    # Weekdays from one date to the next: more than one means that the date before is not in the file.
    apart = np.busday_count(dates[:-1].astype("datetime64[D]"), dates[1:].astype("datetime64[D]"))
    front = np.full(len(dates), -1, np.int64)
    left: set[int] = set()
    for d in range(len(dates)):
        basis = volume[d - 1] if d and apart[d - 1] <= 1 else volume[d]
        usable = np.array([rows[d, code] > 0 and code not in left for code in range(held)])
        if not usable.any():
            continue  # only expiries that were rolled out of: a date without a bar
        best = int(np.argmax(np.where(usable, basis, -1.0)))
        if d and front[d - 1] >= 0 and usable[front[d - 1]] and basis[best] <= basis[front[d - 1]]:
            best = int(front[d - 1])  # a tie keeps the contract
        if d and front[d - 1] >= 0 and best != front[d - 1]:
            left.add(int(front[d - 1]))
        front[d] = best
    return front


def _back_adjust(raw: RawBars, chosen: RawBars, order: list[int], adjust: str) -> RawBars:
    if adjust not in ("none", "difference", "ratio"):
        raise BarsError(f"unknown adjustment {adjust!r}; choose none, difference or ratio")
    shift, factor, notes = np.zeros(len(chosen)), np.ones(len(chosen)), []
    for k in range(len(order) - 1):
        at = int(np.searchsorted(chosen.segment, k + 1))
        pair = f"{raw.symbols[order[k]]} to {raw.symbols[order[k + 1]]}"
        old, new = raw.code == order[k], raw.code == order[k + 1]
        common, i, j = np.intersect1d(raw.ts[old], raw.ts[new], assume_unique=True, return_indices=True)
        if not common.size or adjust == "none":
            notes.append(f"roll {pair}: {'not adjusted' if common.size else 'no minute in common, not adjusted'}")
            continue
        near = np.argsort(np.abs(common - chosen.ts[at]), kind="stable")[:_NEAREST]
        before, after = raw.close[old][i[near]], raw.close[new][j[near]]
        step = np.sort(after - before if adjust == "difference" else after / before)[(len(near) - 1) // 2]
        if adjust == "difference":
            shift[:at] += step
        else:
            factor[:at] *= step
        notes.append(f"roll {pair}: earlier prices {'moved by' if adjust == 'difference' else 'times'} {step:.6g}")
    prices = {name: getattr(chosen, name) * factor + shift for name in ("open", "high", "low", "close")}
    if min(float(price.min()) for price in prices.values()) <= 0:
        raise BarsError(f"{raw.source}: back-adjusted prices fall to zero; use --set market.adjust=ratio")
    return dataclasses.replace(chosen, **prices).with_note(*notes)
