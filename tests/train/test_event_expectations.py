"""Fields of the event at the end of an epoch: each has an expectation, and a planted cause that moves it where it says."""

from __future__ import annotations

import functools

import pytest

from foxhunt_rt.dqn.expectations import EVENT
from foxhunt_rt.train import WalkForward

from ..dqn.plants import moved
from .train_harness import small_config, small_data

FIXED = "train.support=config"
KNOWN = ("loss.gamma=0", "loss.alpha_c51_start=1", "replay.n_step=1", "train.steps_per_epoch=60")
LEARNING = (
    "optim.lr=0.01",
    "train.steps_per_epoch=60",
    FIXED,
    "loss.v_min=-500",
    "loss.v_max=500",
    "loss.reward_scale=1",
)
CHEAP, DEAR = "market.slippage_range=0", "market.slippage_range=3"
WORSE = ("optim.lr=0.01", "train.steps_per_epoch=60")


@pytest.fixture(scope="module")
def epochs(runtime):
    def of(*settings):
        config = small_config("train.folds=1", "loss.alpha_c51_start=0.2", *settings)
        run = WalkForward(runtime, small_data(config), config)
        found = run.run()["detail"][0]["epochs"]
        run.close()
        return found

    return functools.cache(of)


def test_every_field_has_an_expectation_and_the_schedules_move(epochs):
    first, second = epochs()
    assert set(first) <= set(EVENT) and set(EVENT) - set(first) <= {"features", "collection"}
    assert (first["epoch"], second["epoch"], first["best"]) == (1, 2, True)
    assert second["alpha_c51"] == pytest.approx(first["alpha_c51"] + 0.2) and second["epsilon"] < first["epsilon"]
    assert first["steps"] == second["steps"] and first["bars_seen"] == second["bars_seen"]
    assert first["step_us_median"] > 0.0
    for name in ("loss", "ce", "mse", "td_error", "atom_use", "grad_norm", "q_min", "q_max", "validation"):
        assert first[name] != second[name], name


#: Settings, and the epoch that is looked at: without the cause, with it.
PLANTS = {
    "epoch": (((), 0), ((), 1)),
    "steps": ((("train.steps_per_epoch=5",), -1), ((), -1)),
    "step_us_median": (((), -1), (("network.hidden=300,300",), -1)),
    "best": ((WORSE, 0), (WORSE, 1)),
    "bars_seen": ((("train.validation_share=0.25",), -1), ((), -1)),  # what validation takes, training lacks
    "alpha_c51": (((), 0), ((), 1)),
    "epsilon": (((), 0), ((), 1)),
    **dict.fromkeys(("loss", "mse", "td_error", "grad_norm"),
                    ((("loss.reward_scale=1", FIXED), -1), (("loss.reward_scale=3", FIXED), -1))),
    "ce": (((*KNOWN, "optim.lr=0", "optim.lr_min=0"), -1), ((*KNOWN, "optim.lr=0.01"), -1)),
    "atom_use": (((), -1), (("loss.v_min=-1e7", "loss.v_max=1e7", FIXED), -1)),
    "q_min": (((*LEARNING, CHEAP), -1), ((*LEARNING, DEAR), -1)),
    "q_max": (((*LEARNING, DEAR), -1), ((*LEARNING, CHEAP), -1)),
    "validation": (((DEAR,), -1), ((CHEAP,), -1)),
    "features": (((), -1), (("prune.enabled=true",), -1)),
    "collection": (((), -1), (("market.counterfactual.enabled=true",), -1)),
}  # fmt: skip


def value(name, epoch):
    """As a number: of validation the net profit, of what features and collection report how many entries there are."""
    found = epoch.get(name, {})
    return found["net_pnl"] if name == "validation" else len(found) if isinstance(found, dict) else float(found)


def test_every_field_has_a_planted_cause():
    assert set(PLANTS) == set(EVENT)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_cause_moves_it(epochs, name):
    without, planted = (value(name, epochs(*settings)[epoch]) for settings, epoch in PLANTS[name])
    moved(f"epoch.{name}", without, planted)


def test_features_and_collection_report_where_they_are_on(epochs):
    found = epochs("prune.enabled=true", "market.counterfactual.enabled=true")[-1]
    assert set(found) <= set(EVENT) and "prune" in found["features"]
    assert found["collection"]["counterfactual_share"] > 0.0
