"""New priorities and the sums above them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import Batch, Replay

from .harness import check_sums, filled, sample, step_block


def update(replay: Replay, index: list[int], td_error: npt.ArrayLike, **step: float) -> None:
    batch = Batch.allocate(replay.runtime, len(index), 1)
    batch.index.copy_from(np.array(index, np.int32))
    batch.td_error.copy_from(np.array(td_error, np.float32))
    replay.record_priorities(replay.runtime.ungraphed("test"), batch, step_block(replay.runtime, **step))  # type: ignore[arg-type]


@pytest.mark.parametrize(("alpha", "eps"), [(0.6, 1e-6), (1.0, 0.0), (0.0, 1e-3), (0.5, 0.01)])
def test_formula(runtime: Runtime, alpha: float, eps: float) -> None:
    replay = filled(runtime, 300, 300)
    td = 10.0 ** np.random.default_rng(0).uniform(-6, 4, 200)
    td[0] = 0.0
    update(replay, list(range(50, 250)), td, alpha_per=alpha, eps_per=eps)
    got = replay.priority.to_numpy()
    expected = (td.astype(np.float32).astype(np.float64) + np.float32(eps)) ** np.float64(np.float32(alpha))
    np.testing.assert_allclose(got[50:250], expected, rtol=2e-6)
    assert (got[:50] == 1).all() and (got[250:300] == 1).all() and not got[300:].any()
    check_sums(replay)
    assert replay.read_state().max_priority == max(1.0, got.max())


def test_of_equal_rows_the_last_counts(runtime: Runtime) -> None:
    replay = filled(runtime, 600, 600)
    # runs within a block, across its end, and longer than the 32 entries that a block takes at once
    index = [3, 3, 3, 255, 255, 256, 256] + [300] * 70 + [599]
    td = np.arange(1, len(index) + 1)
    update(replay, index, td, alpha_per=1.0, eps_per=0.0)
    got = replay.priority.to_numpy()
    assert [got[row] for row in (3, 255, 256, 300, 599)] == [3, 5, 7, 77, 78]
    assert (np.delete(got[:600], [3, 255, 256, 300, 599]) == 1).all()
    check_sums(replay)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_writes_nothing_and_is_counted(runtime: Runtime, bad: float) -> None:
    replay = filled(runtime, 256, 256)
    for alpha in (0.6, 0.0):  # powf(NaN, 0) is 1
        before = replay.priority.to_numpy()
        skipped = replay.read_state().skipped
        update(replay, [1, 2, 2, 9], [0.25, 0.5, bad, bad], alpha_per=alpha, eps_per=0.0)
        after = replay.priority.to_numpy()
        assert after[1] == np.float32(0.25) ** np.float32(alpha)
        np.testing.assert_array_equal(np.delete(after, 1), np.delete(before, 1))
        assert replay.read_state().skipped == skipped + 2
        assert replay.read_state().max_priority == 1.0
        check_sums(replay)


def test_an_overflowing_power_writes_nothing(runtime: Runtime) -> None:
    replay = filled(runtime, 256, 256)
    update(replay, [0], [1e38], alpha_per=1.5)
    assert replay.priority.to_numpy()[0] == 1 and replay.read_state().skipped == 1


@pytest.mark.parametrize("capacity", [256, 5000, 70_000])
def test_sums_do_not_drift(runtime: Runtime, capacity: int) -> None:
    replay = filled(runtime, capacity, capacity)
    batch = Batch.allocate(runtime, 333, 1)
    random = np.random.default_rng(capacity)
    for rng_step in range(8):
        step = step_block(runtime, rng_step=rng_step, alpha_per=1.0, eps_per=0.0)
        sample(replay, batch, step)
        batch.td_error.copy_from((10.0 ** random.uniform(-8, 8, 333)).astype(np.float32))
        replay.record_priorities(runtime.ungraphed("test"), batch, step)  # type: ignore[arg-type]
        check_sums(replay)
