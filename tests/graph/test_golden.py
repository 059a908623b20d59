"""Golden replays: what was recorded replays; what departs is named; what does not fit is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt import abi
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.graph.deviation import first_difference, worst_deviation
from foxhunt_rt.graph.golden import Golden, GoldenError, Recorder, Replayer

ROOT = Path(__file__).resolve().parents[2]
N = 1000


def build(rt, value=1.0, n=N):
    """x += value; total = sum of x; x += 2."""
    x = rt.array(np.arange(n, dtype=np.float32), "x")
    total = rt.zeros(1, np.float32, "total")
    plan = rt.plan("golden")
    grid = ((n + 127) // 128,)
    with plan.child("increment", reads=[], writes=[x]) as c:
        c.launch("add_scalar", grid, (128,), dict(x=x, value=value, n=n))
    with plan.child("total", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (256,), dict(x=x, sum=total, n=n))
    with plan.child("again", reads=[], writes=[x]) as c:
        c.launch("add_scalar", grid, (128,), dict(x=x, value=2.0, n=n))
    return plan.build(), x


@pytest.fixture
def steps(runtime):
    made = []

    def make(**options):
        made.append(build(runtime, **options))
        return made[-1]

    yield make
    for step, _ in made:
        step.close()


@pytest.mark.parametrize("detail", ["digests", "children", "launches"])
def test_a_recording_replays_through_a_file(steps, tmp_path, detail):
    step, x = steps()
    golden = Golden.load(Recorder(step, detail).record(3).save(tmp_path / "a.npz"))
    assert np.array_equal(x.to_numpy(), np.arange(N)), "recording puts the state back"
    assert (golden.steps, golden.detail) == (3, detail)
    assert os.listdir(tmp_path) == ["a.npz"]
    other, y = steps()
    y.fill(7.0)
    for ungraphed in (False, True):
        assert Replayer(other, golden).run(ungraphed=ungraphed) is None
    assert (y.to_numpy() == 7).all(), "replaying puts back what was there"


def test_the_first_departure_is_named(steps):
    golden = Recorder(steps()[0]).record(2)
    departure = Replayer(steps(value=1.5)[0], golden).run()
    assert (departure.step, departure.child, departure.buffer, departure.element.index) == (0, "increment", "x", 0)
    assert str(departure) == "step 0, child increment: x[0]: 1 against 1.5"


def test_a_departure_in_the_middle_of_a_buffer_and_of_the_steps(steps):
    golden = Recorder(steps()[0]).record(3)
    c = [child["name"] for child in golden.meta["children"]].index("again")
    key = next(k for k in golden.arrays if k.startswith(f"after/1/{c}/"))
    values = golden.arrays[key].view(np.float32).copy()
    expected = values[321].copy()
    values[321] += 1
    golden.arrays[key] = values.view(np.uint8)
    golden.meta["digests"][1][c][key.rpartition("/")[2]] = "0" * 16
    departure = Replayer(steps()[0], golden).run()
    assert str(departure) == f"step 1, child again: x[321]: {expected + 1:.9g} against {expected:.9g}"


def test_digests_alone_name_child_and_buffer(steps):
    golden = Recorder(steps()[0], "digests").record()
    departure = Replayer(steps(value=1.5)[0], golden).run()
    assert str(departure).startswith("step 0, child increment: x has another digest (record with detail='children'")
    with pytest.raises(GoldenError, match="only be compared bit for bit"):
        Replayer(steps()[0], golden).run(tolerance=1e-5)
    with pytest.raises(GoldenError, match="digests only"):
        Replayer(steps()[0], golden).launches()


def test_a_tolerance_lets_rounding_pass_and_nothing_more(steps):
    """Each child starts from the recorded state, so that a thousand small deviations do not add up to a departure."""
    golden = Recorder(steps()[0]).record(4)
    step = steps(value=float(np.nextafter(np.float32(1), np.float32(2))))[0]
    assert Replayer(step, golden).run() is not None
    assert Replayer(step, golden).run(tolerance=2e-5) is None
    departure = Replayer(steps(value=1.1)[0], golden).run(tolerance=2e-5)
    assert departure.child == "increment" and departure.element.deviation == pytest.approx(0.1 / (2e-5 * 579), rel=0.01)


def test_launch_by_launch_every_kernel_is_judged_alone(steps):
    golden = Recorder(steps()[0], "launches").record(2)
    assert {k: d for k, (d, _) in Replayer(steps()[0], golden).launches().items()} == {"add_scalar": 0, "sum": 0}
    found = Replayer(steps(value=1.1)[0], golden).launches()
    assert found["sum"][0] == 0, "it gets the recorded bytes, whatever the launch before wrote"
    assert found["add_scalar"][0] > 1 and found["add_scalar"][1].startswith("increment.x[")


def test_another_plan_is_refused(runtime, steps):
    golden = Recorder(steps()[0]).record()
    with pytest.raises(
        GoldenError, match=r"of another plan: buffer 0 is .*\[1000\].* there and .*\[999\].* here: build"
    ):
        Replayer(steps(n=999)[0], golden)
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("one")
    with plan.child("increment", reads=[], writes=[x]) as c:
        c.memset(x, 1.0)
    step = plan.build()
    with pytest.raises(GoldenError, match="of another plan: child 1 is total there and missing here"):
        Replayer(step, golden)
    step.close()


def test_a_bad_file_is_refused(steps, tmp_path):
    path = Recorder(steps()[0]).record().save(tmp_path / "a.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GoldenError, match="cut short"):
        Golden.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(GoldenError, match="is no golden replay"):
        Golden.load(path)
    with open(path, "wb") as file:
        np.savez(file, meta=np.frombuffer(json.dumps({"format": 99, "package": "9.0"}).encode(), np.uint8))
    with pytest.raises(GoldenError, match=r"format 99, this version reads 1: .*9\.0"):
        Golden.load(path)
    with pytest.raises(FoxhuntError, match="use digests, children, launches"):
        Recorder(steps()[0], "everything")


PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import foxhunt_rt as fx
from test_golden import build
from foxhunt_rt.graph.golden import Recorder
Recorder(build(fx.Runtime())[0]).record(2).save({path!r})
"""


