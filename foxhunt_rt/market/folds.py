"""Walk-forward folds: contiguous windows in time, with an embargo between them.

    fold 0   |---- train ----|e|- validate -|e|- test -|
    fold 1             |---- train ----|e|- validate -|e|- test -|
    fold 2                       |---- train ----|e|- validate -|e|- test -|

The test windows follow one another without a gap or an overlap and end at the last bar. The embargo (Lopez de Prado 2018,
chapter 7) is at least as long as the longest feature or reward horizon, so that no training target reaches into a window
that selects or judges.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .bars import BarsError

__all__ = ["Fold", "walk_forward"]

#: A training window shorter than this cannot fill its feature windows and leave something to learn from.
MIN_TRAIN = 256
MIN_JUDGE = 32


@dataclasses.dataclass(frozen=True)
class Fold:
    """One fold; every pair is (first bar, bar after the last)."""

    index: int
    train: tuple[int, int]
    validate: tuple[int, int]
    test: tuple[int, int]
    embargo: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


def walk_forward(
    bars: int, *, folds: int, validation_share: float, test_share: float, embargo: int, window: str
) -> list[Fold]:
    """Folds over `bars` bars, oldest first.

    Parameters
    ----------
    folds : int
    validation_share, test_share : float
        Of all bars; the test length is the step from fold to fold as well. The training window is what remains of a rolling
        fold: 1 - folds * test_share - validation_share less two embargoes; the defaults (3 folds, 1/8 each) leave 1/2.
    embargo : int
        Bars left out between training and validation and between validation and test.
    window : str
        "rolling" (training windows of equal length) or "expanding" (all begin at the first bar).

    Raises
    ------
    BarsError
        Too few bars for these windows.
    """
    if window not in ("rolling", "expanding"):
        raise BarsError(f"unknown window {window!r}; choose rolling or expanding")
    test, validate = math.floor(bars * test_share), math.floor(bars * validation_share)
    train = bars - folds * test - validate - 2 * embargo
    if train < MIN_TRAIN or min(test, validate) < MIN_JUDGE:
        raise BarsError(
            f"{bars} bars are too few for {folds} folds with an embargo of {embargo} (train {train}, validate {validate}, "
            f"test {test} bars); give more bars, or fewer folds: --set train.folds=1"
        )
    result = []
    for k in range(folds):
        begin = bars - (folds - k) * test  # of the test window
        validate_end = begin - embargo
        train_end = validate_end - validate - embargo
        start = 0 if window == "expanding" else train_end - train
        result.append(
            Fold(k, (start, train_end), (validate_end - validate, validate_end), (begin, begin + test), embargo)
        )
    return result
