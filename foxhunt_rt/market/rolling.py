"""Causal rolling statistics over contiguous stretches, without a loop over bars.

Every function takes `start`, the index of the first bar of each bar's stretch (segment or session): a window never
reaches back across it, it is shorter there. All are O(n log window) or better, in float64, and depend on no later bar to
the last bit (sums by `cumsum` are prefix sums; nothing goes through BLAS, whose blocking depends on the length).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .bars import F64, I64

__all__ = ["ema", "lag_sum", "rolling_max", "rolling_mean", "rolling_min", "starts"]


def starts(number: NDArray[np.int32]) -> I64:
    """(n,) int64: index of the first bar with this bar's number, for numbers that ascend."""
    first = np.zeros(len(number), np.int64)
    change = np.flatnonzero(np.diff(number)) + 1
    first[change] = change
    return np.maximum.accumulate(first)


def lag_sum(x: F64, window: int, start: I64) -> F64:
    """Sum of the last `window` values (fewer near `start`). Exactly 0 where all of them are 0."""
    total = np.concatenate(([0.0], np.cumsum(x)))
    i = np.arange(len(x))
    return total[1:] - total[np.maximum(i + 1 - window, start)]


def rolling_mean(x: F64, window: int, start: I64) -> F64:
    """Mean of the last `window` values (fewer near `start`)."""
    i = np.arange(len(x))
    return lag_sum(x, window, start) / (i + 1 - np.maximum(i + 1 - window, start))


def ema(x: F64, span: float, start: I64) -> tuple[F64, int]:
    """Exponential average of weight decay d = 1 - 2 / (span + 1), and its exact memory in bars.

    Truncated after 2^K >= 4 span bars (the weight left out is below exp(-8)) and normalized by the weights in use, so it
    has a finite horizon, which the embargo between folds needs, and no warm-up bias. Summed by doubling:
    S_2m(t) = S_m(t) + d^m S_m(t - m).
    """
    decay = 1.0 - 2.0 / (span + 1.0)
    value, weight = x.copy(), np.ones(len(x))
    age = np.arange(len(x)) - start
    m = 1
    while m < 4 * span:
        use = np.where(age[m:] >= m, decay**m, 0.0)
        value[m:] = value[m:] + use * value[:-m]
        weight[m:] = weight[m:] + use * weight[:-m]
        m *= 2
    average: F64 = value / weight
    return average, m


def rolling_max(x: F64, window: int, start: I64) -> F64:
    """Maximum of the last `window` values (fewer near `start`), by doubling: max over 2m from two maxima over m."""
    value: F64 = x.copy()
    age = np.arange(len(x)) - start
    m = 1
    while m < window:
        shift = min(m, window - m)  # the last step overlaps, which a maximum allows
        older = np.where(age[shift:] >= shift, value[:-shift], -np.inf)
        value[shift:] = np.maximum(value[shift:], older)
        m += shift
    return value


def rolling_min(x: F64, window: int, start: I64) -> F64:
    """Minimum of the last `window` values (fewer near `start`)."""
    return -rolling_max(-x, window, start)
