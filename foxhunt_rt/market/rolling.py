"""Causal rolling statistics over contiguous stretches, without a loop over bars.

Every function takes the `Stretches` (segments or sessions) of the series: a window never reaches back across the begin of
one, it is shorter there. All are O(n log window) or better, in float64, and depend on no later bar to the last bit (sums
by `cumsum` are prefix sums; nothing goes through BLAS, whose blocking depends on the length).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from .bars import F64, I64

__all__ = ["Stretches", "ema", "lag_sum", "rolling_max", "rolling_mean", "rolling_min"]


@dataclasses.dataclass(frozen=True)
class Stretches:
    """Consecutive stretches of a series of n bars.

    Attributes
    ----------
    bounds : list of (int, int)
        (first bar, bar after the last) of each. A loop over these is a loop over segments, not over bars.
    first : int64 (n,)
        First bar of each bar's stretch.
    age : int64 (n,)
        Bars since the first of the stretch, from 0.
    """

    bounds: list[tuple[int, int]]
    first: I64
    age: I64

    @staticmethod
    def of(number: NDArray[np.int32]) -> Stretches:
        """The runs of equal numbers (`Bars.segment`, `Bars.session`)."""
        n = len(number)
        begin = np.concatenate(([0], np.flatnonzero(np.diff(number)) + 1))
        first = np.repeat(begin, np.diff(np.append(begin, n)))
        return Stretches(list(zip(begin.tolist(), [*begin[1:].tolist(), n])), first, np.arange(n) - first)


def lag_sum(x: F64, window: int, stretches: Stretches) -> F64:
    """Sum of the last `window` values (fewer where the stretch begins). Exactly 0 where all of them are 0."""
    total = np.concatenate(([0.0], np.cumsum(x)))
    result = np.empty(len(x))
    for lo, hi in stretches.bounds:
        full = min(lo + window, hi)
        result[lo:full] = total[lo + 1 : full + 1] - total[lo]
        result[full:hi] = total[full + 1 : hi + 1] - total[full + 1 - window : hi + 1 - window]
    return result


def rolling_mean(x: F64, window: int, stretches: Stretches) -> F64:
    """Mean of the last `window` values (fewer where the stretch begins)."""
    count = np.minimum(stretches.age + 1, window)
    mean: F64 = lag_sum(x, window, stretches) / count
    return mean


def ema(x: F64, span: float, stretches: Stretches) -> tuple[F64, int]:
    """Exponential average of weight decay d = 1 - 2 / (span + 1), and its exact memory in bars.

    Truncated after m = 2^K >= 4 span bars (the weight left out is below exp(-8)) and normalized by the weights in use, so it
    has a finite horizon, which the embargo between folds needs, and no warm-up bias. Summed by doubling:
    S_2m(t) = S_m(t) + d^m S_m(t - m).
    """
    decay = 1.0 - 2.0 / (span + 1.0)
    value: F64 = x.copy()
    m = 1
    while m < 4 * span:
        for lo, hi in stretches.bounds:
            if hi - lo > m:
                value[lo + m : hi] += decay**m * value[lo : hi - m]  # the product is made before the sum is stored
        m *= 2
    weight = np.cumsum(decay ** np.arange(m))  # by the number of bars in use
    value /= weight[np.minimum(stretches.age, m - 1)]
    return value, m


def rolling_max(x: F64, window: int, stretches: Stretches) -> F64:
    """Maximum of the last `window` values (fewer where the stretch begins), by doubling: max over 2m from two maxima over m."""
    value: F64 = x.copy()
    m = 1
    while m < window:
        shift = min(m, window - m)  # the last step overlaps, which a maximum allows
        for lo, hi in stretches.bounds:
            if hi - lo > shift:
                value[lo + shift : hi] = np.maximum(value[lo + shift : hi], value[lo : hi - shift])
        m += shift
    return value


def rolling_min(x: F64, window: int, stretches: Stretches) -> F64:
    """Minimum of the last `window` values (fewer where the stretch begins)."""
    return -rolling_max(-x, window, stretches)
