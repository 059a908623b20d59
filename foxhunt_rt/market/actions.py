"""The factored action: direction, size, order type and urgency in one i32, mixed radix, direction slowest.

    action = ((direction * 4 + size) * 3 + order) * 3 + urgency

Direction and size name the position wanted after the bar (`docs/environment.md`); order type and urgency say how the
difference is traded. The same numbers stand in `cuda_src/abi/market.h`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foxhunt_rt.replay import actions as replay_actions

__all__ = [
    "ACTIONS",
    "BRANCHES",
    "BRANCH_NAMES",
    "CHOICE_NAMES",
    "action_name",
    "decode_actions",
    "encode_actions",
    "mirror_actions",
]

BRANCH_NAMES = ("direction", "size", "order", "urgency")
CHOICE_NAMES = (
    ("short", "flat", "long"),
    ("quarter", "half", "three_quarters", "full"),
    ("market", "limit", "stop"),
    ("passive", "normal", "aggressive"),
)
BRANCHES = tuple(len(names) for names in CHOICE_NAMES)
"""Choices a branch: (3, 4, 3, 3)."""
ACTIONS = 108
"""Number of actions, the product of BRANCHES."""


def encode_actions(parts: ArrayLike) -> NDArray[np.int32]:
    """Joins branch choices into actions: int32 (...) from integers (..., 4), each from 0.

    Raises
    ------
    foxhunt_rt.replay.ActionError
        A choice is outside its branch, or the last axis is not 4 long.
    """
    return replay_actions.encode_actions(parts, BRANCHES)


def decode_actions(actions: ArrayLike) -> NDArray[np.int32]:
    """Splits actions into branch choices: int32 (..., 4). The inverse of `encode_actions`; same error."""
    return replay_actions.decode_actions(actions, BRANCHES)


def mirror_actions(actions: ArrayLike) -> NDArray[np.int32]:
    """The same actions with long and short swapped; size, order type and urgency stay."""
    parts = decode_actions(actions)
    parts[..., 0] = BRANCHES[0] - 1 - parts[..., 0]
    return encode_actions(parts)


def action_name(action: int) -> str:
    """For people: `long half limit passive`."""
    return " ".join(names[choice] for names, choice in zip(CHOICE_NAMES, decode_actions(action), strict=True))
