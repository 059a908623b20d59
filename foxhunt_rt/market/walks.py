"""Walks: which bars each environment goes over.

A walk [start, end) sees the close of bar `start` first and executes last in bar `end - 1`. A decision after the close
of bar t executes in bar t + 1 of the same session, so the last bar of a session carries no decision, and consecutive
walks share one bar: the last one that the first executes in is the first one that the next sees. Every transition
belongs to one walk.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Walks", "session_ends", "session_walks", "split_window"]

I32 = NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Walks:
    """One walk an environment.

    Attributes
    ----------
    start, end : int32 (n,)
        Bars; see the module.
    flatten : int32 (n,)
        1: the position is closed at `end`, a terminal state (evaluation). 0: a walk that ends inside a session is
        truncated.
    steps : int32 (n,)
        Environment steps (decisions) that each walk takes; after them the environment idles.
    """

    start: I32
    end: I32
    flatten: I32
    steps: I32

    def __len__(self) -> int:
        return len(self.start)

    @property
    def longest(self) -> int:
        """Steps until every environment is done."""
        return int(self.steps.max(initial=0))


def session_ends(session: ArrayLike) -> I32:
    """For each bar the index of the last bar of its session: int32 (n,), from session numbers (n,).

    A session is a run of equal numbers. Number anything that must not be traded across (missing days, a contract
    roll) as a new session.
    """
    number = np.asarray(session)
    if number.ndim != 1 or number.size == 0:
        raise ValueError(f"session numbers have shape {number.shape}; give one number a bar, at least one bar")
    last = np.flatnonzero(np.append(number[1:] != number[:-1], True))
    lengths = np.diff(last, prepend=-1)
    return np.repeat(last, lengths).astype(np.int32)


def split_window(ends: I32, first: int, stop: int, environments: int) -> Walks:
    """Splits bars [first, stop) into contiguous walks of equal length, for collection.

    Parameters
    ----------
    ends : int32 (n,)
        `session_ends` of the bars.
    first, stop : int
        The window.
    environments : int
        Number of walks. Their steps differ by one at most.

    Raises
    ------
    ValueError
        The window is not inside the bars, or holds fewer decisions than environments.
    """
    decisions = _decisions(ends, first, stop)
    if environments < 1 or len(decisions) < environments:
        raise ValueError(
            f"bars [{first}, {stop}) hold {len(decisions)} decisions for {environments} environments; "
            "give a longer window or fewer environments"
        )
    cut = np.arange(environments + 1, dtype=np.int64) * len(decisions) // environments
    start, end = decisions[cut[:-1]], decisions[cut[1:] - 1] + 2
    return _walks(start, end, 0, np.diff(cut))


def session_walks(ends: I32, first: int, stop: int) -> Walks:
    """One walk for each session of bars [first, stop), for evaluation: flat before, flat after.

    A session that the window cuts is walked from the window's first bar, or closed at its last. Sessions of a single
    bar carry no decision and are left out.

    Raises
    ------
    ValueError
        The window is not inside the bars, or holds no decision.
    """
    decisions = _decisions(ends, first, stop)
    if len(decisions) == 0:
        raise ValueError(f"bars [{first}, {stop}) hold no decision; give a window with two bars of one session")
    begins = np.flatnonzero(np.append(True, ends[decisions[1:]] != ends[decisions[:-1]]))
    start = decisions[begins]
    end = np.minimum(ends[start].astype(np.int64) + 1, stop)
    return _walks(start, end, 1, np.diff(np.append(begins, len(decisions))))


def _decisions(ends: I32, first: int, stop: int) -> NDArray[np.int64]:
    """Bars of the window whose successor is in the window and in the same session."""
    if not 0 <= first < stop <= len(ends):
        raise ValueError(f"window [{first}, {stop}) is not inside the {len(ends)} bars; give 0 <= first < stop <= bars")
    bars = np.arange(first, stop - 1, dtype=np.int64)
    return bars[ends[first : stop - 1] > bars]


def _walks(start: NDArray[np.int64], end: NDArray[np.int64], flatten: int, steps: NDArray[np.int64]) -> Walks:
    return Walks(*(np.asarray(x).astype(np.int32) for x in (start, end, np.full(len(start), flatten), steps)))
