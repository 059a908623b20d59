"""Counterfactual and mirrored rows against an independent environment, and what the learner draws of them (known failure K14)."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foxhunt_rt.config import Config
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.market.actions import ACTIONS, action_name, decode_actions, encode_actions, mirror_actions
from foxhunt_rt.market.augment import CYCLE_NAMES, Augmentation, augmentation, mirror_sign
from foxhunt_rt.market.environment import MarketEnvironment
from foxhunt_rt.market.execution import PORTFOLIO_DIRECTIONAL
from foxhunt_rt.market.walks import Walks, split_window
from foxhunt_rt.replay import Batch, Replay

from ..replay.harness import sample, step_block
from ..replay.oracle import RingOracle, Transition
from . import counterfactual_reference as reference
from .market_harness import Market, features, make, random_market, rollout
from .optimal_trader import optimal_values
from .reference_environment import ACTIONS as REFERENCE_ACTIONS
from .reference_environment import Costs, ReferenceEnvironment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "counterfactual.md"
SEED = 0x5EED_0000_0042
WIDTH = 5
DIRECTIONAL = np.array([True, False, True, True, False])
SIGN = np.where([*DIRECTIONAL, *PORTFOLIO_DIRECTIONAL], -1.0, 1.0)
ALL = (0, 1, 2, 3, 4, 5)
COUNTERFACTUAL, TRUNCATED, TERMINATED, ABSENT = (
    abi.constant(f"ENDED_{name}") for name in ("COUNTERFACTUAL", "TRUNCATED", "TERMINATED", "ABSENT")
)


def settings(cycles: tuple[int, ...] | None = ALL, share: float = 1.0, mirror: float = 0.0) -> Any:
    """A market section with these rows on."""
    added = {"enabled": cycles is not None, "share": share, "cycles": list(cycles or ALL)}
    return (
        Config()
        .merged({"market": {"counterfactual": added, "mirror": {"enabled": mirror > 0, "share": mirror or 0.5}}})
        .market
    )


class Collected:
    """Environments that collect with augmentation, by single launches, into a ring."""

    def __init__(self, rt: Runtime, market: Market, costs: Costs, walks: Walks, config: Any, n_step: int = 1,
                 capacity: int | None = None) -> None:  # fmt: skip
        self.rt, self.market, self.walks = rt, market, walks
        self.env: MarketEnvironment = make(rt, market, costs, len(walks))
        control = np.zeros(1, abi.dtype("control_block"))
        control["seed"] = SEED
        made = augmentation(rt, len(walks), config, rt.array(control, "control"))
        assert made is not None
        self.augment: Augmentation = made
        steps = walks.longest + 2
        capacity = capacity or max(256, self.augment.rows * max(steps, n_step + 1))
        self.replay = Replay(rt, capacity, WIDTH + 4, mode="market", portfolio_dim=4, n_step=n_step)
        self.replay.set_feature_table(self.env.tables.features)
        if (signs := mirror_sign(config, DIRECTIONAL)) is not None:
            self.replay.set_mirror(signs)
        self.staging = self.replay.staging(self.augment.rows)
        self.action = rt.zeros(len(walks), np.int32, "action")
        self.env.reset(walks)

    def step(self, actions: NDArray[np.int32], *, insert: bool = True) -> dict[str, NDArray[Any]]:
        """One step; the staged rows."""
        user: Any = self.rt.ungraphed("tests.collected")
        self.action.copy_from(np.ascontiguousarray(actions, np.int32))
        self.env.record_step(user, self.action, self.staging, None, None, self.augment)
        if insert:
            self.replay.record_insert(user, self.staging)
            self.replay.note_inserted(self.staging)
        names = ("action", "reward", "ended", "feature_row", "next_feature_row", "portfolio", "next_portfolio")
        rows = {name: getattr(self.staging, name).to_numpy() for name in names}
        mark = self.staging.mirrored
        rows["mirrored"] = np.zeros(self.augment.rows, np.int32) if mark is None else mark.to_numpy()
        return rows

    def drawn(self) -> dict[int, dict[str, Any]]:
        """Every row that can be drawn, as the learner gets it: by its place in the ring."""
        rows = np.flatnonzero(self.replay.priority.to_numpy())
        batch = Batch.allocate(self.rt, len(rows), WIDTH + 4)  # of equal priorities: each is drawn once
        got = sample(self.replay, batch, step_block(self.rt, gamma=0.9))
        assert got["index"].tolist() == rows.tolist()
        assert not got["state"][:, WIDTH + 4 :].any() and not got["next_state"][:, WIDTH + 4 :].any()
        for name in ("state", "next_state"):
            got[name] = got[name][:, : WIDTH + 4]
        return {int(row): {name: values[k] for name, values in got.items()} for k, row in enumerate(rows)}


# ---- every combination ----------------------------------------------------------------------------------------------


def every_start() -> tuple[Market, Walks, NDArray[np.int32], NDArray[np.int32]]:
    """For each position from -4 to 4 and each action an environment that takes two steps: into the position, and the action.
    Sessions of 3 to 5 bars, so that the second step is a session's last in a third of them."""
    market = random_market(21, n=9 * ACTIONS * 5, count=WIDTH)
    lengths = np.resize([3, 5, 4], 9 * ACTIONS)
    session = np.repeat(np.arange(len(lengths)), lengths)
    n = len(session)
    market = Market(market.ohlc[:n], session, features(n, WIDTH))
    start = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
    one = np.ones(len(start), np.int32)
    position, action = (x.reshape(-1) for x in np.meshgrid(np.arange(-4, 5), np.arange(ACTIONS), indexing="ij"))
    first = encode_actions(
        np.stack([np.sign(position) + 1, np.maximum(np.abs(position) - 1, 0), 0 * position, 0 * position], 1)
    )
    return market, Walks(start, start + 3, 0 * one, 2 * one), first, action.astype(np.int32)


