"""Trading dates, sessions and segments from time stamps.

A session ends where the pause to the next bar reaches the contract's `session_gap_minutes`, or where the trading date
changes; a segment ends where the contract rolled or where a weekday or more is missing. Trading dates need the exchange's local
time. The rules of the few zones needed are written out here, so that no time-zone database has to be installed (the
tests compare them with `zoneinfo`).
"""

from __future__ import annotations

import datetime

import numpy as np
from numpy.typing import NDArray

from .bars import I64, Bars
from .contract import ContractSpec
from .read import RawBars

__all__ = ["CALENDARS", "cut_sessions", "local_time", "trading_date"]

HOUR = 3_600_000_000_000
DAY = 24 * HOUR

#: Calendar -> (offset of standard time from UTC in hours, has US summer time, local hour at which a trading date begins).
#: CME Globex and spot FX begin the next date at 17:00; Moscow has been UTC+3 without summer time since October 2014.
CALENDARS: dict[str, tuple[int, bool, int]] = {
    "cme": (-6, True, 17),
    "us-equity": (-5, True, 0),
    "fx": (-5, True, 17),
    "moex": (3, False, 0),
    "utc": (0, False, 0),
}


def _sunday(year: int, month: int, number: int) -> datetime.datetime:
    """The `number`-th Sunday of the month (from 1; 0: the last), midnight."""
    if number == 0:
        last = datetime.datetime(year, month + 1, 1) - datetime.timedelta(days=1)
        return last - datetime.timedelta(days=(last.weekday() + 1) % 7)
    first = datetime.datetime(year, month, 1)
    return first + datetime.timedelta(days=(6 - first.weekday()) % 7 + 7 * (number - 1))


def _us_summer(year: int) -> tuple[datetime.datetime, datetime.datetime]:
    """Local dates of the US clock changes, at 2:00 each (Energy Policy Act of 2005 from 2007 on; before, 1987 to 2006)."""
    return (_sunday(year, 3, 2), _sunday(year, 11, 1)) if year >= 2007 else (_sunday(year, 4, 1), _sunday(year, 10, 0))


def local_time(ts: I64, calendar: str) -> I64:
    """(n,) int64: nanoseconds on the exchange's wall clock."""
    offset, summer, _ = CALENDARS[calendar]
    local: I64 = ts + offset * HOUR
    if summer and len(ts):
        years = local.astype("datetime64[ns]").astype("datetime64[Y]").astype(np.int64) + 1970
        for year in np.unique(years):
            start, end = (int(np.datetime64(day, "ns").astype(np.int64)) for day in _us_summer(int(year)))
            # 2:00 standard in spring; in autumn 2:00 daylight is 1:00 standard.
            local[(years == year) & (local >= start + 2 * HOUR) & (local < end + HOUR)] += HOUR
    return local


def trading_date(ts: I64, calendar: str) -> NDArray[np.int64]:
    """(n,) int64: days since 1970 of the trading date; a Sunday evening on Globex belongs to Monday."""
    start = CALENDARS[calendar][2]
    shift = (24 - start) * HOUR if start else 0
    return np.floor_divide(local_time(ts, calendar) + shift, DAY)


def _weekday_time(ts: I64, calendar: str) -> NDArray[np.float64]:
    """(n - 1,) time from each bar to the next in weekdays: a weekend takes none, an empty Thursday one."""
    result = np.zeros(max(len(ts) - 1, 0))
    long = np.flatnonzero(np.diff(ts) >= 12 * HOUR)
    if long.size:
        start = CALENDARS[calendar][2]
        shift = (24 - start) * HOUR if start else 0

        def weekdays(moment: I64) -> NDArray[np.float64]:
            local = local_time(moment, calendar) + shift
            date = np.floor_divide(local, DAY)
            whole = np.busday_count(np.datetime64(0, "D"), date.astype("datetime64[D]"))
            weekday = np.is_busday(date.astype("datetime64[D]"))
            share: NDArray[np.float64] = np.where(weekday, (local - date * DAY) / DAY, 0.0)
            return share + whole

        result[long] = weekdays(ts[long + 1]) - weekdays(ts[long])
    return result


def cut_sessions(raw: RawBars, spec: ContractSpec) -> Bars:
    """Bars with their session and segment numbers; `raw` holds one contract a time stamp, in order."""
    date = trading_date(raw.ts, spec.calendar)
    new_segment = np.zeros(len(raw), np.bool_)
    new_session = np.zeros(len(raw), np.bool_)
    days = date.astype("datetime64[D]")
    new_segment[1:] = (np.diff(raw.segment) != 0) | (_weekday_time(raw.ts, spec.calendar) >= spec.missing_weekdays)
    new_session[1:] = (np.diff(date) != 0) | (np.diff(raw.ts) >= spec.session_gap_minutes * 60_000_000_000)
    new_session |= new_segment
    segment = np.cumsum(new_segment).astype(np.int32)
    notes = raw.notes
    holes = np.flatnonzero(new_segment[1:] & (np.diff(raw.segment) == 0))
    if holes.size:
        first = ", ".join(f"{days[i]} to {days[i + 1]}" for i in holes[:3])
        notes += (f"{holes.size} holes of missing days end a segment ({first}{', ...' if holes.size > 3 else ''})",)
    return Bars(
        ts=raw.ts,
        open=raw.open,
        high=raw.high,
        low=raw.low,
        close=raw.close,
        volume=raw.volume,
        session=np.cumsum(new_session).astype(np.int32),
        segment=segment,
        mark=raw.mark,
        symbol=raw.symbol,
        clock=raw.clock,
        source=raw.source,
        contracts=raw.contracts,
        notes=notes,
    )
