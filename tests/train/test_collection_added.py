"""Counterfactual and mirrored rows in a run: the collect graph, what it adds on and off, folds, resuming the ring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.driver import live_allocations
from foxhunt_rt.kernels import abi
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.replay import Batch, saved
from foxhunt_rt.train.fold import collected
from foxhunt_rt.train.world import World

from ..replay.harness import sample, step_block
from .train_harness import small_config, small_data

pytestmark = pytest.mark.usefixtures("quick")  # with red zones: tests/market/test_counterfactual.py

ON = ("market.counterfactual.enabled=true", "market.counterfactual.share=0.5", "market.mirror.enabled=true")
E, ADDED = 7, 4  # small_config's environments, and half of them
COUNTERFACTUAL, ABSENT = abi.constant("ENDED_COUNTERFACTUAL"), abi.constant("ENDED_ABSENT")


def make(rt: Runtime, *settings: str) -> World:
    config = small_config("replay.capacity=8000", *settings)
    return World(rt, small_data(config), config)


def passed(world: World, seed: int = 9) -> Any:
    """The rows of one pass over the first training window, (inserts, rows of an insert)."""
    fold = world.folds[0]
    world.enter(fold, seed)
    world.collector.policy.set_exploration(1.0)
    world.collector.begin(split_window(world.ends, *fold.train, E))
    world.collector.finish()
    stride = world.collector.staging.environments
    return world.replay.rows.to_numpy()[: world.replay.inserted].reshape(-1, stride)


@pytest.fixture(scope="module")
def world(quick: None, runtime: Runtime) -> Any:
    made = make(runtime, *ON)
    yield made
    made.close()


def test_a_pass_takes_every_decision_once_and_half_as_many_beside(world: World) -> None:
    first, stop = world.folds[0].train
    rows = passed(world)
    assert rows.shape[1] == E + ADDED
    taken, added = rows[:, :E], rows[:, E:]
    bars = np.arange(first, stop - 1)
    present = taken["ended"] & ABSENT == 0
    np.testing.assert_array_equal(np.sort(taken["feature_row"][present]), bars[world.ends[bars] > bars])
    assert not (taken["ended"] & COUNTERFACTUAL).any()
    beside = added["ended"] & ABSENT == 0
    assert (added["ended"][beside] & COUNTERFACTUAL > 0).all()
    assert set(added["feature_row"][beside]) <= set(bars)
    report = world.collector.report()
    assert report["rows"] == present.sum() + beside.sum()
    assert report["counterfactual_share"] == pytest.approx(beside.sum() / report["rows"])
    assert 0.35 < report["counterfactual_share"] < 0.37 and 0.45 < report["mirrored_share"] < 0.55
    assert len({c["rows"] > 20 for c in report["cycles"].values()}) == 1


def test_scale_and_support_come_from_the_steps_taken(world: World) -> None:
    rows = passed(world)
    reward, ended = collected(world)
    np.testing.assert_array_equal(reward, rows["reward"][:, :E])
    np.testing.assert_array_equal(ended, rows["ended"][:, :E])


def test_popart_counts_the_steps_taken_alone(runtime: Runtime) -> None:
    off = make(runtime, "popart.enabled=true")
    passed(off)
    expected = off.replay.returns.to_numpy()
    off.close()
    on = make(runtime, "popart.enabled=true", *ON)
    passed(on)
    found = on.replay.returns.to_numpy()
    on.close()
    assert found["count"] == expected["count"] > 1000
    np.testing.assert_array_equal(found, expected)


def test_a_fold_begins_as_a_new_world_does(runtime: Runtime, world: World) -> None:
    fresh = make(runtime, *ON)
    expected = passed(fresh)
    fresh.close()
    for _ in range(2):
        found = passed(world)
        np.testing.assert_array_equal(found, expected)
    assert (passed(world, seed=10)["action"] != expected["action"]).any()


def test_steps_taken_are_what_they_are_without(runtime: Runtime, world: World) -> None:
    off = make(runtime)
    expected, found = passed(off), passed(world)[:, :E]
    off.close()
    for name in ("reward", "ended", "feature_row", "next_feature_row"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_off_adds_nothing_and_on_no_launch(runtime: Runtime) -> None:
    """Nodes, modules and memory of the collect graph, each in a runtime of its own."""

    def footprint(*settings: str) -> tuple[int, set[str], int, set[str]]:
        with Runtime(runtime.device.ordinal) as own:
            before = {label for label, _ in live_allocations()}
            made = make(own, *settings)
            modules = {entry.module.name for entry in own.ledger.entries()}
            memory = {b.allocation.ptr: b.allocation.nbytes for b in made.collector.graph.buffers()}
            labels = {b.label for b in made.collector.graph.buffers()} - before
            nodes = made.collector.graph.info()["nodes"]
            made.close()
        return nodes, modules, sum(memory.values()), labels

    nodes, modules, size, labels = footprint()
    assert not any(word in label for label in labels for word in ("augment", "mirror", "sign"))
    off = footprint("market.counterfactual.cycles=5", "market.mirror.share=1")  # options of what is off
    assert off[:3] == (nodes, modules, size)
    on = footprint(*ON)
    assert on[:2] == (nodes, modules)
    augment = 88 * E
    staged = (E + ADDED) * 14 * 4 - E * 13 * 4
    assert on[2] - size == augment + staged + 8000  # a byte a row of the ring


def test_the_ring_resumes_bit_for_bit(runtime: Runtime, world: World) -> None:
    passed(world)
    tensors, counts = saved.read_contents(world.replay)
    assert tensors["mirrored"].any() and not tensors["mirrored"].all()
    other = make(runtime, *ON)
    other.enter(other.folds[0], 9)
    saved.write_contents(other.replay, tensors, counts)
    got = []
    for each in (world, other):
        batch = Batch.allocate(runtime, 200, each.replay.state_dim)
        got.append(sample(each.replay, batch, step_block(runtime)))
    for name in got[0]:
        np.testing.assert_array_equal(got[0][name], got[1][name])
    plain = make(runtime)
    assert saved.describe(plain.replay) != saved.describe(other.replay)
    plain.close()
    other.close()


COLLECT = """
import hashlib, json, sys
import foxhunt_rt as fx
from tests.train.test_collection_added import ON, make, passed
rt = fx.Runtime()
world = make(rt, *ON)
passed(world)
world.collector.launch()
world.learner.step()
world.learner.drain()
buffers = [*world.collector.graph.buffers()]
print(json.dumps({f"{i} {b.label}": hashlib.sha256(b.to_numpy().tobytes()).hexdigest() for i, b in enumerate(buffers)}))
"""


@pytest.mark.hostsim
def test_the_collect_graph_gives_the_same_bits_in_any_order() -> None:
    """Known failure K9, for the graph that collects, with all that it may add."""

    def digests(options: str) -> dict[str, str]:
        done = subprocess.run([sys.executable, "-c", COLLECT], text=True, capture_output=True, timeout=100,
                              env=os.environ | {"FOXHUNT_HOSTSIM": options})  # fmt: skip
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    natural = digests("workers=1")
    assert any("augment.counts" in name for name in natural) and any("mirrored" in name for name in natural)
    for options in ("seed=1", "seed=2,workers=1", "seed=3,deferred=1"):
        other = digests(options)
        assert [name for name in natural if other[name] != natural[name]] == [], options