COSTS = Costs(drawdown_penalty=0.5, slippage_range=0.07, half_spread=1.0)


@pytest.fixture(scope="module")
def started() -> tuple[list[ReferenceEnvironment], set[int]]:
    """The reference environments after the first of their two steps, and the positions that they hold."""
    market, walks, first, _ = every_start()
    bars, session = [tuple(map(float, bar)) for bar in market.ohlc], [int(s) for s in market.session]
    out = []
    for e in range(len(walks)):
        env = ReferenceEnvironment(bars, session, COSTS, int(walks.start[e]), int(walks.end[e]), False)
        env.step(int(first[e]))
        out.append(env)
    return out, {env.position for env in out}


@pytest.mark.parametrize("mirror", [False, True], ids=["plain", "mirrored"])
@pytest.mark.parametrize("cycle", ALL, ids=CYCLE_NAMES)
def test_every_cycle_mirror_position_and_action(runtime: Any, started: Any, cycle: int, mirror: bool) -> None:
    """State, action, reward and next state as drawn, for each of 9 positions and 108 actions, taken and not taken."""
    market, walks, first, action = every_start()
    environments, positions = started
    assert positions == set(range(-4, 5))
    collected = Collected(runtime, market, COSTS, walks, settings((cycle,), mirror=float(mirror)))
    collected.step(first, insert=False)
    rows = collected.step(action)
    drawn = collected.drawn()
    count, sign = len(walks), SIGN if mirror else None
    expected, kinds = {}, {}
    for e, env in enumerate(environments):
        expected[e] = reference.seen(reference.played(env, int(action[e])), int(action[e]), market.features, sign)
        if (other := reference.draw(int(action[e]), (cycle,), SEED, 1, e)) is not None:
            expected[count + e] = reference.seen(reference.played(env, other[1]), other[1], market.features, sign)
            kinds[count + e] = other
    assert sorted(drawn) == sorted(expected)
    absent = np.setdiff1d(np.arange(2 * count), sorted(expected))
    assert (rows["ended"][absent] == ABSENT).all()
    rewards = []
    for row, want in expected.items():
        got = drawn[row]
        case = (row, kinds.get(row), REFERENCE_ACTIONS[want.action])
        np.testing.assert_allclose(got["state"], want.state, rtol=1e-6, atol=1e-6, err_msg=str(case))
        np.testing.assert_allclose(got["next_state"], want.next_state, rtol=1e-6, atol=1e-6, err_msg=str(case))
        assert got["action"] == want.action, case
        assert got["ret"] == pytest.approx(want.reward, rel=1e-6, abs=1e-6), case
        assert rows["reward"][row] == np.float32(got["ret"]), case  # as stored, so: not changed twice
        assert got["discount"] == np.float32(0.0 if want.terminated else 0.9), case
        rewards.append((want.reward, want.terminated))
    changes = {0: 2 / 3, 1: 3 / 4, 2: 3 / 4, 3: 1, 4: 1, 5: 2 / 3}[cycle]
    assert len(kinds) == round(changes * count)
    assert np.std([r for r, _ in rewards]) > 10 and 0.2 < np.mean([t for _, t in rewards]) < 0.5


