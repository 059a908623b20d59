"""Walk-forward folds: properties over many sizes, the defaults by hand, and the one-line error."""

from __future__ import annotations

import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.market.bars import BarsError
from foxhunt_rt.market.folds import walk_forward


@pytest.mark.parametrize("window", ["rolling", "expanding"])
@pytest.mark.parametrize("embargo", [0, 1, 257])
@pytest.mark.parametrize("folds", [1, 2, 3, 5])
@pytest.mark.parametrize("bars", [5_000, 62_500, 60_429, 9_999])
def test_properties(bars: int, folds: int, embargo: int, window: str) -> None:
    shares = {"validation_share": 0.1, "test_share": 0.1}
    result = walk_forward(bars, folds=folds, embargo=embargo, window=window, **shares)
    assert [fold.index for fold in result] == list(range(folds))
    for fold in result:
        (a, b), (c, d), (e, f) = fold.train, fold.validate, fold.test
        assert 0 <= a < b <= c < d <= e < f <= bars
        assert c - b == embargo  # a target of `embargo` bars from the last training bar stays out of validation
        assert e - d == embargo
        assert d - c == int(bars * 0.1)
        assert f - e == int(bars * 0.1)
    for before, after in zip(result, result[1:]):
        assert after.test[0] == before.test[1]  # contiguous and disjoint
        if window == "rolling":
            assert after.train[1] - after.train[0] == before.train[1] - before.train[0]
            assert after.train[0] - before.train[0] == int(bars * 0.1)
        else:
            assert after.train[0] == before.train[0] == 0
    assert result[-1].test[1] == bars
    assert result[0].train[0] == 0


def test_defaults_by_hand() -> None:
    train = Config().train
    result = walk_forward(
        62_500,
        folds=train.folds,
        validation_share=train.validation_share,
        test_share=train.test_share,
        embargo=257,
        window=train.window,
    )
    assert len(result) == 3
    # 62,500 / 8 = 7,812; train = 62,500 - 4 * 7,812 - 2 * 257 = 30,738
    assert result[0].train == (0, 30_738)
    assert result[0].validate == (30_995, 38_807)
    assert result[0].test == (39_064, 46_876)
    assert result[2].test == (54_688, 62_500)
    assert result[0].to_dict() == {
        "index": 0,
        "train": (0, 30_738),
        "validate": (30_995, 38_807),
        "test": (39_064, 46_876),
        "embargo": 257,
    }


@pytest.mark.parametrize(("bars", "embargo"), [(0, 0), (100, 0), (900, 257), (255, 0)])
def test_too_few_bars(bars: int, embargo: int) -> None:
    with pytest.raises(
        BarsError, match=rf"^{bars} bars are too few for 3 folds with an embargo of {embargo}.*; give more"
    ):
        walk_forward(bars, folds=3, validation_share=0.125, test_share=0.125, embargo=embargo, window="rolling")


def test_unknown_window() -> None:
    with pytest.raises(BarsError, match="rolling or expanding"):
        walk_forward(10_000, folds=3, validation_share=0.1, test_share=0.1, embargo=0, window="sliding")
