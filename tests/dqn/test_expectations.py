"""Every metric has an expectation; those of the step's own records keep it, and move by a planted cause in a stated direction."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import expectations
from foxhunt_rt.dqn.expectations import CONSTANT, MOVES, ZERO
from foxhunt_rt.dqn.features import features
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.kernels import abi

from .feature_harness import CASE, learner
from .test_whole_step import chain, fill, transitions

ROOT = Path(__file__).resolve().parents[2]
# with an alarm's limits where an ordinary network is within them
BASE = ("guard.edge_mass=1", "guard.spike_share=1", "guard.q_clip=1", "guard.atom_use=0", "loss.alpha_c51_start=0.3",
        "loss.grad_budget=30", "optim.max_grad_norm=1e6")  # fmt: skip
LAST = 5  # records that are averaged


def run(rt: Runtime, settings: tuple[str, ...], shift: float, steps: int) -> Any:
    rows = chain(transitions(CASE))
    rows = type(rows)(**{**rows.__dict__, "reward": rows.reward + shift})
    made = Learner(rt, CASE.config().with_set([*BASE, "optim.horizon=1000", *settings]), CASE.state_dim, CASE.branches)
    fill(made, rows)
    for _ in range(steps):
        made.step()
    records, stats = made.drain(), made.adam.stats.to_numpy()  # type: ignore[attr-defined]
    made.close()
    return records, stats


@pytest.fixture(scope="module")
def observed(runtime: Runtime) -> Any:
    return functools.cache(lambda *settings, shift=0.0, steps=12: run(runtime, settings, shift, steps))


#: Field: (settings, shift of all rewards, steps, direction).
PLANTS: dict[str, tuple[tuple[str, ...], float, int, int]] = {
    "loss": (("loss.reward_scale=3",), 0.0, 12, 1),
    "ce": (("optim.lr=0.05", "loss.gamma=0", "loss.alpha_c51_start=1"), 0.0, 120, -1),
    "mse": (("loss.reward_scale=3",), 0.0, 12, 1),
    "td_error": (("loss.reward_scale=3",), 0.0, 12, 1),
    "q_mean": (("optim.lr=0.03",), 5.0, 60, 1),
    "q_min": (("optim.lr=0.03",), -5.0, 60, -1),
    "q_max": (("optim.lr=0.03",), 5.0, 60, 1),
    "target_mean": ((), 5.0, 12, 1),
    "weight_mean": (("replay.beta_start=0", "replay.beta_end=0"), 0.0, 12, 1),
    "atom_use": (("loss.v_min=-1e3", "loss.v_max=1e3"), 0.0, 12, -1),
    "edge_mass": (("loss.v_min=-0.5", "loss.v_max=0.5"), 0.0, 12, 1),
    "spike_share": (("guard.spike_mass=0.05",), 0.0, 12, 1),
    "grad_norm": (("loss.reward_scale=3",), 0.0, 12, 1),
    "clip": (("optim.max_grad_norm=1e-3",), 0.0, 12, -1),
    "ce_scale": (("loss.grad_budget=1e-4",), 0.0, 12, -1),
    "mse_scale": (("loss.grad_budget=1e-4",), 0.0, 12, -1),
    "lr": (("optim.lr=0.01",), 0.0, 12, 1),
    "tau": (("optim.tau_start=0.5",), 0.0, 12, 1),
    "beta_per": (("replay.beta_start=0.9",), 0.0, 12, 1),
    "alpha_c51": (("loss.alpha_c51_start=0.9",), 0.0, 12, 1),
    "alarm_edge_mass": (("guard.edge_mass=1e-6",), 0.0, 12, 1),
    "alarm_spike_share": (("guard.spike_share=1e-6", "guard.spike_mass=0.05"), 0.0, 12, 1),
    "alarm_q_clip": (("guard.q_clip=1e-6",), 0.0, 12, 1),
    "alarm_atom_use": (("guard.atom_use=0.999",), 0.0, 12, 1),
    "replay_size": (("replay.capacity=300",), 0.0, 12, -1),
}
#: Planted apart, below.
APART = {"sequence", "step", "started_ns", "ended_ns", "guard_key", "replay_skipped"}


def test_every_metric_has_an_expectation_and_none_is_of_nothing() -> None:
    def names(struct: str) -> set[str]:
        return {n for n in abi.dtype(struct).names or () if not n.startswith("pad")}

    assert names("step_record") == set(expectations.RECORD) == set(PLANTS) | APART
    assert {f"alarm_{name}" for name in names("alarm_block")} <= set(expectations.RECORD)
    assert names("optim_stats") == set(expectations.OPTIM)
    config = Config.profile("full").with_set(["homeostat.loss_weight=0.1"])
    metrics = [m for e in features(config) for m in e.metrics]
    assert [m for m in metrics if expectations.expectation(m) is None] == []
    unused = [p for p in expectations.FEATURES if not any(expectations.fnmatch.fnmatchcase(m, p) for m in metrics)]
    assert unused == []
    tables = (expectations.RECORD, expectations.OPTIM, expectations.FEATURES)
    assert {e.kind for t in tables for e in t.values()} == {MOVES, CONSTANT, ZERO}
    assert all(e.cause for t in tables for e in t.values())


def test_a_metric_without_an_expectation_is_found() -> None:
    assert expectations.expectation("forgotten") is None and expectations.expectation("horizon_5_error") is not None


def test_every_feature_metric_is_tested_by_name() -> None:
    """Its planted cause stands in the test of its child."""
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name)
    missing = [name for name in expectations.FEATURES if name.split("*")[0] not in text]
    assert missing == []


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page.endswith(expectations.markdown()), "write it with tools/metrics_docs.py"


def test_an_ordinary_training_keeps_them(observed: Any) -> None:
    records, _ = observed()
    for name, expected in expectations.RECORD.items():
        values = records[name]
        if expected.kind == MOVES:
            assert len(np.unique(values)) > 1, name
        elif expected.kind == ZERO:
            assert not values.any(), name
        else:
            assert len(np.unique(values)) == 1, name


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_cause_moves_it(observed: Any, name: str) -> None:
    settings, shift, steps, direction = PLANTS[name]
    base, planted = (records[name][-LAST:].astype(np.float64).mean() for records, _ in
                     (observed(steps=steps), observed(*settings, shift=shift, steps=steps)))  # fmt: skip
    assert direction * (planted - base) > 0.0, f"{base} without the cause, {planted} with it"


@pytest.mark.parametrize(("name", "settings", "direction"), [("grad_norm", ("loss.reward_scale=3",), 1),
                                                             ("clip", ("optim.max_grad_norm=1e-3",), -1)])  # fmt: skip
def test_statistics_of_the_optimizer_move(observed: Any, name: str, settings: tuple[str, ...], direction: int) -> None:
    assert direction * (float(observed(*settings)[1][0][name]) - float(observed()[1][0][name])) > 0.0
    assert observed()[1][0]["skipped"] == 0


def test_counters_and_clocks_go_up(observed: Any) -> None:
    records, _ = observed()
    np.testing.assert_array_equal(records["step"], np.arange(len(records)))
    np.testing.assert_array_equal(records["sequence"], np.arange(len(records)) + 1)
    assert (np.diff(records["started_ns"].astype(np.int64)) > 0).all()
    assert (records["ended_ns"] > records["started_ns"]).all()
    assert (records["guard_key"] == np.uint64(2**64 - 1)).all()


def test_a_nan_parameter_claims_the_guard_and_is_counted_as_skipped(runtime: Runtime) -> None:
    made = learner(runtime)
    theta = made.adam.theta.to_numpy()  # type: ignore[attr-defined]
    theta[made.layout.layers[-1].bias.offset] = np.nan
    made.adam.theta.copy_from(theta)  # type: ignore[attr-defined]

    def step() -> None:
        made.step()
        made.drain()

    with pytest.raises(GuardFault):
        step()
    assert made.last is not None and made.last["guard_key"] < 2**64 - 1
    assert made.adam.stats.to_numpy()[0]["skipped"] == 1  # type: ignore[attr-defined]
    made.close()


def test_a_td_error_that_is_not_finite_is_skipped(runtime: Runtime) -> None:
    made = learner(runtime)
    made.step()
    made.drain()
    made.drawn.td_error.copy_from(np.full(made.drawn.size, np.nan, np.float32))
    made.replay.record_priorities(runtime.ungraphed("test"), made.drawn, made.step_block)  # type: ignore[arg-type]
    made.step()
    assert made.drain()[-1]["replay_skipped"] > 0
    made.close()
