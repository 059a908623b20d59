"""Windows of past states by the rules alone, for the float64 oracles of blocks in front of the trunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import oracle


def windows_of(rows: oracle.Transitions, index: npt.NDArray[np.int32], n_step: int,
               window: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:  # fmt: skip
    """(states (B, L, S), lengths (B,)) that end in s, and in s', of the rows drawn; no row of ``rows`` was overwritten."""
    e = rows.environments
    over = rows.terminated | rows.truncated

    def padded(states: list[Any]) -> tuple[Any, int]:
        kept = states[-window:]
        zeros = [np.zeros(rows.state.shape[1])] * (window - len(kept))
        return np.array([*zeros, *kept]), len(kept)

    before, after = [], []
    for first in map(int, index):
        episode, at = [rows.state[first]], first - e
        while at >= 0 and not over[at]:
            episode.insert(0, rows.state[at])
            at -= e
        before.append(padded(episode))
        last, steps = first, 1
        while steps < n_step and not over[last]:
            last, steps = last + e, steps + 1
            episode.append(rows.state[last])
        after.append(padded([*episode, rows.next_state[last]]))
    return tuple((np.array([w for w, _ in part]), np.array([n for _, n in part])) for part in (before, after))  # type: ignore[return-value]


__all__ = ["windows_of"]
