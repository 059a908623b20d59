"""n-step windows and what is drawable: against episodes kept whole on the host."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import Batch, History, Replay, Windows

from .harness import Filler, check_sums, drawable, poisoned_batch, sample, set_priorities, step_block
from .oracle import ABSENT


def check_transitions(filler: Filler, batch: Batch, gamma: float = 0.9, scale: float = 1.0) -> None:
    """Draws, and compares each drawn row with the oracle's transition; what is drawable must be what the oracle says."""
    replay = filler.replay
    expected = filler.oracle.expected(gamma, scale)
    np.testing.assert_array_equal(drawable(replay), sorted(expected))
    if not expected:
        return
    got = sample(replay, batch, step_block(replay.runtime, gamma=gamma, reward_scale=scale))
    assert not got["state"][:, replay.state_dim :].any() and not got["next_state"][:, replay.state_dim :].any()
    for k, row in enumerate(got["index"]):
        state, action, ret, discount, following = expected[row]
        np.testing.assert_array_equal(got["state"][k, : replay.state_dim], state)
        np.testing.assert_array_equal(got["next_state"][k, : replay.state_dim], following)
        assert got["action"][k] == action
        np.testing.assert_allclose(got["ret"][k], ret, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got["discount"][k], discount, rtol=1e-6)


@pytest.mark.parametrize("mode", ["vector", "market"])
@pytest.mark.parametrize("n_step", [1, 2, 3, 4, 5])
def test_windows_ends_and_write_head(runtime: Runtime, mode: str, n_step: int) -> None:
    # 7 environments do not divide 260 rows: the ring comes round in the middle of an insert
    replay = Replay(runtime, 260, 9, mode=mode, portfolio_dim=4 * (mode == "market"), n_step=n_step)
    filler = Filler(replay, 7, seed=n_step)
    batch = poisoned_batch(runtime, 64, 9)
    for _ in range(2 * n_step + 2):  # the first windows, insert by insert
        filler.insert()
        check_transitions(filler, batch)
    filler.insert(30)  # nearly full
    for _ in range(6):  # and round
        filler.insert()
        check_transitions(filler, batch)
        check_sums(replay)
    filler.insert(40)
    check_transitions(filler, poisoned_batch(runtime, 512, 9))
    check_sums(replay)


