"""The oracle of the market of known optimum: the dynamic program over state, position and time left, in float64.

Shares nothing with the environment but the words of docs/environment.md: a decision at a close trades at the next open, costs are
paid a contract and side, and what is held at the end of a session is closed there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

POSITIONS = np.array([-1, 0, 1])


def optimal_values(transition: NDArray[np.float64], mean_move: NDArray[np.float64], side_cost: float,
                   session_bars: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # fmt: skip
    """Values (T, K, 3) in ticks and best positions (T, K, 3), of decisions at the closes 0 .. T - 2 of a session, by state and
    position held. Row T - 1 is the session's end, where nothing is decided: minus the cost of getting out."""
    states = len(mean_move)
    value = np.empty((session_bars, states, 3))
    best = np.ones((session_bars, states, 3), np.int64)
    value[-1] = -side_cost * np.abs(POSITIONS)
    change = -side_cost * np.abs(POSITIONS[None, :] - POSITIONS[:, None])  # (held, wanted)
    for j in range(session_bars - 2, -1, -1):
        # the state at the end decides nothing, so its expectation there is the value itself
        after = transition @ value[j + 1] + mean_move[:, None] * POSITIONS  # (state, wanted)
        choices = change[None] + after[:, None, :]
        best[j], value[j] = choices.argmax(axis=2), choices.max(axis=2)
    return value, POSITIONS[best]


def walk(best: NDArray[np.int64], state: NDArray[np.int64], session_bars: int) -> NDArray[np.int64]:
    """Positions wanted at each close (n,) by the policy `best` (T, K, 3), from flat at every session's start."""
    wanted = np.zeros(len(state), np.int64)
    held = 0
    for t in range(len(state)):
        j = t % session_bars
        if j == 0:
            held = 0
        if j < session_bars - 1:
            held = int(best[j, state[t], held + 1])
        wanted[t] = held
    return wanted
