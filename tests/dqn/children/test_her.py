"""per_sample.her in the step: relabelled rows recomputed from whole episodes, their loss against the oracle, metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn import Agent, Learner
from foxhunt_rt.dqn.children.her import Her
from foxhunt_rt.replay import GoalSlot
from tests.dqn import oracle
from tests.dqn.feature_harness import check_reset, check_resume, extension, footprint, learner
from tests.dqn.test_appended_rows import reference
from tests.dqn.test_whole_step import CASES, chain, fill, transitions

CASE = CASES[1]  # states of 7
ON = ("her.enabled=true", "her.rows=19", "her.achieved_column=4", "her.goal_column=6", "replay.n_step=3")
NAMES = ("her_offset", "her_return", "her_reached")


def run(rt: Runtime, *settings: str, rows: oracle.Transitions | None = None, steps: int = 4) -> tuple[Learner, Any]:
    made = learner(rt, (*ON, *settings), rows=False)
    fill(made, rows or chain(transitions(CASE)))
    for _ in range(steps):
        made.step()
    return made, made.drain()


@pytest.mark.parametrize("reward", ["return", "reach"])
def test_relabelled_rows_are_transitions_of_another_goal(runtime: Runtime, reward: str) -> None:
    """Goal, return and ends of each relabelled row, in float64 from the rows as they were inserted."""
    rows = chain(transitions(CASE))
    made, records = run(runtime, f"her.reward={reward}", "her.tolerance=0.5", "loss.reward_scale=0.25", rows=rows)
    her, batch = extension(made, Her), made.rows.rows(made.drawn.size, made.rows.size)
    got = {
        name: getattr(batch, name).to_numpy() for name in ("state", "next_state", "ret", "discount", "index", "action")
    }
    donor, gamma, scale = her.donor.to_numpy(), float(np.float32(made.config.loss.gamma)), 0.25
    offsets, met, returns = [], [], []
    for k, first in enumerate(got["index"]):
        goal = rows.next_state[donor[k], 4]
        stretch = np.arange(first, donor[k] + 1, rows.environments)
        assert stretch[-1] == donor[k] and not (rows.terminated | rows.truncated)[stretch[:-1]].any(), "another episode"
        ret, at, reached = 0.0, int(first), False
        for j in range(3):
            at = int(first) + j * rows.environments
            was, now, own = rows.state[at, 4], rows.next_state[at, 4], rows.state[at, 6]
            if reward == "return":
                value = rows.reward[at] + (min(now, goal) - min(was, goal)) - (min(now, own) - min(was, own))
                reached = bool(now >= goal)
            else:
                reached = bool(abs(now - goal) <= 0.5)
                value = 0.0 if reached else -1.0
            ret += gamma**j * scale * value
            if rows.terminated[at] or rows.truncated[at]:
                break
        assert got["ret"][k] == pytest.approx(ret, rel=1e-5, abs=1e-6)
        assert got["discount"][k] == pytest.approx(0.0 if rows.terminated[at] else gamma ** (j + 1), rel=1e-6)
        for name, source in (("state", rows.state[first]), ("next_state", rows.next_state[at])):
            wanted = source.astype(np.float32)
            wanted[6] = goal
            np.testing.assert_array_equal(got[name][k, :7], wanted)
            assert not got[name][k, 7:].any()
        assert got["action"][k] == rows.action[first]
        offsets.append(len(stretch) - 1), met.append(reached), returns.append(ret)
    last = records[-1]
    assert last["her_offset"] == pytest.approx(np.mean(offsets), abs=1e-5)
    assert last["her_reached"] == pytest.approx(np.mean(met), abs=1e-6)
    assert last["her_return"] == pytest.approx(np.mean(returns), rel=1e-5, abs=1e-6)
    made.close()


def test_their_loss_is_that_of_rows_drawn(runtime: Runtime) -> None:
    made = Learner(runtime, CASE.config().with_set([*ON]), CASE.state_dim, CASE.branches)
    fill(made, chain(transitions(CASE)))
    made.set(alpha_c51=CASE.alpha_c51)
    before = {"theta": made.adam.theta.to_numpy(), "target": made.adam.target.to_numpy()}
    made.step()
    made.drain()
    expected = reference(made, before, made.rows.size)
    found = made.layout.unpack(made.grad.grad.to_numpy())
    for name in expected.gradient:
        print(oracle.compare(name, found[name], expected.gradient[name], expected.magnitude[name]))
    without = reference(made, before, made.drawn.size)  # were they left out, the gradient would be another
    with pytest.raises(AssertionError):
        oracle.compare("trunk.0.weight", found["trunk.0.weight"], without.gradient["trunk.0.weight"],
                       without.magnitude["trunk.0.weight"])  # fmt: skip
    made.close()


def test_relabelled_rows_write_no_priority(runtime: Runtime) -> None:
    made, _ = run(runtime, steps=1)
    index, delta = made.drawn.index.to_numpy(), made.drawn.td_error.to_numpy().astype(np.float64)
    priority = made.replay.priority.to_numpy()
    np.testing.assert_allclose(priority[index], (delta + made.config.replay.eps) ** made.config.replay.alpha, rtol=1e-5)
    untouched = np.setdiff1d(np.arange(CASE.environments * CASE.inserts), index)
    assert set(np.unique(priority[untouched])) <= {0.0, 1.0}
    made.close()


def test_every_way_gives_the_same_bits(runtime: Runtime) -> None:
    made, _ = run(runtime, "train.steps_per_launch=3")
    result = made.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    planted = made.graph.verify(steps=1, plant="per_sample.her")
    assert not planted.bitwise_equal and planted.child == "per_sample.her"
    made.close()


def test_resume_and_reset(runtime: Runtime) -> None:
    check_resume(runtime, ON)
    check_reset(runtime, ON)


def test_off_adds_nothing(runtime: Runtime) -> None:
    off, on = footprint(runtime, ("her.enabled=false", *ON[1:])), footprint(runtime, ON)
    plain = footprint(runtime, ("replay.n_step=3",))
    assert off == plain
    assert on.children - off.children == {"per_sample.her", "per_sample.her_metrics"}
    assert on.nodes == off.nodes + 3  # and one more row_stats
    assert len(on.modules) == len(off.modules) + 4  # two kernels, each also ungraphed


def test_metrics_move_with_their_causes(runtime: Runtime) -> None:
    rows = chain(transitions(CASE))

    def measured(*settings: str, share: float = 0.1) -> dict[str, float]:
        ended = np.random.default_rng(1).random(len(rows.reward)) < share
        shaped = oracle.Transitions(rows.state, rows.next_state, rows.action, rows.reward, ended, np.zeros_like(ended),
                                    rows.environments)  # fmt: skip
        made, records = run(runtime, *settings, rows=chain(shaped))
        made.close()
        return {name: float(records[name].mean()) for name in NAMES}

    usual, short = measured(), measured(share=1.0)
    assert usual["her_offset"] > 1.0 and short["her_offset"] == 0.0, "episodes of one step"
    assert short["her_reached"] == 1.0 > usual["her_reached"], "a transition reaches what it achieved"
    easy, hard = measured("her.reward=reach", "her.tolerance=1e9"), measured("her.reward=reach", "her.tolerance=0")
    assert easy["her_return"] == 0.0 > hard["her_return"] and easy["her_reached"] == 1.0 > hard["her_reached"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (("her.enabled=true",), "her.goal_column"),
        (("her.enabled=true", "her.goal_column=3"), "her.achieved_column"),
        ((*ON, "her.goal_column=7"), "goal columns 7 to 8"),
        ((*ON, "her.goal_column=5", "her.goal_width=2"), "overlap"),
        ((*ON, "her.achieved_column=0", "her.goal_column=4", "her.goal_width=2"), "one column"),
    ],
)
def test_an_agent_is_told_what_is_missing(runtime: Runtime, settings: tuple[str, ...], names: str) -> None:
    config = Config().with_set(["network.hidden=8", "replay.batch=8", "replay.capacity=256", *settings])
    with pytest.raises(ConfigError, match=names):
        Agent(7, [2], config, runtime)


def test_a_goal_of_several_columns(runtime: Runtime) -> None:
    made, records = run(runtime, "her.reward=reach", "her.achieved_column=0", "her.goal_column=4", "her.goal_width=3",
                        "her.tolerance=2")  # fmt: skip
    assert extension(made, Her).slot == GoalSlot(0, 4, 3)
    assert -2.98 < records["her_return"].mean() < -0.1  # three transitions of -1 at most, discounted
    made.close()