@pytest.mark.parametrize(("state_dim", "environments"), [(1, 1), (32, 1), (33, 130), (64, 64)])
def test_shapes(runtime: Runtime, state_dim: int, environments: int) -> None:
    capacity = max(256, 5 * environments)
    replay = Replay(runtime, capacity, state_dim, n_step=3)
    filler = Filler(replay, environments, seed=state_dim)
    filler.insert(capacity // environments + 3)
    check_transitions(filler, poisoned_batch(runtime, 33, state_dim))
    check_sums(replay)


def test_gamma_and_scale_of_the_step_apply_to_rows_inserted_before(runtime: Runtime) -> None:
    filler = Filler(Replay(runtime, 256, 2, n_step=4), 3, seed=1)
    filler.insert(40)
    batch = poisoned_batch(runtime, 64, 2)
    for gamma, scale in ((0.5, 1.0), (1.0, 0.01), (0.0, 3.0)):
        check_transitions(filler, batch, gamma, scale)


@pytest.mark.parametrize("end", ["never", "always"])
def test_episodes_without_end_and_of_one_step(runtime: Runtime, end: str) -> None:
    filler = Filler(Replay(runtime, 256, 2, n_step=3), 5, seed=2, end_chance=float(end == "always"))
    filler.insert(70)
    check_transitions(filler, poisoned_batch(runtime, 256, 2))


def test_rows_whose_final_observation_was_overwritten_leave_the_ring(runtime: Runtime) -> None:
    # 24 final observations for 300 rows, of which about 80 end
    replay = Replay(runtime, 300, 2, n_step=3, final_observations=24)
    filler = Filler(replay, 6, seed=3)
    batch = poisoned_batch(runtime, 128, 2)
    for _ in range(70):
        filler.insert()
        np.testing.assert_array_equal(drawable(replay), sorted(filler.oracle.expected(0.9, 1.0)))
        check_sums(replay)
    check_transitions(filler, batch)
    assert replay.read_state().finals > 60


def test_sums_of_many_blocks_follow_inserts_and_evictions(runtime: Runtime) -> None:
    # six blocks, of which an insert recomputes three; rows that an eviction takes lie elsewhere, and across block borders
    replay = Replay(runtime, 1300, 2, n_step=3, final_observations=120)
    filler = Filler(replay, 30, seed=7)
    for _ in range(60):
        filler.insert()
        check_sums(replay)
    np.testing.assert_array_equal(drawable(replay), sorted(filler.oracle.expected(0.9, 1.0)))


def test_an_insert_leaves_the_priorities_of_other_rows_alone(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 2, n_step=3)
    filler = Filler(replay, 5, seed=8, end_chance=0.3)
    filler.insert(4)
    for _ in range(60):
        rows = drawable(replay)
        set_priorities(replay, rows, np.linspace(2, 3, len(rows)))
        before, largest = replay.priority.to_numpy(), replay.read_state().max_priority
        first = replay.read_state().position
        filler.insert()
        after = replay.priority.to_numpy()
        kept = np.setdiff1d(rows, (first + np.arange(5)) % 256)
        np.testing.assert_array_equal(after[kept], before[kept])
        fresh = np.setdiff1d(drawable(replay), kept)
        assert (after[fresh] == largest).all()


def test_an_absent_environment_leaves_a_row_that_is_never_drawn(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 5, mode="market", portfolio_dim=2, n_step=2)
    filler = Filler(replay, 4, seed=4)
    filler.insert(3)
    ended = np.array([0, ABSENT, 0, ABSENT], np.int32)
    filler.staging.ended.copy_from(ended)
    child = runtime.ungraphed("test")
    for _ in range(2):  # the launches of a collector, which writes the staging itself
        replay.record_insert(child, filler.staging)  # type: ignore[arg-type]
        replay.note_inserted(filler.staging)
        rows = filler.oracle.history[-1]
        filler.oracle.insert(
            [type(x)(x.state, x.next_state, x.action, x.reward, int(ended[e])) for e, x in enumerate(rows)]
        )
    np.testing.assert_array_equal(drawable(replay), sorted(filler.oracle.expected(0.9, 1.0)))


def test_new_rows_enter_with_the_largest_priority(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 2, n_step=1)
    filler = Filler(replay, 4, seed=5, end_chance=0.0)
    filler.insert(3)
    set_priorities(replay, np.array([1, 3]), np.array([0.5, 7.0]))
    assert replay.read_state().max_priority == 7.0
    filler.insert()
    np.testing.assert_array_equal(replay.priority.to_numpy()[:16], [1, 0.5, 1, 7, 1, 1, 1, 1, 7, 7, 7, 7, 0, 0, 0, 0])
    check_sums(replay)


def test_episode_numbers_are_distinct_and_constant_within_an_episode(runtime: Runtime) -> None:
    replay = Replay(runtime, 512, 2)
    filler = Filler(replay, 5, seed=6)
    filler.insert(60)
    rows = replay.rows.to_numpy()[:300]
    assert (rows["stride"] == 5).all()
    seen: dict[int, int] = {}
    for e in range(5):
        mine = rows[e::5]
        for before, after in zip(mine[:-1], mine[1:], strict=True):
            assert (before["episode"] == after["episode"]) == (before["ended"] == 0)
        for number in set(mine["episode"].tolist()):
            assert seen.setdefault(number, e) == e
    assert len(seen) == int((rows["ended"][:-5] > 0).sum()) + 5


@pytest.mark.parametrize("mode", ["vector", "market"])
@pytest.mark.parametrize(("window", "n_step"), [(1, 3), (2, 1), (5, 3), (16, 2), (70, 4)])
def test_windows_of_past_states(runtime: Runtime, mode: str, window: int, n_step: int) -> None:
    """The states before s and before s', back to the episode's start or the oldest row that the ring holds."""
    replay = Replay(runtime, 260, 9, mode=mode, portfolio_dim=4 * (mode == "market"), n_step=n_step)
    filler = Filler(replay, 7, seed=window, end_chance=0.04)
    batch = Batch.allocate(runtime, 64, 9, window)
    for buffer in batch.sampled:
        buffer.copy_from(np.full(buffer.shape, -77, buffer.dtype))
    lengths = set()
    for inserts in (n_step + 2, 20, 30, 1):  # young, in the middle of an episode, round the end of the ring and again
        filler.insert(inserts)
        got = sample(replay, batch, step_block(runtime))
        expected = filler.oracle.windows(window)
        for which, windows in enumerate(batch.windows):
            states, length = windows.states.to_numpy(), windows.length.to_numpy()
            assert not states[:, :, replay.state_dim :].any()
            for k, row in enumerate(got["index"]):
                states_of = expected[row][which]
                assert length[k] == len(states_of)
                np.testing.assert_array_equal(states[k, window - length[k] :, : replay.state_dim], states_of)
                assert not states[k, : window - length[k]].any()
            lengths |= set(length.tolist())
    assert len(lengths) >= min(window, 4), lengths


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("in_place", [True, False])
def test_histories_of_environments(runtime: Runtime, window: int, in_place: bool) -> None:
    """Against lists: pushed state by state, begun anew where an episode begins, emptied where one ended."""
    e, s, width = 5, 3, 32
    random = np.random.default_rng(window)
    history = History(runtime, e, window, width, "history")
    other = Windows.allocate(runtime, e, window, width, "other")
    launched = runtime.ungraphed("test.history")
    lists: list[list[np.ndarray]] = [[] for _ in range(e)]
    for _ in range(12):
        state = random.normal(size=(e, s)).astype(np.float32)
        fresh, ended = (random.random((2, e)) < 0.2).astype(np.int32)
        device = runtime.array(state, "state"), runtime.array(fresh, "fresh"), runtime.array(ended, "ended")
        before = [buffer.to_numpy() for buffer in history.windows.buffers()]
        history.record_push(launched, device[0], fresh=device[1], ended=device[2], to=None if in_place else other)
        made = history.windows if in_place else other
        states, length = (buffer.to_numpy() for buffer in made.buffers())
        assert not states[:, :, s:].any()
        if not in_place:
            for buffer, values in zip(history.windows.buffers(), before, strict=True):
                np.testing.assert_array_equal(buffer.to_numpy(), values)
            history.record_push(launched, device[0], fresh=device[1], ended=device[2])
        for i in range(e):
            lists[i] = [*([] if fresh[i] else lists[i]), state[i]][-window:]
            np.testing.assert_array_equal(states[i, window - len(lists[i]) :, :s], lists[i])
            assert not states[i, : window - len(lists[i])].any()
            assert length[i] == (0 if ended[i] else len(lists[i]))
            lists[i] = [] if ended[i] else lists[i]
    history.clear()
    assert not history.windows.length.to_numpy().any()
