"""Known failure K11: Q-values were reported as -1e30, the seed of a maximum that left NaN out.

Q = sum z softmax cannot leave the support, so such a number says that something was not a number. Here NaN survives every
reduction, and the seed of none is a number that could be taken for a result. The kernel also computes the old maximum, which
shows that these inputs tell the two apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime

COLUMNS = ("max", "min", "argmax", "index", "warp_max", "softmax", "seeded")


def reduce(rt: Runtime, rows: npt.NDArray[np.float32], threads: int = 64) -> dict[str, npt.NDArray[Any]]:
    """Each reduction of each row."""
    count, n = rows.shape
    x, y = rt.array(rows, "test.rows"), rt.zeros((count, len(COLUMNS)), np.float32, "test.reduced")
    rt.ungraphed("test.reductions").launch(
        "reduce_probe", (count,), (threads,), {"x": x, "y": y, "rows": count, "n": n}
    )
    out = dict(zip(COLUMNS, y.to_numpy().T, strict=True))
    x.free()
    y.free()
    return out


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 31, 32, 33, 100, 257])
def test_reductions_agree_with_numpy(runtime: Runtime, n: int, threads: int) -> None:
    rows = np.random.default_rng(n).integers(-3, 4, (6, n)).astype(np.float32)  # small integers: ties
    rows[1] = -np.inf
    rows[2] -= 2e30  # below the old seed
    out = reduce(runtime, rows, threads)
    for name in ("max", "argmax", "warp_max"):
        np.testing.assert_array_equal(out[name], rows.max(1), err_msg=name)
    np.testing.assert_array_equal(out["min"], rows.min(1))
    np.testing.assert_array_equal(out["index"], rows.argmax(1))
    assert (out["seeded"][1:3] == np.float32(-1e30)).all(), "the old maximum gives its seed where all is lower"


@pytest.mark.parametrize("n", [1, 2, 8, 31, 33, 100])
def test_one_nan_anywhere_is_the_result(runtime: Runtime, n: int) -> None:
    rows = np.tile(np.random.default_rng(n).normal(size=n).astype(np.float32), (n, 1))
    np.fill_diagonal(rows, np.nan)
    out = reduce(runtime, rows)
    for name in ("max", "min", "argmax", "warp_max", "softmax"):
        assert np.isnan(out[name]).all(), name
    np.testing.assert_array_equal(out["index"], np.arange(n), err_msg="the argmax of a row with NaN stands at the NaN")
    assert not np.isnan(out["seeded"]).any(), "the old maximum hides it"


def test_a_row_of_nan_gave_the_seed_of_the_old_maximum(runtime: Runtime) -> None:
    """The number that was reported, from the inputs that gave it."""
    out = reduce(runtime, np.full((1, 51), np.nan, np.float32))
    assert out["seeded"][0] == np.float32(-1e30)
    assert np.isnan(out["max"][0]) and out["index"][0] == 0
