"""The learner as a whole: one launch a step and nothing else, settings in stream order, records, guard, fold reset.

The rows of the known failures that concern the step are named where they are tested.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime, abi
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.guard import CLEAR, Finding, GuardFault, decode
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.records import RecordError, RecordReader
from foxhunt_rt.driver import counts, memset_pattern
from foxhunt_rt.graph import BakedValueError
from foxhunt_rt.graph.child import MemsetOp
from foxhunt_rt.replay import ReplayError
from foxhunt_rt.testing import assert_calls, assert_no_growth

S, BRANCHES, E = 5, (3, 2), 8


def small(*assignments: str) -> Config:
    return Config().with_set(["network.hidden=12", "network.atoms=11", "replay.capacity=512", "replay.batch=16",
                              "optim.horizon=50", "loss.v_min=-3", "loss.v_max=3", *assignments])  # fmt: skip


def insert(learner: Learner, inserts: int = 8, seed: int = 0, reward: float | None = None) -> None:
    random = np.random.default_rng(seed)
    staging = learner.replay.staging(E)
    for _ in range(inserts):
        state, after = (random.normal(size=(E, S)).astype(np.float32) for _ in range(2))
        given = random.normal(size=E) if reward is None else np.full(E, reward)
        learner.replay.insert_batch(staging, random.integers(0, 6, E), given, random.random(E) < 0.1, np.zeros(E, bool),
                                    state=state, next_state=after)  # fmt: skip


def contents(learner: Learner) -> dict[str, bytes]:
    """Every buffer that a step writes, without its timestamps."""
    out = {}
    for buffer in learner.state_buffers():
        array = buffer.to_numpy()  # type: ignore[attr-defined]
        for name in ("started_ns", "ended_ns"):
            if name in (array.dtype.names or ()):
                array[name] = 0
        out[f"{buffer.label}@{buffer.ptr:x}"] = array.tobytes()
    return out


def step_and_drain(learner: Learner) -> npt.NDArray[Any]:
    """One step and its record; the step itself may have read it already."""
    learner.step()
    return learner.drain()


@pytest.fixture
def make(runtime: Runtime) -> Iterator[Callable[..., Learner]]:
    made: list[Learner] = []

    def build(*assignments: str, rows: int = 8) -> Learner:
        learner = Learner(runtime, small(*assignments), S, BRANCHES)
        made.append(learner)
        if rows:
            insert(learner, rows)
        return learner

    yield build
    for learner in made:
        learner.close()


@pytest.mark.usefixtures("no_redzones")
def test_a_step_is_one_launch_without_synchronization_or_allocation(make: Callable[..., Learner]) -> None:
    """Over 1,000 steps one cuGraphLaunch each, and beside it only which context is current. hostsim counts the calls itself."""
    learner = make()
    learner.step()
    learner.drain()
    with assert_calls({"cuGraphLaunch": 1000}, runtime=learner.runtime) as calls:
        for _ in range(1000):
            learner.step()
    assert calls.ours["cuGraphLaunch"] == 1000


@pytest.mark.usefixtures("no_redzones")
def test_steps_leave_no_allocation_of_python_behind(make: Callable[..., Learner]) -> None:
    learner = make()

    def steps(count: int) -> None:
        for _ in range(count):
            learner.step()
        learner.drain()

    steps(100)
    with assert_no_growth():
        steps(1000)


def test_children_are_those_of_the_core_step_in_order(make: Callable[..., Learner]) -> None:
    info = make().graph.info()
    assert [c["name"] for c in info["children"]] == [
        "counters", "per_sample", "forward", "ddqn", "adam_grad", "adam", "per_priority"]  # fmt: skip
    assert [c["name"] for c in info["epilogue"]] == ["publish"]
    assert ["adam_grad", "per_priority"] not in info["edges"], "priorities run beside the backward pass"


def test_the_step_clears_nothing_bytewise(make: Callable[..., Learner]) -> None:
    """Known failure K18: 33 byte-wide gradient clears a step. The flat gradient needs none; a clear would be 32 bits wide."""
    learner = make()
    ops = [op for child in learner.graph.children for op in child.ops]
    assert not [op for op in ops if isinstance(op, MemsetOp)]
    assert memset_pattern(learner.grad.grad, 0)[0] == 4
    before = {name: n for name, n in counts.items() if name.startswith("cuMemsetD")}
    learner.graph.run_ungraphed()
    assert {name: n for name, n in counts.items() if name.startswith("cuMemsetD")} == before


def test_every_statistic_moves(make: Callable[..., Learner]) -> None:
    """Known failure K6: a statistic stayed zero for weeks."""
    learner = make("loss.grad_budget=0.001", "optim.max_grad_norm=0.0001", "guard.q_clip=0.0001", "guard.edge_mass=0.001",
                   "guard.atom_use=0.99", "guard.spike_mass=0.2", "guard.spike_share=0.01")  # fmt: skip
    learner.set(alpha_c51=0.5)
    insert(learner, 2, seed=3, reward=2.9)
    for step in range(12):
        if step == 6:
            learner.set(alpha_c51=0.6)
            insert(learner, 4, seed=4)
        learner.step()
    records = learner.drain()
    assert list(records["step"]) == list(range(12))
    assert list(records["sequence"]) == list(range(1, 13))
    still = {"guard_key", "replay_skipped"}
    for name in records.dtype.names or ():
        if name not in still:
            assert len(np.unique(records[name])) > 1, f"{name} is {records[name][0]} in every record"
    assert (records["guard_key"] == CLEAR).all() and not records["replay_skipped"].any()
    assert (np.diff(records["ended_ns"].astype(np.int64)) > 0).all()
    assert (records["ended_ns"] >= records["started_ns"]).all()


def test_a_grown_replay_is_seen_by_the_captured_step(make: Callable[..., Learner]) -> None:
    """Known failure K8: replays sampled from the buffer size of capture time."""
    learner = make("replay.n_step=1", rows=3)
    for _ in range(3):
        learner.step()
    assert learner.drain()["replay_size"][-1] == 3 * E
    assert learner.batch.index.to_numpy().max() < 3 * E
    insert(learner, 40, seed=1)
    seen: set[int] = set()
    for _ in range(20):
        learner.step()
        seen |= set(learner.batch.index.to_numpy().tolist())
    assert learner.drain()["replay_size"][-1] == 43 * E
    assert max(seen) >= 30 * E
    with pytest.raises(BakedValueError, match="baked"):
        learner.graph.set("per_sample", "per_sample", n_step=2)


def test_too_few_rows_are_refused_before_the_launch(make: Callable[..., Learner]) -> None:
    learner = make(rows=0)
    launches = counts["cuGraphLaunch"]
    with pytest.raises(ReplayError, match="too few"):
        learner.step()
    assert counts["cuGraphLaunch"] == launches and learner.launched == 0


def test_same_seed_same_bits_and_a_reset_is_a_new_learner(make: Callable[..., Learner]) -> None:
    """Known failures K9 and K11's state of the fold before: fold k alone equals fold k in sequence."""

    def fold(learner: Learner, seed: int) -> dict[str, bytes]:
        learner.reset(seed)
        insert(learner, 12, seed)
        learner.set(alpha_c51=0.3)
        for _ in range(6):
            learner.step()
        learner.set(lr=1e-3, alpha_c51=0.9, gamma=0.5)
        for _ in range(3):
            learner.step()
        learner.drain()
        return {name.split("@")[0] + str(i): data for i, (name, data) in enumerate(contents(learner).items())}

    alone, sequence = make(), make()
    fold(sequence, 1)
    first, second = fold(alone, 2), fold(sequence, 2)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    theta = next(name for name in second if name.startswith("adam.theta"))
    assert fold(sequence, 3)[theta] != second[theta], "another seed is another network"


