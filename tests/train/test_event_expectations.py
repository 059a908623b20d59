"""Fields of the event at the end of an epoch: each has an expectation, and settings move what they should."""

from __future__ import annotations

import functools

import pytest

from foxhunt_rt.dqn.expectations import EVENT
from foxhunt_rt.train import WalkForward

from .train_harness import small_config, small_data


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


def test_planted_causes_move_them(epochs):
    base = epochs()[-1]
    assert epochs("train.steps_per_epoch=5")[-1]["steps"] < base["steps"]
    assert epochs("train.validation_share=0.25")[-1]["bars_seen"] < base["bars_seen"], "a shorter training window"
    wide = epochs("loss.v_min=-1e7", "loss.v_max=1e7", "train.support=config")[-1]
    assert wide["atom_use"] < base["atom_use"]
    scaled = (
        epochs("loss.reward_scale=1", "train.support=config")[-1],
        epochs("loss.reward_scale=3", "train.support=config")[-1],
    )
    for name in ("mse", "td_error", "grad_norm", "loss"):
        assert scaled[1][name] > scaled[0][name], name


def test_features_and_collection_report_where_they_are_on(epochs):
    found = epochs("prune.enabled=true", "market.counterfactual.enabled=true")[-1]
    assert (
        set(found) <= set(EVENT) and "prune" in found["features"] and found["collection"]["counterfactual_share"] > 0.0
    )