def test_the_table_of_the_page(runtime: Any) -> None:
    """The table in docs/counterfactual.md is what the kernel says."""
    found = re.search(r"(\| cycle \| mirror .*?)\n\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found.group(1).splitlines() == table(runtime)


def table(rt: Runtime) -> list[str]:
    """Long 1 of 4 at 100.5, one bar after the entry: the action `long half market normal`, and all that may be added."""
    ohlc = np.array([[100, 100, 100, 100], [100, 103, 99, 102], [102, 106, 100, 105], [105, 106, 104, 105]], float)
    table = np.array([[0.0] * WIDTH, [0.7, 0.2, 0, 0, 0], [-0.3, 0.4, 0, 0, 0], [0.0] * WIDTH], np.float32)
    market = Market(ohlc, np.zeros(4, np.int64), table)
    costs = Costs(tick_value=10.0, fee=1.0, half_spread=0.5, slippage=0.5, slippage_range=0.0, pnl_scale=100.0)
    one = np.zeros(1, np.int32)
    first, action = encode_actions([[2, 0, 0, 1]]), encode_actions([[2, 1, 0, 1]])
    lines = [
        "| cycle | mirror | state: x, y, position, unrealized | action | reward | next state |",
        "| --- | --- | --- | --- | ---: | --- |",
    ]
    for mirror in (0.0, 1.0):
        for cycle in (None, *ALL):
            collected = Collected(
                rt, market, costs, Walks(one, one + 4, one, one + 3), settings((cycle or 0,), mirror=mirror)
            )
            collected.step(first, insert=False)
            collected.step(action)
            row = collected.drawn()[0 if cycle is None else 1]
            pick = [0, 1, WIDTH, WIDTH + 1]
            state, following = (
                ", ".join(f"{x + 0.0:g}" for x in row[k][pick].round(4) + 0.0) for k in ("state", "next_state")
            )
            what = "step taken" if cycle is None else f"{cycle} {CYCLE_NAMES[cycle]}"
            lines.append(f"| {what} | {'yes' if mirror else 'no'} | {state} | {action_name(row['action'])} | "
                         f"{row['ret']:g} | {following} |")  # fmt: skip
    return lines


# ---- the mirrored market --------------------------------------------------------------------------------------------


def mirrored_market(market: Market) -> Market:
    """Prices turned over, and the columns that turn with them."""
    flipped = market.features * np.where(DIRECTIONAL, -1.0, 1.0).astype(np.float32)
    return dataclasses.replace(market, ohlc=10000.0 - market.ohlc[:, [0, 2, 1, 3]], features=flipped)


def test_a_mirrored_row_is_a_row_of_the_mirrored_market(runtime: Any) -> None:
    """Rows stored mirrored, taken and not taken, are what the mirrored market gives with the mirrored policy: limit and stop
    orders included."""
    market, costs = random_market(31, n=300, count=WIDTH), Costs(slippage_range=0.07)
    walks = split_window(market.ends, 0, 300, 12)
    one = Collected(runtime, market, costs, walks, settings(mirror=1.0), n_step=2)
    two = Collected(runtime, mirrored_market(market), costs, walks, settings(), n_step=2)
    random = np.random.default_rng(3)
    orders = set()
    for _ in range(walks.longest):
        action = random.integers(0, ACTIONS, 12).astype(np.int32)
        orders |= set(decode_actions(action)[:, 2].tolist())
        one.step(action)
        two.step(mirror_actions(action))
    a, b = one.drawn(), two.drawn()
    assert sorted(a) == sorted(b) and len(a) > 300 and orders == {0, 1, 2}
    for row in a:
        assert a[row]["action"] == b[row]["action"]
        np.testing.assert_allclose(a[row]["ret"], b[row]["ret"], rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(a[row]["state"], b[row]["state"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(a[row]["next_state"], b[row]["next_state"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_best_action_of_the_mirrored_market_is_the_mirrored_best_action(runtime: Any, seed: int) -> None:
    """Values of all actions by exhaustive search: every pair of decisions of a session of three bars, on the device."""
    random = np.random.default_rng(seed)
    close = 1000 + np.cumsum([0, 6 * random.choice([-1, 1]), random.integers(-9, 10)])
    open_ = np.concatenate([[1000], close[:-1] + random.integers(-2, 3, 2)])
    ohlc = np.stack([open_, np.maximum(open_, close) + 2, np.minimum(open_, close) - 1, close], 1).astype(float)
    market = Market(ohlc, np.zeros(3, np.int64), features(3, WIDTH))
    pairs = np.array(list(itertools.product(range(ACTIONS), repeat=2)), np.int32)
    zero = np.zeros(len(pairs), np.int32)
    walks = Walks(zero, zero + 3, zero, zero + 2)
    values = []
    for each in (market, mirrored_market(market)):
        out = rollout(runtime, each, Costs(half_spread=0.5), walks, pairs.T)
        assert (out.rows["ended"][1] == TERMINATED).all()
        values.append(out.rows["reward"].astype(np.float64).sum(axis=0).reshape(ACTIONS, ACTIONS).max(axis=1))
    plain, turned = values
    turn = mirror_actions(np.arange(ACTIONS))
    np.testing.assert_allclose(turned[turn], plain, atol=1e-3)
    best, best_turned = (set(np.flatnonzero(v > v.max() - 1e-3)) for v in values)
    assert best_turned == set(turn[sorted(best)])
    assert plain.max() > 100 and np.abs(plain - plain[turn]).max() > 100, "the market has a side"


def test_the_optimal_policy_of_the_mirrored_chain_is_the_mirrored_policy() -> None:
    """Value iteration over state, position and time left, for chains without any symmetry of their own."""
    random = np.random.default_rng(5)
    for _ in range(20):
        transition = random.dirichlet(np.ones(4), size=4)
        mean = random.normal(size=4) + 0.3
        value, best = optimal_values(transition, mean, 0.6, 9)
        value_turned, best_turned = optimal_values(transition, -mean, 0.6, 9)
        np.testing.assert_allclose(value_turned[:, :, ::-1], value, atol=1e-12)
        np.testing.assert_array_equal(best_turned[:, :, ::-1], -best)
        assert (best != -best).any()


# ---- windows, episodes, shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_step", "share", "mirror"), [(1, 0.4, 0.5), (3, 1.0, 0.5), (4, 0.3, 0.0), (2, 0.0, 0.7)])
def test_windows_never_join_a_step_that_was_not_taken(runtime: Any, n_step: int, share: float, mirror: float) -> None:
    """All that is drawn, against windows formed on the host; random cycles, mirrors and environments against Philox in Python."""
    market, count = random_market(41, n=150, count=WIDTH), 7
    walks = split_window(market.ends, 0, 150, count)
    config = settings(ALL if share else None, share or 1.0, mirror)
    collected = Collected(runtime, market, Costs(), walks, config, n_step)
    added = int(np.ceil(share * count))
    assert collected.augment.rows == count + added
    oracle = RingOracle(collected.replay.capacity, count + added, n_step, explicit_next=True)
    random, marks = np.random.default_rng(6), []
    for t in range(walks.longest + 2):
        action = random.integers(0, ACTIONS, count).astype(np.int32)
        rows = collected.step(action)
        states = [
            np.concatenate([market.features[rows[f"{k}feature_row"]], rows[f"{k}portfolio"]], 1) for k in ("", "next_")
        ]
        for e in range(count):
            walks_on = rows["ended"][e] != ABSENT
            assert rows["ended"][e] & COUNTERFACTUAL == 0
            turned = bool(mirror and walks_on and reference.mirror_drawn(mirror, SEED, t, e, added=False))
            assert rows["mirrored"][e] == turned
            if walks_on:
                assert rows["action"][e] == (reference.mirrored(int(action[e])) if turned else action[e])
        for slot in range(added):
            row, e = count + slot, reference.fed_by(slot, count, added, SEED, t)
            other = reference.draw(int(action[e]), ALL, SEED, t, e)
            if rows["ended"][e] == ABSENT or other is None:
                assert rows["ended"][row] == ABSENT
                continue
            turned = bool(mirror and reference.mirror_drawn(mirror, SEED, t, e, added=True))
            terminated = rows["ended"][e] & TERMINATED
            assert rows["ended"][row] & 255 == COUNTERFACTUAL | (TERMINATED if terminated else TRUNCATED)
            assert rows["ended"][row] >> abi.constant("ENDED_BACK_SHIFT") == row - e
            assert rows["mirrored"][row] == turned
            assert rows["action"][row] == (reference.mirrored(other[1]) if turned else other[1])
            assert rows["feature_row"][row] == rows["feature_row"][e]
            np.testing.assert_array_equal(rows["portfolio"][row], rows["portfolio"][e])
        marks.append(rows["mirrored"].copy())
        oracle.insert([
            Transition(states[0][i], states[1][i], int(rows["action"][i]), float(rows["reward"][i]), int(rows["ended"][i]))
            for i in range(count + added)])  # fmt: skip
    expected, drawn = oracle.expected(0.9, 1.0), collected.drawn()
    assert sorted(drawn) == sorted(expected)
    flat, alone = np.concatenate(marks), 0
    for row, (state, action, ret, discount, following) in expected.items():
        sign = SIGN if flat[row] else np.ones(WIDTH + 4)
        got = drawn[row]
        np.testing.assert_array_equal(got["state"], (state * sign).astype(np.float32))
        np.testing.assert_array_equal(got["next_state"], (following * sign).astype(np.float32))
        assert got["action"] == action
        assert got["ret"] == pytest.approx(ret, rel=1e-5, abs=1e-4)
        assert got["discount"] == pytest.approx(discount, rel=1e-6)
        alone += row % (count + added) >= count
    assert (alone > 50) == bool(share) and (flat.any() and not flat.all()) == bool(mirror)

    stored = collected.replay.rows.to_numpy()[: collected.replay.inserted]
    kind = np.arange(len(stored)) % (count + added) >= count
    assert not set(stored["episode"][kind]) & set(stored["episode"][~kind])
    assert len(set(stored["episode"][kind])) == kind.sum(), "each is an episode of its own"


@pytest.mark.parametrize("n_step", [1, 3])
def test_windows_of_past_states(runtime: Any, n_step: int) -> None:
    """What a network that looks back is fed: a step that was not taken has the past of the one that was, and all of a mirrored
    row's window is mirrored. The ring comes round, in the middle of an insert."""
    market, count, length = random_market(43, n=420, count=WIDTH), 7, 4
    walks = split_window(market.ends, 0, 420, count)
    c = Collected(runtime, market, Costs(), walks, settings(ALL, 0.6, 0.5), n_step, capacity=260)
    stride, random = c.augment.rows, np.random.default_rng(9)
    states, fed, ends, marks = [], [], [], []
    for t in range(walks.longest):
        action = random.integers(0, ACTIONS, count).astype(np.int32)
        rows = c.step(action)
        pairs = [
            np.concatenate([market.features[rows[f"{k}feature_row"]], rows[f"{k}portfolio"]], 1) for k in ("", "next_")
        ]
        states.append(np.stack(pairs))
        ends.append(rows["ended"][:count] != 0)
        marks.append(rows["mirrored"])
        fed.append(
            [*range(count), *(reference.fed_by(s, count, stride - count, SEED, t) for s in range(stride - count))]
        )
    inserted = walks.longest * stride
    assert inserted > 260 and 260 % stride

    def past(t: int, e: int, states_before: int) -> list[np.ndarray]:
        """States of the steps before number t of environment e, newest first, in its episode and in the ring."""
        out: list[np.ndarray] = []
        while len(out) < states_before and t > 0 and not ends[t - 1][e] and (t - 1) * stride + e >= inserted - 260:
            t -= 1
            out.append(states[t][0][e])
        return out

    drawn = np.flatnonzero(c.replay.priority.to_numpy())
    batch = Batch.allocate(runtime, len(drawn), WIDTH + 4, window=length)
    got = sample(c.replay, batch, step_block(runtime))
    assert batch.window is not None and batch.next_window is not None
    found = [w.states.to_numpy()[:, :, : WIDTH + 4] for w in (batch.window, batch.next_window)]
    lengths = [w.length.to_numpy() for w in (batch.window, batch.next_window)]
    looked_back = 0
    for k, place in enumerate(got["index"]):
        number = place + (inserted - 1 - place) // 260 * 260
        t, row = divmod(int(number), stride)
        e, added = fed[t][row], row >= count
        sign = SIGN if marks[t][row] else np.ones(WIDTH + 4)
        last = t  # of its return's window
        while not added and last + 1 < t + n_step and not ends[last][e]:
            last += 1
        before = past(t, e, length - 1)
        following = [states[last][1][row], *(states[j][0][row] for j in range(last, t - 1, -1)), *before]
        for side, want in ((0, [states[t][0][row], *before]), (1, following)):
            want = want[:length]
            assert lengths[side][k] == len(want)
            expected = np.zeros((length, WIDTH + 4))
            expected[length - len(want) :] = np.stack(want[::-1]) * sign
            np.testing.assert_array_equal(found[side][k], expected.astype(np.float32))
        looked_back += added and len(before) > 0
    assert looked_back > 20


def test_the_counts_are_those_of_the_rows(runtime: Any) -> None:
    market, count = random_market(51, n=400, count=WIDTH), 10
    walks = split_window(market.ends, 0, 400, count)
    collected = Collected(runtime, market, Costs(), walks, settings((0, 2, 5), 0.7, 0.3))
    random = np.random.default_rng(7)
    totals = {c: [0, 0.0] for c in ALL}
    rows_seen = turned = 0
    for t in range(walks.longest):
        action = random.integers(0, ACTIONS, count).astype(np.int32)
        rows = collected.step(action)
        present = rows["ended"] != ABSENT
        rows_seen += int(present.sum())
        turned += int(rows["mirrored"].sum())
        for row in count + np.flatnonzero(present[count:]):
            e = reference.fed_by(int(row) - count, count, 7, SEED, t)
            drawn = reference.draw(int(action[e]), (0, 2, 5), SEED, t, e)
            assert drawn is not None
            totals[drawn[0]][0] += 1
            totals[drawn[0]][1] += float(rows["reward"][row]) - float(rows["reward"][e])
    report = collected.augment.report()
    n = sum(count for count, _ in totals.values())
    assert report["rows"] == rows_seen
    assert report["counterfactual_share"] == pytest.approx(n / rows_seen)
    assert report["mirrored_share"] == pytest.approx(turned / rows_seen)
    assert 0.25 < report["mirrored_share"] < 0.35 and 0.3 < report["counterfactual_share"] < 0.42
    assert report["reward_difference"] == pytest.approx(sum(d for _, d in totals.values()) / n, rel=1e-4, abs=1e-3)
    for c, (rows_of, difference) in totals.items():
        found = report["cycles"][CYCLE_NAMES[c]]
        assert found["rows"] == rows_of
        if rows_of:
            assert found["reward_difference"] == pytest.approx(difference / rows_of, rel=1e-4, abs=1e-3)
        else:
            assert found["reward_difference"] is None
    collected.augment.begin()
    assert collected.augment.report()["rows"] == 0 and collected.augment.draws.to_numpy().all()


@pytest.mark.parametrize("trend", [5, -5])
def test_the_reward_difference_says_whether_the_side_was_right(runtime: Any, trend: int) -> None:
    """Always long: in a rising market the other side and flat would have earned less, in a falling one more. That is what the
    difference by cycle says."""
    n = 200
    close = 5000.0 + trend * np.arange(n)
    open_ = np.concatenate([close[:1], close[:-1]])
    ohlc = np.stack([open_, np.maximum(open_, close) + 1, np.minimum(open_, close) - 1, close], 1)
    market = Market(ohlc, np.zeros(n, np.int64), features(n, WIDTH))
    walks = split_window(market.ends, 0, n, 4)
    collected = Collected(runtime, market, Costs(), walks, settings((0, 5)))
    for _ in range(walks.longest):
        collected.step(encode_actions(np.tile([2, 3, 0, 1], (4, 1))))
    cycles = collected.augment.report()["cycles"]
    for name, contracts in (("direction", 8), ("flat", 4)):
        earned = -np.sign(trend) * cycles[name]["reward_difference"]
        assert earned > 0.5 * 12.5 * 5 * contracts, name
    assert cycles["direction"]["rows"] > 50 and cycles["flat"]["rows"] > 50


# ---- off is nothing, graphs, wrong use ------------------------------------------------------------------------------


def test_steps_that_were_taken_are_the_same_bits_with_counterfactuals_beside(runtime: Any) -> None:
    market, count = random_market(61, n=200, count=WIDTH), 5
    walks = split_window(market.ends, 0, 200, count)
    actions = np.random.default_rng(8).integers(0, ACTIONS, (walks.longest, count)).astype(np.int32)
    off = rollout(runtime, market, Costs(), walks, actions)
    collected = Collected(runtime, market, Costs(), walks, settings())
    for t, action in enumerate(actions):
        rows = collected.step(action)
        for name, want in off.rows.items():
            assert np.array_equal(rows[name][:count], want[t]), name
    assert np.array_equal(collected.env.state.to_numpy(), off.env)


def test_unrolled_steps_in_a_graph_verify(runtime: Any) -> None:
    """Ungraphed, child by child and parent: the same bits."""
    market, count = random_market(71, n=120, count=WIDTH), 6
    walks = split_window(market.ends, 0, 120, count)
    c = Collected(runtime, market, Costs(), walks, settings(mirror=0.5), n_step=2)
    c.action.copy_from(np.arange(count, dtype=np.int32) * 17)
    plan = runtime.plan("augmented")
    reads = [*c.env.reads, *c.augment.reads, c.action, *c.replay.insert_reads(c.staging)]
    writes = [*c.env.writes, *c.augment.writes, *c.staging.buffers, *c.replay.insert_writes(c.staging)]
    with plan.child("collect", reads=reads, writes=writes) as child:
        for _ in range(3):
            c.env.record_step(child, c.action, c.staging, augment=c.augment)
            c.replay.record_insert(child, c.staging)
    step = plan.build()
    assert step.verify(steps=2).bitwise_equal
    step.close()


def test_nothing_is_made_where_nothing_is_asked_for(runtime: Any) -> None:
    control = runtime.zeros(1, abi.dtype("control_block"), "control")
    assert augmentation(runtime, 4, Config().market, control) is None
    assert mirror_sign(Config().market, DIRECTIONAL) is None
    replay = Replay(runtime, 256, WIDTH + 4, mode="market", portfolio_dim=4)
    assert replay.mirrored is None and replay.sign is None and replay.staging(4).mirrored is None


def test_wrong_use_is_refused(runtime: Any) -> None:
    market = random_market(81, n=60, count=WIDTH)
    walks = split_window(market.ends, 0, 60, 4)
    c = Collected(runtime, market, Costs(), walks, settings(mirror=0.5))
    user: Any = runtime.ungraphed("tests.collected")
    with pytest.raises(ValueError, match=r"give replay.staging\(4\)"):
        c.env.record_step(user, c.action, c.staging)
    plain = Replay(runtime, 256, WIDTH + 4, mode="market", portfolio_dim=4)
    for staging in (None, plain.staging(8)):
        with pytest.raises(ValueError, match="where they go"):
            c.env.record_step(user, c.action, staging, augment=c.augment)
    from foxhunt_rt.config import ConfigError

    for wrong in ("counterfactual.cycles=", "counterfactual.cycles=1,1", "counterfactual.cycles=6",
                  "counterfactual.share=0", "mirror.share=0"):  # fmt: skip
        with pytest.raises(ConfigError):
            Config().with_set([f"market.{wrong}"])