def test_ungraphed_mode_gives_the_same_bits(make: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch) -> None:
    """FOXHUNT_GRAPH=off and =debug run the same launches one by one."""
    ends = {}
    for mode in ("on", "off", "debug"):
        monkeypatch.setitem(os.environ, "FOXHUNT_GRAPH", mode)
        learner = make()
        for _ in range(3):
            learner.step()
        ends[mode] = learner.drain()
        ends[f"{mode}.theta"] = learner.adam.theta.to_numpy()
    for mode in ("off", "debug"):
        np.testing.assert_array_equal(ends[f"{mode}.theta"], ends["on.theta"])
        np.testing.assert_array_equal(ends[mode]["loss"], ends["on"]["loss"])


def test_settings_apply_in_stream_order(make: Callable[..., Learner]) -> None:
    learner = make("guard.launches_ahead=8")
    lrs = [1e-3, 2e-3, 3e-3, 4e-3]
    for lr in lrs:
        learner.set(lr=lr, lr_min=lr)
        learner.step()
    np.testing.assert_array_equal(learner.drain()["lr"], np.array(lrs, np.float32))


def test_a_budget_cannot_be_switched_on_in_a_plan_without_one(make: Callable[..., Learner]) -> None:
    learner = make("loss.grad_budget=0")
    with pytest.raises(ConfigError, match="before making it"):
        learner.set(grad_budget=1.0)
    assert learner.graph.where("budget_blend") == []


def test_parameters_load_and_come_back(make: Callable[..., Learner]) -> None:
    learner = make()
    tensors = {name: value + 1 for name, value in learner.params().items()}
    learner.load_params(tensors)
    for target in (False, True):
        for name, value in learner.params(target=target).items():
            np.testing.assert_array_equal(value, tensors[name])


