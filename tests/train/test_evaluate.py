"""Evaluation against the vectorized backtest, which shares no code with the kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from foxhunt_rt.market.actions import BRANCHES
from foxhunt_rt.market.baselines import RESULT, backtest
from foxhunt_rt.market.contract import PRESETS
from foxhunt_rt.market.metrics import summarize
from foxhunt_rt.train.evaluate import Evaluator, Judgement, branch_entropy, reference_policies
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data

LONG_FULL_MARKET_NORMAL = (2, 3, 0, 1)
FLAT = (1, 0, 0, 1)


@pytest.fixture(scope="module")
def world(runtime):
    config = small_config()
    world = World(runtime, small_data(config), config)
    world.enter(world.folds[1], 3)
    yield world
    world.close()


def constant_policy(layout, choice):
    """Parameters of a network that always prefers one choice in each branch: zero weights, and a bias at its top atom."""
    tensors = {name: np.zeros_like(t) for name, t in layout.init(0).items()}
    for b, chosen in enumerate(choice):
        bias = tensors[f"branch.{b}.bias"].reshape(BRANCHES[b], layout.atoms)
        bias[chosen, -1] = 3.0
    return layout.pack(tensors)


@pytest.mark.parametrize(("choice", "contracts"), [(LONG_FULL_MARKET_NORMAL, 4), (FLAT, 0)])
def test_a_constant_policy_earns_what_the_backtest_says(world, choice, contracts):
    window = world.window(*world.folds[1].test)
    world.evaluator.params.copy_from(constant_policy(world.learner.layout, choice))
    results = world.evaluator.record(window.ends, window.first, window.stop)
    bars = window.slice
    expected = backtest(bars, np.full(len(bars), contracts), window.spec, window.config)
    np.testing.assert_array_equal(results["position"], expected["position"])
    np.testing.assert_allclose(results["net"], expected["net"], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(results["cost"], expected["cost"], rtol=1e-5, atol=1e-3)


def test_rounds_give_the_same_bits_as_all_sessions_at_once(world, runtime):
    first, stop = 100, 600  # cuts two sessions and holds three
    params = world.learner.layout.pack(world.learner.layout.init(8))
    model = world.execution_model(world.folds[1])
    records = []
    for environments in (2, 5):
        evaluator = Evaluator(
            runtime, world.tables, model, world.learner.layout, world.learner.control.buffer, environments, 4,
            world.config.plan,
        )  # fmt: skip
        evaluator.params.copy_from(params)
        records.append(evaluator.record(world.ends, first, stop))
        evaluator.close()
    assert (records[0]["visited"] != 0).sum() > 480
    for other in records[1:]:
        assert other.tobytes() == records[0].tobytes()


def test_every_session_ends_flat(world):
    window = world.window(*world.folds[1].validate)
    world.evaluator.params.copy_from(constant_policy(world.learner.layout, LONG_FULL_MARKET_NORMAL))
    judged = world.evaluator.judge(window)
    assert judged.metrics.trades >= 1
    assert judged.equity[-1] == pytest.approx(judged.metrics.net_pnl)
    assert judged.entropy == {"direction": 0.0, "size": 0.0, "order": 0.0, "urgency": 0.0}


def test_a_policy_that_trades_at_random_raises_the_alarms(world):
    """Known failure K15: a policy stayed random for a whole run, and nobody was told."""
    window = world.window(0, 900)
    world.evaluator.policy.set_exploration(1.0)
    try:
        alarms = world.evaluator.judge(window).alarms
    finally:
        world.evaluator.policy.set_exploration(0.0)
    assert any("spread like random" in alarm for alarm in alarms)
    assert any("trades a bar" in alarm for alarm in alarms)
    assert any("exceed gross" in alarm for alarm in alarms)
    world.evaluator.params.copy_from(constant_policy(world.learner.layout, FLAT))
    assert world.evaluator.judge(window).alarms == []


def judgement(**changes):
    base = summarize(
        np.zeros(9, RESULT), np.arange(9) * 60_000_000_000, PRESETS["SYNTHETIC"], capital=1e5, clock="1 minute"
    )
    return Judgement(dataclasses.replace(base, **changes), {}, np.zeros(9))


def test_a_policy_that_stays_out_ranks_above_one_that_loses_and_ruin_ranks_last():
    flat, loses, earns = judgement(), judgement(sharpe=-3.0, net_pnl=-50.0), judgement(sharpe=0.5, net_pnl=9.0)
    ruined = judgement(net_pnl=-2e5, max_drawdown_share=2.0)
    richer = judgement(net_pnl=5.0)  # one day: no ratio, so the net PnL decides
    expected = [ruined, loses, flat, richer, earns]
    assert sorted([earns, flat, richer, loses, ruined], key=lambda j: j.rank) == expected


def test_reference_policies_stand_beside(world):
    found = reference_policies(world.window(*world.folds[0].test), seed=1)
    assert set(found) == {"buy_and_hold", "always_flat", "random"}
    assert found["always_flat"]["net_pnl"] == 0.0
    assert found["always_flat"]["trades"] == 0
    assert found["random"]["costs"] > found["buy_and_hold"]["costs"] > 0


def test_entropy_of_random_choices_is_one_and_of_one_choice_zero():
    rng = np.random.default_rng(0)
    uniform = branch_entropy(rng.integers(0, 108, 20000).astype(np.int32))
    assert all(share > 0.99 for share in uniform.values())
    assert set(branch_entropy(np.full(5, 107, np.int32)).values()) == {0.0}
    half = branch_entropy(np.array([0, 107], np.int32))
    assert half["size"] == pytest.approx(0.5)  # two of four choices
