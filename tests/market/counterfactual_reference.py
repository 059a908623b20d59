"""What collection adds, from the words of docs/counterfactual.md and the reference environment: float64, one row at a time.

Knows actions by the names of their parts, and nothing of the kernels.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
from numpy.typing import NDArray

from ..replay.oracle import random_words
from .reference_environment import ACTIONS, ReferenceEnvironment, Row

RNG_MARKET = 8
SIZES = (0.25, 0.5, 0.75, 1.0)
ORDERS = ("market", "limit", "stop")
OPPOSITE = {"short": "long", "flat": "flat", "long": "short"}
NUMBER = {parts: number for number, parts in enumerate(ACTIONS)}


def mirrored(action: int) -> int:
    """Long and short swapped."""
    direction, *rest = ACTIONS[action]
    return NUMBER[(OPPOSITE[direction], *rest)]


def changed(action: int, cycle: int, other: int) -> int:
    """The action of a cycle; `other`, 0 or 1, is which of the two others a cycle of three choices takes. Where there is no such
    action, the action itself."""
    direction, size, order, urgency = ACTIONS[action]
    if cycle == 0:
        direction = OPPOSITE[direction]
    elif cycle in (1, 2):
        at = SIZES.index(size) + (1 if cycle == 2 else -1)
        size = SIZES[at] if 0 <= at < len(SIZES) else size
    elif cycle == 3:
        order = ORDERS[(ORDERS.index(order) + 1 + other) % 3]
    elif cycle == 4:
        urgency = (urgency + 1 + other) % 3
    else:
        direction = "flat"
    return NUMBER[(direction, size, order, urgency)]


def draw(action: int, cycles: tuple[int, ...], seed: int, counter: int, environment: int) -> tuple[int, int] | None:
    """(cycle, action) that an environment's step number `counter` plays beside `action`; None where no cycle changes it."""
    possible = [c for c in sorted(cycles) if changed(action, c, 0) != action]
    if not possible:
        return None
    x, y, _, _ = random_words(seed, counter, RNG_MARKET, environment)
    cycle = possible[x * len(possible) >> 32]
    return cycle, changed(action, cycle, y & 1)


def mirror_drawn(share: float, seed: int, counter: int, environment: int, *, added: bool) -> bool:
    """Whether the row of a step, or the one added to it, is stored mirrored."""
    words = random_words(seed, counter, RNG_MARKET, environment)
    return (words[3 if added else 2] >> 8) / 2.0**24 < np.float32(share)


def fed_by(slot: int, environments: int, rows: int, seed: int, counter: int) -> int:
    """The environment that fills counterfactual row `slot` of `rows`."""
    run = [e for e in range(environments) if e * rows // environments == slot]
    return run[random_words(seed, counter, RNG_MARKET, environments + slot)[0] * len(run) >> 32]


def played(env: ReferenceEnvironment, action: int) -> Row:
    """What a step would put out; the environment is left as it is."""
    other = copy.copy(env)
    other.lots = [list(lot) for lot in env.lots]
    return other.step(action)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A row as the learner sees it, one step long."""

    state: NDArray[np.float64]
    action: int
    reward: float
    next_state: NDArray[np.float64]
    terminated: bool


def seen(row: Row, action: int, features: NDArray[np.float32], sign: NDArray[np.float64] | None) -> Seen:
    """A step, mirrored where `sign` is given: states by column, long and short swapped, the reward as it is."""
    state = np.concatenate([features[row.bar], row.portfolio])
    following = np.concatenate([features[row.next_bar], row.next_portfolio])
    if sign is None:
        return Seen(state, action, row.reward, following, row.terminated)
    return Seen(state * sign, mirrored(action), row.reward, following * sign, row.terminated)
