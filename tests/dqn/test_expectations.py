"""Every metric has an expectation and a planted cause; an ordinary training keeps the one, the other moves it where it says."""

from __future__ import annotations

import fnmatch
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import expectations
from foxhunt_rt.dqn.expectations import CONSTANT, DOWN, MOVES, UP, ZERO, declared, expectation
from foxhunt_rt.dqn.features import features
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.kernels import abi

from .everything import EVERYTHING, SMALL
from .feature_harness import learner
from .plants import APART, LAST, PLANTS, USUAL, Run, moved

ROOT = Path(__file__).resolve().parents[2]
#: With which no feature has a cause to report what is zero in an ordinary training, and each to report what moves.
IN_RANGE = ("plan.ready_steps=1000", "spectral.sigma_max=10", "plan.length=1", "horizons.lengths=1,2", "horizons.ready_steps=2",
            "horizons.rate=0.2", "horizons.lr_factor=20", "popart.max_change=1", "homeostat.entropy=0,0.01")  # fmt: skip


@pytest.fixture(scope="module")
def observed(runtime: Runtime) -> Any:
    """Records and optimizers' statistics of a run, which is made once."""
    return functools.cache(lambda run: run.run(runtime))


def covers(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def test_every_metric_has_an_expectation_and_none_is_of_nothing() -> None:
    def names(struct: str) -> set[str]:
        return {n for n in abi.dtype(struct).names or () if not n.startswith("pad")}

    assert names("step_record") == set(expectations.RECORD)
    assert {f"alarm_{name}" for name in names("alarm_block")} <= set(expectations.RECORD)
    assert names("optim_stats") == set(expectations.OPTIM)
    config = Config.profile("full").with_set(["homeostat.loss_weight=0.1"])
    metrics = [m for e in features(config) for m in e.metrics]
    assert [m for m in metrics if expectation(m) is None] == []
    assert [p for p in expectations.FEATURES if not any(covers(p, m) for m in metrics)] == []
    assert {e.kind for e in declared().values()} == {MOVES, CONSTANT, ZERO}
    assert all(e.direction in (UP, DOWN) and e.cause for e in declared().values())


def test_a_metric_without_an_expectation_is_found() -> None:
    assert expectation("forgotten") is None and expectation("horizon_5_error") is not None


def test_every_metric_has_a_planted_cause_and_no_cause_is_of_nothing() -> None:
    """Those of an epoch's event: tests/train/test_event_expectations.py."""
    planted, names = {*PLANTS, *APART}, [name for name in declared() if not name.startswith("epoch.")]
    assert [name for name in names if not any(covers(name, p) or covers(p, name) for p in planted)] == []
    assert [p for p in planted if not any(covers(name, p) or covers(p, name) for name in names)] == []
    for name, file in APART.items():
        assert f'moved("{name}"' in (ROOT / "tests" / file).read_text(), name


def test_a_cause_that_moves_a_metric_the_other_way_is_found() -> None:
    moved("loss", 1.0, 2.0)
    for without, planted in ((2.0, 1.0), (1.0, 1.0), (1.0, float("nan"))):
        with pytest.raises(AssertionError, match="loss is to go up with the scale of rewards"):
            moved("loss", without, planted)


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page.endswith(expectations.markdown()), "write it with tools/metrics_docs.py"


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_cause_moves_it(observed: Any, name: str) -> None:
    def value(run: Run) -> float:
        records, stats = observed(run)
        group, _, field = name.rpartition(".")
        return float(stats[0][field]) if group else float(records[name][-LAST:].astype(np.float64).mean())

    without, planted = PLANTS[name]
    moved(name, value(without), value(planted))


@pytest.mark.parametrize("settings", [(), (*EVERYTHING, *SMALL, *IN_RANGE)], ids=["core", "everything"])
def test_an_ordinary_training_keeps_them(observed: Any, settings: tuple[str, ...]) -> None:
    records, stats = observed(USUAL.but(*settings, steps=40, known=True))
    for name in records.dtype.names:
        expected, values = expectation(name), records[name]
        assert expected is not None, name
        if expected.kind == MOVES:
            assert len(np.unique(values)) > 1, name
        elif expected.kind == ZERO:
            assert not values.any(), name
        else:
            assert len(np.unique(values)) == 1, name
    assert not stats["skipped"].any()


def test_counters_and_clocks_go_up(observed: Any) -> None:
    records, _ = observed(USUAL)
    np.testing.assert_array_equal(records["step"], np.arange(len(records)))
    np.testing.assert_array_equal(records["sequence"], np.arange(len(records)) + 1)
    assert (np.diff(records["started_ns"].astype(np.int64)) > 0).all()
    assert (records["ended_ns"] > records["started_ns"]).all()
    moved("sequence", records["sequence"][0], records["sequence"][-1])
    moved("step", records["step"][0], records["step"][-1])
    moved("started_ns", 0, (records["started_ns"][-1] - records["started_ns"][0]).astype(np.int64))
    moved("ended_ns", 0, (records["ended_ns"][-1] - records["ended_ns"][0]).astype(np.int64))


def test_a_nan_parameter_claims_the_guard_and_is_counted_as_skipped(runtime: Runtime) -> None:
    made = learner(runtime)
    made.step()
    made.drain()
    assert made.last is not None
    before = made.last["guard_key"], made.adam.stats.to_numpy()[0]["skipped"]
    theta = made.adam.theta.to_numpy()
    theta[made.layout.layers[-1].bias.offset] = np.nan
    made.adam.theta.copy_from(theta)

    def step() -> None:
        made.step()
        made.drain()

    with pytest.raises(GuardFault):
        step()
    moved("guard_key", before[0], made.last["guard_key"])
    moved("optim_stats.skipped", before[1], made.adam.stats.to_numpy()[0]["skipped"])
    made.close()


def test_a_td_error_that_is_not_finite_is_skipped(runtime: Runtime) -> None:
    made = learner(runtime)
    made.step()
    before = made.drain()[-1]["replay_skipped"]
    made.drawn.td_error.copy_from(np.full(made.drawn.size, np.nan, np.float32))
    made.replay.record_priorities(runtime.ungraphed("test"), made.drawn, made.step_block)  # type: ignore[arg-type]
    made.step()
    moved("replay_skipped", before, made.drain()[-1]["replay_skipped"])
    made.close()
