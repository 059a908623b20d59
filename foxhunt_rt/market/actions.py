"""The factored action: direction, size, order type and urgency in one i32, mixed radix, direction slowest.

    action = ((direction * 4 + size) * 3 + order) * 3 + urgency

Direction and size name the position wanted after the bar (`docs/environment.md`); order type and urgency say how the
difference is traded. The same numbers stand in `cuda_src/abi/market.h`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """Joins branch choices into actions.

    Parameters
    ----------
    parts : integers (..., 4)
        A choice of each branch, from 0.

    Returns
    -------
    int32 (...)

    Raises
    ------
    ValueError
        A choice is outside its branch, or the last axis is not 4 long.
    """
    array = _integers(parts, "choices")
    if array.ndim == 0 or array.shape[-1] != len(BRANCHES):
        raise ValueError(f"choices have shape {array.shape}; give {len(BRANCHES)} in the last axis")
    if np.any(array < 0) or np.any(array >= np.array(BRANCHES)):
        raise ValueError(f"a choice is outside its branch; give 0 to n - 1 for branches {BRANCHES}")
    action = np.zeros(array.shape[:-1], np.int64)
    for branch, count in enumerate(BRANCHES):
        action = action * count + array[..., branch]
    return action.astype(np.int32)


def decode_actions(actions: ArrayLike) -> NDArray[np.int32]:
    """Splits actions into branch choices: int32 (..., 4). The inverse of `encode_actions`; same errors."""
    rest = _integers(actions, "actions")
    if np.any(rest < 0) or np.any(rest >= ACTIONS):
        raise ValueError(f"an action is outside [0, {ACTIONS}); give encoded actions")
    parts = []
    for count in reversed(BRANCHES):
        parts.append(rest % count)
        rest = rest // count
    return np.stack(parts[::-1], axis=-1).astype(np.int32)


def mirror_actions(actions: ArrayLike) -> NDArray[np.int32]:
    """The same actions with long and short swapped; size, order type and urgency stay."""
    parts = decode_actions(actions)
    parts[..., 0] = BRANCHES[0] - 1 - parts[..., 0]
    return encode_actions(parts)


def action_name(action: int) -> str:
    """For people: `long half limit passive`."""
    return " ".join(names[choice] for names, choice in zip(CHOICE_NAMES, decode_actions(action), strict=True))


def _integers(values: ArrayLike, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} have dtype {array.dtype}; give integers")
    return array.astype(np.int64)
