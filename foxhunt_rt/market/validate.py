"""Checks of bars at load: each rule is counted and reported with its first places, and a policy decides what follows.

Two kinds of rule. A *fault* cannot be right (a negative price, a bar whose high is below its low, a price from the
future); a *doubt* may be (a spike can be a thin print) and only counts as a fault when `strict` is set.

    raise   the first fault ends the load with one line
    drop    faulty rows are removed and counted
    mark    faulty rows stay, to be looked at, and carry the rule's bit in `Bars.mark`; faults that no environment
            can trade on (NaN, crossed, wrong order) still raise

The rule `lookahead_filler` deserves its name: a published stock series prints a flat bar of volume 0 for each minute
without a trade, priced at the *next* trade. 55 % of its bars tell the future, and a learner finds that in minutes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .bars import Bars, BarsError, Mask, _iso, is_time_clock
from .read import RawBars

__all__ = ["RULES", "Problem", "ValidationReport", "check_rows", "check_series", "lookahead_filler"]

#: Rule -> (bit in `Bars.mark`, fault or doubt, what it says).
RULES: dict[str, tuple[int, str, str]] = {
    "not_a_number": (1 << 0, "fault", "a price or volume is missing or not finite"),
    "non_positive": (1 << 1, "fault", "a price is zero or negative"),
    "crossed": (1 << 2, "fault", "high is below open, close or low, or low is above them"),
    "negative_volume": (1 << 3, "fault", "the volume is negative"),
    "order": (1 << 4, "fault", "the time is earlier than that of a row before it"),
    "duplicate": (1 << 5, "fault", "the time stamp repeats"),
    "lookahead_filler": (1 << 6, "fault", "a bar without volume holds the price of the next trade"),
    "stuck": (1 << 7, "doubt", "the same bar repeats 60 times or more"),
    "spike": (1 << 8, "doubt", "the close leaves and returns by over 25 typical steps and 1 %"),
    "zero_volume": (1 << 9, "info", "the volume is zero"),
    "gap": (1 << 10, "info", "bars are missing inside a session"),
}
_MARKABLE = ("lookahead_filler", "stuck", "spike")
_STUCK_RUN = 60
_FIRST = 3


@dataclasses.dataclass(frozen=True)
class Problem:
    """One rule's count; `rows` and `times` give the first three places (rows as lines of a CSV file, from 1)."""

    rule: str
    severity: str
    count: int
    rows: tuple[int, ...]
    times: tuple[str, ...]

    def line(self) -> str:
        """One line for the terminal."""
        where = f"; first at {', '.join(self.times)}" if self.times else ""
        return f"{self.rule} ({self.severity}): {self.count} bars: {RULES[self.rule][2]}{where}"