@pytest.mark.hostsim
def test_another_process_and_another_order_of_execution_give_the_same_bits(steps, tmp_path):
    path = tmp_path / "a.npz"
    code = PROGRAM.format(here=str(Path(__file__).parent), path=str(path))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FOXHUNT_HOSTSIM": "seed=7,workers=3"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert Replayer(steps()[0], Golden.load(path)).run() is None


def test_a_learner_replays_but_for_its_timestamps(runtime):
    config = Config().with_set(["network.hidden=12", "network.atoms=11", "replay.batch=16", "replay.capacity=512",
                                "loss.v_min=-3", "loss.v_max=3"])  # fmt: skip
    learners = [Learner(runtime, config, 5, (3, 2)) for _ in range(2)]
    random, replay = np.random.default_rng(0), learners[0].replay
    staging = replay.staging(8)
    for _ in range(6):
        state, after = (random.normal(size=(8, 5)).astype(np.float32) for _ in range(2))
        replay.insert_batch(staging, random.integers(0, 6, 8), random.normal(size=8), random.random(8) < 0.1,
                            np.zeros(8, bool), state=state, next_state=after)  # fmt: skip
    golden = Recorder(learners[0].graph).record(3)
    assert Replayer(learners[1].graph, golden).run() is None, "the file carries the replay, too"
    learners[1].guard.copy_from(np.array([(0,)], abi.dtype("guard_block")))
    assert Replayer(learners[1].graph, golden).run() is None, "and the guard"
    for learner in learners:
        learner.close()


# ---------------------------------------------------------------------- deviations, against numbers worked out by hand


def test_deviation_of_floats_integers_and_specials():
    a = np.array([3.0, -4.0, 0.0], np.float32)  # rms sqrt(25/3) = 2.88675
    worst = worst_deviation(a, a + np.array([0, 0, 0.01], np.float32), 1e-3)
    assert worst.index == 2 and worst.deviation == pytest.approx(0.01 / (1e-3 * 2.88675), rel=1e-4)
    assert worst_deviation(a, a, 1e-3) is None
    nan = np.array([3.0, np.nan, 0.0], np.float32)
    assert worst_deviation(nan, nan, 1e-3) is None
    for x, y in ((a, nan), (nan, a), (np.array([np.inf]), np.array([-np.inf])), (np.array([1]), np.array([2]))):
        assert worst_deviation(x, y, 1e9).deviation == np.inf
    assert first_difference(np.array([0.0, -0.0]), np.array([0.0, 0.0])).index == 1, "bits, not values"


def test_deviation_of_structs_names_the_field():
    kind = np.dtype([("n", "i4"), ("pair", "f4", (2,)), ("when", "u8")])
    a = np.zeros(3, kind)
    b = a.copy()
    b["when"] = 5
    assert first_difference(a, b, ("when",)) is None and first_difference(a, b, ()) is None
    assert str(first_difference(a, b)) == "[0].when: 0 against 5"
    b["pair"][2, 1] = 0.5
    assert str(first_difference(a, b, ("when",))) == "[2].pair[1]: 0 against 0.5"
    b["n"][1] = 4
    assert str(first_difference(a, b, ("when",))) == "[1].n: 0 against 4"
    assert str(worst_deviation(a, b, 1e-3, ("when",))) == "[1].n: 0 against 4"
