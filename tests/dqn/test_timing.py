"""The learner's times: a line for each of the first steps with the device's and the host's share, and no driver call for it."""

from __future__ import annotations

import logging

import pytest

from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.graph import ChildTimes
from foxhunt_rt.testing import PLUMBING, DriverCalls

from .test_steps_per_launch import BRANCHES, S, config, fill


@pytest.fixture(params=[1, 3])
def learner(runtime, request):
    made = Learner(runtime, config(request.param), S, BRANCHES)
    fill(made)
    yield made
    made.close()


def test_the_first_five_steps_and_every_fiftieth_are_logged(learner, caplog):
    with caplog.at_level(logging.INFO, logger="foxhunt_rt.step"):
        while learner.launched < 51:
            learner.step()
        records = learner.drain()
    lines = [r.message for r in caplog.records if r.name == "foxhunt_rt.step"]
    assert [int(line.split()[1]) for line in lines] == [0, 1, 2, 3, 4, 50]
    device = (records["ended_ns"][50] - records["started_ns"][50]) / 1e3
    period = (records["started_ns"][50] - records["started_ns"][49]) / 1e3
    last = learner.timer.last
    assert (last.step, last.device_us, last.period_us) == (50, pytest.approx(device), pytest.approx(period))
    assert last.launch_us > 0 and 0 <= last.host_wait_us <= last.launch_us


def test_a_reset_begins_anew(learner, caplog):
    learner.step()
    learner.drain()
    learner.reset(1, clear_replay=False)
    assert learner.timer.last is None
    with caplog.at_level(logging.INFO, logger="foxhunt_rt.step"):
        learner.step()
        learner.drain()
    assert [int(r.message.split()[1]) for r in caplog.records] == list(range(learner.steps_per_launch))


def test_timing_makes_no_driver_call(runtime, learner):
    learner.step()
    learner.drain()
    with runtime.context.current(), DriverCalls() as calls:
        for _ in range(4):
            learner.step()
    assert {name: n for name, n in calls.found.items() if name not in PLUMBING} == {"cuGraphLaunch": 4}, calls.text()
    learner.drain()


def test_children_add_up_to_the_step(learner, caplog):
    """The core step is a chain but for the priorities, so its children's times make up the device's time."""
    learner.timer.children = ChildTimes(learner.graph)
    with caplog.at_level(logging.INFO, logger="foxhunt_rt.step"):
        learner.step(1)
        learner.drain()
    found = learner.timer.last_children
    assert list(found) == [c.name for c in learner.graph.children]
    assert all(us >= 0 for us in found.values()), found
    chain = sum(us for name, us in found.items() if name != "per_priority")
    assert chain <= learner.timer.last.device_us * 1.001
    assert chain + found["per_priority"] >= learner.timer.last.device_us * 0.999
    assert "children counters " in caplog.records[1].message
