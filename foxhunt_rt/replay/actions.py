"""Factored actions as one integer: mixed radix over the branches, branch 0 slowest (as NumPy's C order counts)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import FoxhuntError

__all__ = ["ActionError", "decode_actions", "encode_actions"]


class ActionError(FoxhuntError):
    """A choice or an action outside the action space, or branches that span none."""


def _check_branches(branches: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(n) for n in branches)
    if not sizes or min(sizes) < 1 or math.prod(sizes) >= 2**31:
        raise ActionError(f"branches {sizes} span no action space of 32 bits; give sizes of at least 1")
    return sizes


def encode_actions(choices: npt.ArrayLike, branches: Sequence[int]) -> npt.NDArray[np.int32]:
    """One integer per row of choices.

    Parameters
    ----------
    choices : array_like of int, shape (..., len(branches))
        The choice in each branch.
    branches : sequence of int
        Number of choices of each branch.

    Returns
    -------
    ndarray of int32, shape (...)

    Raises
    ------
    ActionError
        A choice lies outside its branch.
    """
    sizes = _check_branches(branches)
    array = np.asarray(choices)
    if not np.issubdtype(array.dtype, np.integer) or array.ndim < 1 or array.shape[-1] != len(sizes):
        raise ActionError(
            f"choices {array.dtype}{list(array.shape)} are no integers of shape (..., {len(sizes)}); give one a branch"
        )
    if np.any(array < 0) or np.any(array >= np.array(sizes)):
        raise ActionError(f"a choice lies outside branches {sizes}; choices count from 0")
    return np.ravel_multi_index(tuple(np.moveaxis(array, -1, 0)), sizes).astype(np.int32)


def decode_actions(actions: npt.ArrayLike, branches: Sequence[int]) -> npt.NDArray[np.int32]:
    """The choice in each branch; the inverse of `encode_actions`.

    Parameters
    ----------
    actions : array_like of int, shape (...)
    branches : sequence of int
        Number of choices of each branch.

    Returns
    -------
    ndarray of int32, shape (..., len(branches))

    Raises
    ------
    ActionError
        An action lies outside the action space.
    """
    sizes = _check_branches(branches)
    array = np.asarray(actions)
    count = math.prod(sizes)
    if not np.issubdtype(array.dtype, np.integer) or np.any(array < 0) or np.any(array >= count):
        raise ActionError(f"actions of branches {sizes} are integers from 0 to {count - 1}")
    return np.stack(np.unravel_index(array, sizes), axis=-1).astype(np.int32)
