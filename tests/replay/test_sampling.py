"""Which rows are drawn: against prefix sums in extended precision, with the same uniform numbers."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Replay

from .harness import check_sums, filled, poisoned_batch, sample, set_priorities, step_block
from .oracle import draw, philox4x32, stratified


def test_philox_reference_gives_the_published_vectors() -> None:
    # Random123's known-answer file, philox 4x32 with 10 rounds
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox4x32((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)  # fmt: skip


@pytest.mark.parametrize(
    ("capacity", "rows", "batch"),
    [
        (256, 256, 64),
        (256, 255, 1),
        (257, 257, 33),
        (1000, 999, 7),
        (65536, 4000, 64),
        (65537, 65530, 513),
        (200_000, 120_000, 1024),
    ],
)
def test_rows_match_prefix_sums(runtime: Runtime, capacity: int, rows: int, batch: int) -> None:
    replay = filled(runtime, capacity, rows)
    random = np.random.default_rng(capacity + batch)
    values = random.gamma(0.3, size=rows).astype(np.float32)
    values[random.random(rows) < 0.2] = 0.0
    set_priorities(replay, np.arange(rows), values)
    check_sums(replay)
    minibatch = poisoned_batch(runtime, batch, 1)
    for rng_step in (0, 1, 2**40):
        step = step_block(runtime, rng_step=rng_step)
        got = sample(replay, minibatch, step)
        expected, margin = draw(values, stratified(0x1234_5678_9ABC, rng_step, abi.constant("RNG_SAMPLE"), batch))
        clear = margin > 1e-12
        assert clear.mean() > 0.99
        np.testing.assert_array_equal(got["index"][clear], expected[clear])
        assert (np.diff(got["index"]) >= 0).all()
        np.testing.assert_array_equal(got["priority"], values[got["index"]])
        assert (got["priority"] > 0).all()
        np.testing.assert_array_equal(got["state"][:, 0], got["index"])
        smallest = step.to_numpy()["min_priority"].view(np.float32)[0]
        assert smallest == got["priority"].min()


def test_equal_priorities_are_drawn_once_each_when_the_batch_is_the_ring(runtime: Runtime) -> None:
    replay = filled(runtime, 300, 300)
    got = sample(replay, poisoned_batch(runtime, 300, 1), step_block(runtime))
    np.testing.assert_array_equal(got["index"], np.arange(300))


@pytest.mark.parametrize("only", [0, 1, 255, 256, 511, 699])
def test_the_only_row_with_priority_is_drawn(runtime: Runtime, only: int) -> None:
    replay = filled(runtime, 700, 700)
    values = np.zeros(700)
    values[only] = 1e-12
    set_priorities(replay, np.arange(700), values)
    got = sample(replay, poisoned_batch(runtime, 65, 1), step_block(runtime))
    assert (got["index"] == only).all()


def test_priority_zero_is_never_drawn_whatever_the_rounding(runtime: Runtime) -> None:
    replay = filled(runtime, 1024, 1024)
    random = np.random.default_rng(3)
    values = 10.0 ** random.uniform(-30, 30, 1024)  # far beyond what f64 adds exactly
    values[random.random(1024) < 0.5] = 0.0
    values[-200:] = 0.0
    set_priorities(replay, np.arange(1024), values)
    minibatch = poisoned_batch(runtime, 1024, 1)
    for rng_step in range(4):
        got = sample(replay, minibatch, step_block(runtime, rng_step=rng_step))
        assert (values[got["index"]] > 0).all()


def test_frequencies_follow_the_priorities(runtime: Runtime) -> None:
    rows, batch, draws = 300, 64, 100
    replay = filled(runtime, 512, rows)
    values = np.random.default_rng(5).uniform(0.1, 3.0, rows).astype(np.float32)
    set_priorities(replay, np.arange(rows), values)
    minibatch = poisoned_batch(runtime, batch, 1)
    counts = np.zeros(rows)
    for rng_step in range(draws):
        got = sample(replay, minibatch, step_block(runtime, rng_step=rng_step))
        counts += np.bincount(got["index"], minlength=rows)
    expected = batch * draws * values.astype(np.float64) / values.astype(np.float64).sum()
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    k = (
        rows - 1
    )  # Wilson & Hilferty 1931: the 99.9 % quantile; strata can only make chi2 smaller than for independent draws
    assert chi2 < k * (1 - 2 / (9 * k) + 3.09 * (2 / (9 * k)) ** 0.5) ** 3
    assert chi2 > 0


def test_a_new_seed_step_or_element_is_a_new_number(runtime: Runtime) -> None:
    replay = filled(runtime, 65536, 65000)
    minibatch = poisoned_batch(runtime, 64, 1)
    first = sample(replay, minibatch, step_block(runtime))["index"]
    again = sample(replay, minibatch, step_block(runtime))["index"]
    np.testing.assert_array_equal(first, again)
    for changed in ({"seed": 1}, {"seed": 0x1234_5678_9ABC + 2**32}, {"rng_step": 8}, {"rng_step": 7 + 2**32}):
        assert (sample(replay, minibatch, step_block(runtime, **changed))["index"] != first).mean() > 0.9


def test_an_empty_ring_is_a_fault_and_draws_no_row(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 3)
    guard = runtime.empty(1, abi.dtype("guard_block"), "guard")
    guard.copy_from(np.array([(2**64 - 1,)], abi.dtype("guard_block")))
    minibatch, step = poisoned_batch(runtime, 4, 3), step_block(runtime)
    replay.record_sample(runtime.ungraphed("test"), minibatch, step, guard)  # type: ignore[arg-type]
    assert (minibatch.index.to_numpy() == -1).all()
    assert not minibatch.state.to_numpy().any() and not minibatch.priority.to_numpy().any()
    key = int(guard.to_numpy()["key"][0])
    assert (key >> 60, key >> 56 & 15) == (abi.constant("GUARD_PER_SAMPLE"), abi.constant("CHECK_EMPTY"))
    # what the learner makes of it writes nothing either
    minibatch.td_error.fill(1.0)
    replay.record_priorities(runtime.ungraphed("test"), minibatch, step)  # type: ignore[arg-type]
    assert not replay.priority.to_numpy().any()


def test_the_descent_ends_at_a_row_with_priority_even_below_sums_that_are_too_large(runtime: Runtime) -> None:
    # the last bits of a sum may promise more than its parts hold; no u can be made to show it, so promise twice as much
    replay = filled(runtime, 1024, 1024)
    values = np.where(np.arange(1024) % 256 < 100, 1.0, 0.0)
    set_priorities(replay, np.arange(1024), values)
    replay.block_sum.copy_from(2 * replay.block_sum.to_numpy())
    got = sample(replay, poisoned_batch(runtime, 300, 1), step_block(runtime))
    assert (values[got["index"]] == 1).all() and (np.diff(got["index"]) >= 0).all()