@dataclasses.dataclass
class ValidationReport:
    """What the checks found, by rule. Made empty and filled by `check_rows`, `check_series` and `add_gaps`."""

    source: str
    rows: int
    strict: bool
    problems: dict[str, Problem] = dataclasses.field(default_factory=dict)
    dropped: int = 0

    def add(self, raw: RawBars, rule: str, mask: Mask) -> None:
        """Counts the rows of `mask` under `rule`; a rule without rows leaves no entry."""
        where = np.flatnonzero(mask)
        if not where.size:
            return
        severity = "fault" if self.strict and RULES[rule][1] == "doubt" else RULES[rule][1]
        first = where[np.argsort(raw.row[where], kind="stable")[:_FIRST]]
        self.problems[rule] = Problem(
            rule, severity, int(where.size), tuple(map(int, raw.row[first])), tuple(_iso(t) for t in raw.ts[first])
        )

    def add_gaps(self, bars: Bars) -> None:
        """Counts the bars that follow a hole inside a session: minutes without a trade, or lost ones (time bars only)."""
        step = np.diff(bars.ts)
        inside = (bars.session[1:] == bars.session[:-1]) & (step > 0)
        if not is_time_clock(bars.clock) or not inside.any():
            return
        values, counts = np.unique(step[inside], return_counts=True)
        where = 1 + np.flatnonzero(inside & (step > values[np.argmax(counts)]))
        if where.size:
            times = tuple(_iso(t) for t in bars.ts[where[:_FIRST]])
            self.problems["gap"] = Problem("gap", "info", int(where.size), (), times)

    @property
    def faults(self) -> list[Problem]:
        """The rules that count as faults and have rows."""
        return [problem for problem in self.problems.values() if problem.severity == "fault"]

    def lines(self) -> list[str]:
        """One line a rule that found something."""
        return [problem.line() for problem in self.problems.values()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        problems = {rule: dataclasses.asdict(problem) for rule, problem in self.problems.items()}
        return {"source": self.source, "rows": self.rows, "dropped": self.dropped, "problems": problems}


def check_rows(raw: RawBars, policy: str, report: ValidationReport) -> RawBars:
    """Rules that need one row, or the rows of one symbol in file order; returns the rows that the policy leaves."""
    prices = (raw.open, raw.high, raw.low, raw.close)
    nan = ~np.isfinite(raw.volume)
    positive = np.ones(len(raw), np.bool_)
    for price in prices:
        nan |= ~np.isfinite(price)
        positive &= ~(price <= 0)
    top = np.maximum(np.maximum(raw.open, raw.close), raw.low)
    bottom = np.minimum(np.minimum(raw.open, raw.close), raw.high)
    faults = {
        "not_a_number": nan,
        "non_positive": ~positive & ~nan,
        "crossed": ((raw.high < top) | (raw.low > bottom)) & positive & ~nan,
        "negative_volume": raw.volume < 0,
    }
    faults["order"], faults["duplicate"] = _order(raw)
    return _apply(raw, faults, policy, report)


def check_series(raw: RawBars, policy: str, report: ValidationReport) -> RawBars:
    """Rules that compare a bar with its neighbours; `raw` holds one bar a time stamp."""
    report.add(raw, "zero_volume", raw.volume == 0)
    found = {"lookahead_filler": lookahead_filler(raw)}
    if is_time_clock(raw.clock):
        found["stuck"] = _stuck(raw)
        found["spike"] = _spike(raw)
    return _apply(raw, found, policy, report)


def _apply(raw: RawBars, found: dict[str, Mask], policy: str, report: ValidationReport) -> RawBars:
    for rule, mask in found.items():
        report.add(raw, rule, mask)
    faulty = {
        rule: mask
        for rule, mask in found.items()
        if rule in report.problems and report.problems[rule].severity == "fault" and mask.any()
    }
    if not faulty:
        return raw
    if policy == "raise":
        _raise(raw, faulty, report, "mend the file, or drop such rows: --set market.policy=drop")
    if policy == "mark":
        lost = {rule: mask for rule, mask in faulty.items() if rule not in _MARKABLE}
        if lost:
            _raise(raw, lost, report, "such a row cannot be kept; drop it: --set market.policy=drop")
        mark = raw.mark.copy()
        for rule, mask in faulty.items():
            mark[mask] |= np.uint16(RULES[rule][0])
        warning = (
            f"{int((mark != 0).sum())} bars are marked ({', '.join(faulty)}) and kept: results on them mean nothing"
        )
        return dataclasses.replace(raw, mark=mark).with_note(warning)
    if policy != "drop":
        raise BarsError(f"unknown policy {policy!r}; choose raise, drop or mark")
    keep = ~np.logical_or.reduce(list(faulty.values()))
    report.dropped += int(len(raw) - keep.sum())
    if not keep.any():
        raise BarsError(
            f"{raw.source}: no row is left after dropping faults ({', '.join(faulty)}); fetch the file again"
        )
    return raw.take(keep)


def _raise(raw: RawBars, faulty: dict[str, Mask], report: ValidationReport, mend: str) -> None:
    rule = min(faulty, key=lambda r: int(raw.row[faulty[r]].min()))
    first = report.problems[rule]
    i = int(np.flatnonzero(raw.row == first.rows[0])[0])
    values = (
        f"open {raw.open[i]:g} high {raw.high[i]:g} low {raw.low[i]:g} close {raw.close[i]:g} volume {raw.volume[i]:g}"
    )
    others = "" if first.count == 1 else f", {first.count} rows in all"
    raise BarsError(
        f"{raw.source}: row {first.rows[0]} ({first.times[0]}): {RULES[rule][2]} ({values}; rule {rule}{others}); {mend}"
    )


def _order(raw: RawBars) -> tuple[Mask, Mask]:
    """Rows earlier than one before them, and rows that repeat a time stamp, each within its symbol and in file order."""
    late = np.zeros(len(raw), np.bool_)
    repeat = np.zeros(len(raw), np.bool_)
    by_symbol = np.argsort(raw.code, kind="stable")
    bounds = np.flatnonzero(np.diff(raw.code[by_symbol])) + 1
    for rows in np.split(by_symbol, bounds):
        ts = raw.ts[rows]
        newest = np.maximum.accumulate(ts)
        late[rows[1:]] = ts[1:] < newest[:-1]
        if is_time_clock(raw.clock):
            repeat[rows[1:]] = ts[1:] == newest[:-1]
    return late, repeat


def lookahead_filler(raw: RawBars) -> Mask:
    """Bars of volume 0 that hold the next traded close although the last traded close was another price.

    When over half of the zero-volume bars that moved did so, the series is filled with the future throughout, and all its
    flat zero-volume bars are flagged, those whose price happens to agree with the last trade as well.
    """
    flags = np.zeros(len(raw), np.bool_)
    traded = np.flatnonzero(raw.volume > 0)
    flat = (raw.volume == 0) & (raw.high == raw.low)
    rows = np.flatnonzero(flat)
    if not traded.size or not rows.size:
        return flags
    after = np.searchsorted(traded, rows)
    rows, after = rows[(after > 0) & (after < traded.size)], after[(after > 0) & (after < traded.size)]
    moved = raw.close[rows] != raw.close[traded[after - 1]]
    leaks = moved & (raw.close[rows] == raw.close[traded[after]])
    flags[rows[leaks]] = True
    if leaks.sum() >= 3 and leaks.sum() > 0.5 * moved.sum():
        flags |= flat
    return flags


def _stuck(raw: RawBars) -> Mask:
    """Runs of at least 60 bars with the same four prices and the same volume, from the second bar of the run on."""
    same = np.zeros(len(raw), np.bool_)
    same[1:] = True
    for column in (raw.open, raw.high, raw.low, raw.close, raw.volume):
        same[1:] &= column[1:] == column[:-1]
    starts = np.flatnonzero(~same)
    lengths = np.diff(np.append(starts, len(raw)))
    return same & np.repeat(lengths >= _STUCK_RUN, lengths)


def _spike(raw: RawBars) -> Mask:
    """Closes away from both neighbours, on the same side, by over 25 median absolute steps and 1 % (time gaps left out)."""
    flags = np.zeros(len(raw), np.bool_)
    if len(raw) < 3:
        return flags
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.diff(np.log(raw.close))
    near = np.diff(raw.ts) < 3_600_000_000_000
    moves = np.abs(step[near & (step != 0)])
    if not moves.size:
        return flags
    limit = max(0.01, 25.0 * float(np.median(moves)))
    into, out = step[:-1], step[1:]
    flags[1:-1] = (np.minimum(np.abs(into), np.abs(out)) > limit) & (into * out < 0) & near[:-1] & near[1:]
    return flags