# ---------------------------------------------------------------------- guard and records


def test_a_planted_nan_is_caught_in_one_step_and_says_where(make: Callable[..., Learner]) -> None:
    learner = make()
    learner.step()
    learner.drain()
    theta = learner.adam.theta.to_numpy()
    theta[learner.layout.layers[-1].bias.offset] = np.nan
    learner.adam.theta.copy_from(theta)
    with pytest.raises(GuardFault) as caught:
        step_and_drain(learner)
    fault = caught.value
    assert (fault.step, fault.child, fault.check) == (1, "ddqn", "non_finite")
    assert not np.isfinite(fault.value)
    assert "step 1" in str(fault) and "\n" not in str(fault)
    assert learner.last is not None and learner.last["step"] == 1 and np.isnan(learner.last["q_max"])
    again = pickle.loads(pickle.dumps(fault))
    assert (again.step, again.check, str(again)) == (fault.step, fault.check, str(fault))
    learner.reset(1)
    insert(learner)
    learner.step()
    assert np.isfinite(learner.drain()["loss"]).all(), "a reset clears the guard"


def test_every_alpha_is_free_of_faults(make: Callable[..., Learner]) -> None:
    """Known failure K11: the share of the cross-entropy rose from 0 to 0.2 and |Q| was reported as 1e30."""
    learner = make("loss.v_min=-240", "loss.v_max=240")
    for alpha in np.linspace(0.0, 1.0, 11):
        learner.set(alpha_c51=float(alpha))
        learner.step()
    records = learner.drain()
    assert (np.abs(records["q_min"]) <= 240).all() and (np.abs(records["q_max"]) <= 240).all()


def test_a_batch_of_terminal_rows_alone_has_finite_statistics(make: Callable[..., Learner]) -> None:
    """Known failure K11: statistics reduced over no rows. The share of spikes is taken over rows that do not end an episode."""
    learner = make("replay.n_step=1", rows=0)
    staging, zeros = learner.replay.staging(E), np.zeros((E, S), np.float32)
    for _ in range(4):
        learner.replay.insert_batch(staging, np.zeros(E, int), np.ones(E), np.ones(E, bool), np.zeros(E, bool), state=zeros,
                                    next_state=zeros)  # fmt: skip
    (record,) = step_and_drain(learner)
    assert record["spike_share"] == 0.0
    for name in record.dtype.names:
        assert np.isfinite(record[name]), name


def test_key_round_trip() -> None:
    bits = int(np.float32(-2.5).view(np.uint32))
    head = abi.constant("GUARD_ADAM") << 28 | abi.constant("CHECK_NON_FINITE") << 24 | 77
    assert decode(head << 32 | bits) == Finding("adam", "non_finite", 77, -2.5)
    assert decode(CLEAR) is None


def write(reader: RecordReader, step: int, key: int = CLEAR) -> None:
    """What publish does, by hand."""
    slot: npt.NDArray[Any] = reader.ring.host[step % len(reader.ring.host)]
    slot["step"], slot["guard_key"], slot["sequence"] = step, key, step + 1


def test_reader_takes_every_record_once_and_raises_on_an_overrun(runtime: Runtime) -> None:
    """Known failure K10: a guard that looked every fifth step missed whole epochs."""
    reader = RecordReader(runtime, 4)
    seen: list[int] = []
    take = lambda record: seen.extend(reader.decode([record])["step"].tolist())  # noqa: E731
    assert reader.poll(take) == 0
    for step in range(3):
        write(reader, step)
    assert reader.poll(take) == 3 and reader.poll(take) == 0
    for step in range(3, 7):
        write(reader, step)
    reader.ring.host["sequence"][7 % 4] = 0  # the writer is in the middle of step 7: its slot held step 3
    with pytest.raises(RecordError, match="idle"):
        reader.wait(7, take, timeout_s=0.2)
    assert seen == [0, 1, 2]
    write(reader, 7)
    with pytest.raises(RecordError, match="overwritten by that of step 7"):
        reader.poll(take)
    reader.reset()
    write(reader, 0, key=(abi.constant("GUARD_DDQN") << 28 | abi.constant("CHECK_MASS") << 24) << 32)
    with pytest.raises(GuardFault, match="mass"):
        reader.poll(take)
    assert seen[-1] == 0, "the record of the fault is delivered too"


def test_the_host_runs_at_most_d_launches_ahead(make: Callable[..., Learner]) -> None:
    learner = make("guard.launches_ahead=2")
    for _ in range(20):
        learner.step()
        assert learner.launched - learner.records.next_step <= 2
    assert len(learner.drain()) == 20
