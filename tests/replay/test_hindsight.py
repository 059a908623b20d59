"""Relabelled rows: against episodes kept whole on the host, recomputed in float64."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Batch, GoalSlot, Replay, ReplayError
from foxhunt_rt.replay.hindsight import check_goal, record_relabel

from .harness import Filler, poisoned_batch, sample, step_block
from .oracle import ABSENT, RingOracle, Transition, random_words

RNG_HER = 5
F64 = npt.NDArray[np.float64]
NAMES = ("state", "next_state", "action", "ret", "discount", "index", "priority")


def relabelled(replay: Replay, slot: GoalSlot, drawn: Batch, rows: int, step: Any, reward: str = "return",
               tolerance: float = 0.0) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    """H = ``rows`` relabelled rows of a batch that was drawn."""
    rt = replay.runtime
    to = poisoned_batch(rt, rows, replay.state_dim)
    donor = rt.array(np.full(rows, -77, np.int32), "donor")
    report = rt.array(np.full((rows, 3), -77, np.float32), "report")
    record_relabel(rt.ungraphed("test"), replay, slot, drawn, to, step, donor, report, reward=reward,
                   tolerance=tolerance)  # type: ignore[arg-type]  # fmt: skip
    found = {name: getattr(to, name).to_numpy() for name in NAMES}
    return {**found, "donor": donor.to_numpy(), "report": report.to_numpy()}


def donors(ring: RingOracle, t: int, e: int) -> list[int]:
    """Inserts of the transitions from t on, of one episode, whose next state the ring has."""
    history, found = ring.history, list[int]()
    ends = [i * ring.environments + k for i, step in enumerate(history) for k, x in enumerate(step)
            if x.ended and not x.ended & ABSENT]  # fmt: skip
    kept = set(ends[-ring.finals :])
    for u in range(t, len(history)):
        transition = history[u][e]
        if transition.ended & ABSENT:
            break
        if ring.explicit_next:
            stored = True
        elif transition.ended:
            stored = u * ring.environments + e in kept
        else:
            stored = u + 1 < len(history) and not history[u + 1][e].ended & ABSENT
        if stored:
            found.append(u)
        if transition.ended:
            break
    return found


def recomputed(window: list[Transition], goal: F64, slot: GoalSlot, reward: str, tolerance: float, unit: float,
               gamma: float, scale: float) -> tuple[float, bool]:  # fmt: skip
    """The n-step return with another goal, and whether the last transition meets it."""
    achieved = slice(slot.achieved, slot.achieved + slot.width)
    total, met = 0.0, False
    for j, x in enumerate(window):
        was, now = x.state[achieved].astype(np.float64), x.next_state[achieved].astype(np.float64)
        if reward == "return":
            own = float(x.state[slot.goal])
            capped = [unit * (min(now[0], g) - now[0] - min(was[0], g) + was[0]) for g in (float(goal[0]), own)]
            value = float(np.float32(x.reward)) + capped[0] - capped[1]
            met = bool(now[0] >= goal[0])
        else:
            met = bool(np.linalg.norm(now - goal) <= tolerance)
            value = 0.0 if met else -1.0
        total += gamma**j * scale * value
    return total, met


def uniforms(step: Any, k: int) -> tuple[float, float]:
    block = step.to_numpy()[0]
    w = random_words(int(block["seed"]), int(block["rng_step"]), RNG_HER, k)
    return ((w[0] << 32 | w[1]) >> 11) / 2.0**53, ((w[2] << 32 | w[3]) >> 11) / 2.0**53


def check(replay: Replay, ring: RingOracle, slot: GoalSlot, drawn: int, rows: int, *, reward: str = "return",
          tolerance: float = 0.0, unit: float = 1.0, scale: float = 1.0, seed: int = 7) -> list[int]:  # fmt: skip
    """Draws, relabels and compares every relabelled row; returns the offsets of the donors."""
    gamma = 0.9
    batch = poisoned_batch(replay.runtime, drawn, replay.state_dim)
    step = step_block(replay.runtime, gamma=gamma, reward_scale=scale, rng_step=seed)
    source = sample(replay, batch, step)
    found = relabelled(replay, slot, batch, rows, step, reward, tolerance)
    total, offsets = len(ring.history) * ring.environments, []
    for k in range(rows):
        u, v = uniforms(step, k)
        at = int((k + u) / rows * drawn)
        row = int(source["index"][at])
        number = (total - 1) - ((total - 1 - row) % ring.capacity)
        t, e = divmod(number, ring.environments)
        possible = donors(ring, t, e)
        assert possible and possible == list(range(t, t + len(possible)))
        chosen = possible[int(v * len(possible))]
        offsets.append(chosen - t)
        assert found["donor"][k] == (chosen * ring.environments + e) % ring.capacity
        window = ring._window(t, e)
        assert window is not None
        goal = ring.history[chosen][e].next_state[slot.achieved : slot.achieved + slot.width].astype(np.float64)
        expected, met = recomputed(window[0], goal, slot, reward, tolerance, unit, gamma, scale)
        np.testing.assert_allclose(found["ret"][k], expected, rtol=2e-5, atol=1e-5 * scale * max(1.0, unit))
        for name in ("state", "next_state"):
            wanted = source[name][at].copy()
            wanted[slot.goal : slot.goal + slot.width] = goal
            np.testing.assert_array_equal(found[name][k], wanted)
        for name in ("action", "discount", "index", "priority"):
            assert found[name][k] == source[name][at]
        assert found["report"][k].tolist() == [chosen - t, found["ret"][k], met]
    return offsets


@pytest.mark.parametrize("mode", ["vector", "market"])
@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_donors_windows_ends_and_write_head(runtime: Runtime, mode: str, n_step: int) -> None:
    # 7 environments do not divide 260 rows: the ring comes round in the middle of an insert
    replay = Replay(runtime, 260, 9, mode=mode, portfolio_dim=4 * (mode == "market"), n_step=n_step)
    unit = runtime.array(np.array([3.0]), "unit")
    slot = GoalSlot(7, 8, 1, unit)
    filler = Filler(replay, 7, seed=n_step)
    for _ in range(n_step + 2):  # the first windows, insert by insert
        filler.insert()
        if len(filler.oracle.expected(0.9, 1.0)):
            check(replay, filler.oracle, slot, 16, 5, unit=3.0, seed=len(filler.oracle.history))
    filler.insert(34)  # nearly full
    seen = list[int]()
    for i in range(5):  # and round
        filler.insert()
        seen += check(replay, filler.oracle, slot, 33, 29, unit=3.0, scale=0.5, seed=100 + i)
    assert max(seen) > 3 and 0 in seen


@pytest.mark.parametrize(("capacity", "environments", "end_chance"), [(256, 1, 0.0), (257, 3, 0.01), (1000, 1, 0.004)])
def test_long_episodes(runtime: Runtime, capacity: int, environments: int, end_chance: float) -> None:
    """The search for an episode's end takes several rounds; episodes reach back to what was overwritten."""
    replay = Replay(runtime, capacity, 3, n_step=2)
    filler = Filler(replay, environments, seed=capacity, end_chance=end_chance)
    filler.insert(capacity // environments + 50)
    assert max(check(replay, filler.oracle, GoalSlot(0, 2, 1), 64, 97)) > 20


def test_episodes_of_one_step_are_their_own_donors(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 2, n_step=3)
    filler = Filler(replay, 5, seed=2, end_chance=1.0)
    filler.insert(70)
    assert set(check(replay, filler.oracle, GoalSlot(0, 1, 1), 64, 33)) == {0}


def test_donors_whose_final_observation_was_overwritten_are_none(runtime: Runtime) -> None:
    replay = Replay(runtime, 300, 2, n_step=3, final_observations=24)
    filler = Filler(replay, 6, seed=3, end_chance=0.05)
    filler.insert(60)
    check(replay, filler.oracle, GoalSlot(0, 1, 1), 128, 128)


@pytest.mark.parametrize("mode", ["vector", "market"])
def test_an_episode_that_an_absent_environment_cuts_ends_there(runtime: Runtime, mode: str) -> None:
    market = mode == "market"
    replay = Replay(runtime, 256, 4, mode=mode, portfolio_dim=2 * market, n_step=2)
    filler = Filler(replay, 1, seed=4)
    random = np.random.default_rng(5)
    state = random.normal(size=4).astype(np.float32)
    for t in range(60):
        following, gone, reward = random.normal(size=4).astype(np.float32), t % 11 == 10, float(random.normal())
        if market:
            row, after = (int(x) for x in random.integers(0, filler.bars, 2))
            state[:2], following[:2] = filler.features[row, :2], filler.features[after, :2]
            states = {"feature_row": [row], "next_feature_row": [after], "portfolio": state[None, 2:],
                      "next_portfolio": following[None, 2:]}  # fmt: skip
        else:
            states = {"state": state[None], "next_state": following[None]}
        none = np.zeros(1, bool)
        replay.fill(filler.staging, [1], [reward], none, none, absent=np.array([gone]), **states)
        replay._launch_insert(runtime.ungraphed("replay"), filler.staging)
        replay.note_inserted(filler.staging)
        filler.oracle.insert([Transition(state.copy(), following.copy(), 1, reward, ABSENT if gone else 0)])
        state = following.copy()
    check(replay, filler.oracle, GoalSlot(2, 3, 1), 40, 64)


@pytest.mark.parametrize("width", [1, 3])
def test_reward_of_reaching_a_goal(runtime: Runtime, width: int) -> None:
    replay = Replay(runtime, 260, 8, n_step=3)
    filler = Filler(replay, 4, seed=width, end_chance=0.1)
    filler.insert(60)
    for tolerance in (0.0, 1.5):
        check(replay, filler.oracle, GoalSlot(1, 5, width), 40, 64, reward="reach", tolerance=tolerance)


def test_conviction_scales_the_reward_of_the_new_goal_too(runtime: Runtime) -> None:
    replay = Replay(runtime, 300, 6, mode="market", portfolio_dim=3, n_step=1)
    filler, slot = Filler(replay, 3, seed=6), GoalSlot(4, 5, 1)
    filler.insert(80)
    batch, step = poisoned_batch(runtime, 24, 6), step_block(runtime)
    sample(replay, batch, step)
    plain = relabelled(replay, slot, batch, 40, step)
    factors = np.random.default_rng(0).uniform(0.2, 1.0, 300).astype(np.float32)
    replay.conviction = runtime.array(factors, "conviction")
    scaled = relabelled(replay, slot, batch, 40, step)
    np.testing.assert_allclose(scaled["ret"], plain["ret"] * factors[plain["index"]], rtol=1e-6)
    np.testing.assert_array_equal(scaled["donor"], plain["donor"])


def test_donors_are_uniform_over_the_rest_of_the_episode(runtime: Runtime) -> None:
    """Chi-square, for each number of transitions left."""
    replay = Replay(runtime, 256, 2, n_step=1)
    staging = replay.staging(1)
    for t in range(200):  # episodes of 8; the achieved column counts
        end = np.array([t % 8 == 7])
        replay.insert_batch(staging, [0], [0.0], end, ~end & end, state=[[t % 8, 0.0]], next_state=[[t % 8 + 1, 0.0]])
    batch = poisoned_batch(runtime, 200, 2)
    step = step_block(runtime)
    sample(replay, batch, step)
    found = relabelled(replay, GoalSlot(0, 1, 1), batch, 20000, step)
    counts: dict[int, npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(8, np.int64))
    for row, offset in zip(found["index"], found["report"][:, 0].astype(int), strict=True):
        counts[8 - int(row) % 8][offset] += 1
    assert len(counts) == 8
    for left, seen in counts.items():
        assert not seen[left:].any()
        expected = seen.sum() / left
        chi2, freedom = ((seen[:left] - expected) ** 2 / expected).sum(), left - 1
        assert seen.sum() > 2000 and chi2 <= freedom + 4.0 * np.sqrt(2.0 * max(freedom, 1)), (left, seen)
    assert np.abs(np.bincount(found["index"], minlength=200)[:200] - 100).max() < 60  # one of every stratum


def test_an_empty_ring_leaves_rows_that_weigh_nothing(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 3)
    batch, step = poisoned_batch(runtime, 4, 3), step_block(runtime)
    sample(replay, batch, step)
    found = relabelled(replay, GoalSlot(0, 1, 1), batch, 5, step)
    assert (found["index"] == -1).all() and (found["donor"] == -1).all()
    assert not found["priority"].any() and not found["state"].any() and not found["report"].any()


@pytest.mark.parametrize("mode", ["vector", "market"])
def test_windows_of_relabelled_rows_have_the_goal_in_every_state(runtime: Runtime, mode: str) -> None:
    replay = Replay(runtime, 300, 6, mode=mode, portfolio_dim=3 * (mode == "market"), n_step=2)
    filler, slot = Filler(replay, 3, seed=8, end_chance=0.05), GoalSlot(4, 5, 1)
    filler.insert(80)
    drawn, to = Batch.allocate(runtime, 24, 6, window=5), Batch.allocate(runtime, 40, 6, window=5)
    step, user = step_block(runtime), runtime.ungraphed("test")
    sample(replay, drawn, step)
    donor, report = runtime.zeros(40, np.int32, "donor"), runtime.zeros((40, 3), np.float32, "report")
    record_relabel(user, replay, slot, drawn, to, step, donor, report, reward="return", tolerance=0.0)  # type: ignore[arg-type]
    replay.record_windows(user, to, slot)  # type: ignore[arg-type]
    goal = to.state.to_numpy()[:, 5]
    for k in range(40):
        source = int((k + uniforms(step, k)[0]) / 40 * 24)
        for ours, theirs in zip(to.windows, drawn.windows, strict=True):
            length = int(theirs.length.to_numpy()[source])
            wanted = theirs.states.to_numpy()[source].copy()
            wanted[5 - length :, 5] = goal[k]
            assert ours.length.to_numpy()[k] == length
            np.testing.assert_array_equal(ours.states.to_numpy()[k], wanted)


@pytest.mark.parametrize(
    ("mode", "slot", "names"),
    [
        ("vector", GoalSlot(4, 5, 1), "goal columns 5 to 6"),
        ("vector", GoalSlot(-1, 2, 1), "achieved columns -1"),
        ("vector", GoalSlot(0, 1, 2), "overlap"),
        ("vector", GoalSlot(0, 3, 0), "achieved columns 0 to 0"),
        ("market", GoalSlot(2, 4, 1), "achieved columns 2 to 3 are not among 3 to 5"),
    ],
)
def test_wrong_columns(runtime: Runtime, mode: str, slot: GoalSlot, names: str) -> None:
    replay = Replay(runtime, 256, 5, mode=mode, portfolio_dim=2 * (mode == "market"))
    with pytest.raises(ReplayError, match=names):
        check_goal(replay, slot)


def test_a_return_has_one_column(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 6)
    batch, step = poisoned_batch(runtime, 4, 6), step_block(runtime)
    with pytest.raises(ReplayError, match="one column"):
        relabelled(replay, GoalSlot(0, 2, 2), batch, 4, step)
    assert abi.constant("RNG_HER") == RNG_HER
