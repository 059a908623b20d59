"""Several devices in one process: found by ordinal and UUID, each with a runtime of its own that takes nothing from another.

On a GPU machine these tests want two devices; hostsim stands for two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import (
    Device,
    DeviceNotFound,
    Graph,
    OtherRuntime,
    call,
    hostsim,
    live_allocations,
    load,
)
from foxhunt_rt.graph import Flag, Runtime

N = 300
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def two(driver: str) -> Iterator[tuple[Runtime, Runtime]]:
    """A runtime on each of two devices."""
    sim = hostsim()
    if sim is not None:
        assert sim.fxHostsimConfigure(b"devices", 2) == 0
    if int(call(load().cuDeviceGetCount)) < 2:
        pytest.skip("one device: this test wants two")
    with Runtime(0) as first, Runtime(1) as second:
        yield first, second
    if sim is not None:
        assert sim.fxHostsimConfigure(b"devices", 1) == 0


def launch_one(rt: Runtime, x: Any) -> None:
    rt.ungraphed("user").launch("add_scalar", (3,), (128,), dict(x=x, value=1.0, n=N))


@pytest.mark.gpu
def test_a_device_has_the_uuid_of_nvml(runtime: Runtime) -> None:
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(runtime.device.pci_bus_id.encode())
        assert pynvml.nvmlDeviceGetUUID(handle) == runtime.device.uuid
    finally:
        pynvml.nvmlShutdown()


def test_a_device_is_found_by_its_uuid(runtime: Runtime) -> None:
    uuid = runtime.device.uuid
    assert uuid.startswith("GPU-") and len(uuid) == 40
    assert Device(uuid).ordinal == Device(uuid.upper()).ordinal == runtime.device.ordinal
    for wrong in ("GPU-00000000-0000", "MIG-00000000-0000", "GPU-", "", 99, -1):
        with pytest.raises(
            DeviceNotFound, match=f"there is no device {wrong}: give one that this process sees: 0 .{uuid}"
        ):
            Device(wrong)
    with pytest.raises(DeviceNotFound, match="when CUDA_VISIBLE_DEVICES names it before the process starts"):
        Device("MIG-00000000-0000")


def test_uuid_prefixes_and_ordinals(two: tuple[Runtime, Runtime]) -> None:
    first, second = (rt.device.uuid for rt in two)
    assert first != second and two[0].device.pci_bus_id != two[1].device.pci_bus_id
    assert [Device(u).ordinal for u in (first, second)] == [0, 1]
    common = next(i for i, (a, b) in enumerate(zip(first, second)) if a != b)
    if common > len("GPU-"):
        with pytest.raises(DeviceNotFound, match="is the beginning of several UUIDs"):
            Device(first[:common])
    assert Device(second[: common + 1] if common >= len("GPU-") else second).ordinal == 1


@pytest.mark.usefixtures("two")
def test_peers_are_never_assumed() -> None:
    """No call enables or asks for access to a peer: hostsim has none, and what we call is counted."""
    from foxhunt_rt.driver import counts

    assert not [name for name in counts if "Peer" in name]


def test_each_runtime_has_its_own_memory_and_work(two: tuple[Runtime, Runtime]) -> None:
    buffers = []
    for rt in two:
        x = rt.zeros(N, np.float32, f"x of {rt.device.ordinal}")
        for _ in range(rt.device.ordinal + 1):
            launch_one(rt, x)
        buffers.append(x)
    assert [b.to_numpy()[0] for b in buffers] == [1, 2]
    for rt, other in (two, two[::-1]):
        free = [r.context.memory_info()[0] for r in (rt, other)]
        # cuPointerGetAttribute(DEVICE_ORDINAL) is no oracle: through cuda-bindings 13.3 it answered 0 for both H200s.
        big = rt.empty(2**26, np.uint8, "big")
        taken = [before - r.context.memory_info()[0] for before, r in zip(free, (rt, other))]
        assert taken[0] >= 2**26 and abs(taken[1]) < 2**25, "the memory lies on its runtime's device"
        assert big.__dlpack_device__()[1] in (0, rt.device.ordinal)
        big.free()


def test_the_current_context_is_what_it_was(two: tuple[Runtime, Runtime]) -> None:
    first, second = two
    with first.context.current():
        x = second.zeros(N, np.float32, "x")
        launch_one(second, x)
        assert first.context.is_current
        second.synchronize()
        assert first.context.is_current


def test_objects_of_another_runtime_are_refused(two: tuple[Runtime, Runtime]) -> None:
    first, second = two
    x, y = first.zeros(N, np.float32, "x"), second.zeros(N, np.float32, "y")
    with pytest.raises(OtherRuntime, match="user was given x, which belongs to another runtime: make it with this one"):
        launch_one(second, x)
    plan = second.plan("mixed")
    for declared in (dict(reads=[x], writes=[]), dict(reads=[], writes=[x]), dict(reads=[], writes=[], private=[x])):
        with pytest.raises(OtherRuntime, match="child a was given x"):
            plan.child("a", **declared)
    word = first.zeros(1, np.uint32, "word")
    with pytest.raises(OtherRuntime, match="was given word"):
        plan.child("gated", reads=[], writes=[y], when=Flag(word))
    with pytest.raises(OtherRuntime, match="child tail was given x"):
        plan.epilogue("tail", writes=[x])
    with plan.child("fine", reads=[], writes=[y]) as c:
        c.memset(y, 1.0)
    with pytest.raises(OtherRuntime, match="stop flag of plan mixed was given word"):
        plan.build(steps_per_launch=2, stop=Flag(word))
    step = plan.build()
    other = first.plan("other")
    with other.child("fine", reads=[], writes=[x]) as c:
        c.memset(x, 1.0)
    with pytest.raises(OtherRuntime, match=r"update\(\) was given x"):
        step.update(other)
    graph = Graph(second.context)
    second.context.call(second.context.cu.cuGraphAddEmptyNode, graph.handle, [], 0)
    with pytest.raises(OtherRuntime, match="foreign was given x"):
        plan.child_from_graph("foreign", int(graph.handle), reads=[x], writes=[])
    for order in (second.stream.wait, second.stream.before):
        with pytest.raises(OtherRuntime, match="a stream of device 0 cannot be ordered with one of device 1"):
            order(first.stream)
    with pytest.raises(OtherRuntime, match="y was given x"):
        y.copy_from_device(x)
    step.launch()
    assert y.to_numpy()[0] == 1 and not x.to_numpy().any()
    step.close()


def learn(rt: Runtime, results: dict[int, str], barrier: threading.Barrier | None = None) -> None:
    """Some steps of a small learner: digest of everything that a step writes."""
    config = Config().with_set(["network.hidden=12", "network.atoms=11", "replay.batch=16", "replay.capacity=512",
                                "loss.v_min=-3", "loss.v_max=3"])  # fmt: skip
    learner = Learner(rt, config, 5, (3, 2))
    random, staging = np.random.default_rng(0), learner.replay.staging(8)
    for _ in range(6):
        state, after = (random.normal(size=(8, 5)).astype(np.float32) for _ in range(2))
        learner.replay.insert_batch(staging, random.integers(0, 6, 8), random.normal(size=8), random.random(8) < 0.1,
                                    np.zeros(8, bool), state=state, next_state=after)  # fmt: skip
    if barrier is not None:
        barrier.wait()
    for _ in range(12):
        learner.step()
    learner.drain()
    results[rt.device.ordinal] = learner.graph.state.digest(learner.graph.state.snapshot())
    learner.close()


def test_two_learners_in_two_threads_learn_what_each_learns_alone(two: tuple[Runtime, Runtime]) -> None:
    alone: dict[int, str] = {}
    for rt in two:
        learn(rt, alone)
    together: dict[int, str] = {}
    barrier = threading.Barrier(2, timeout=60)
    threads = [threading.Thread(target=learn, args=(rt, together, barrier)) for rt in two]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone[0] == alone[1], "one seed, one device model: the same bits"
    assert together == alone


OTHERS_MEMORY = """
import numpy as np
import pytest
from foxhunt_rt.driver import ContextDead, DriverError
from foxhunt_rt.graph import Runtime

first, second = Runtime(0), Runtime(1)
x, y = (rt.zeros(300, np.float32, name) for rt, name in ((first, "x"), (second, "y")))
y.ptr = x.ptr

def launch(rt, buffer):
    rt.ungraphed("user").launch("add_scalar", (3,), (128,), dict(x=buffer, value=1.0, n=300))
    rt.synchronize()

with pytest.raises(DriverError, match="on device 1: the argument at offset 0 points to x on device 0"):
    launch(second, y)
with pytest.raises(ContextDead):
    second.synchronize()
launch(first, x)
assert x.to_numpy()[0] == 1, "the other device's context lives"
"""


@pytest.mark.hostsim
def test_memory_of_another_device_is_an_illegal_address() -> None:
    """Past our checks, by a raw pointer: what a GPU without peer access does, and hostsim says whose memory it was. In a
    process of its own: a device whose context died takes no other runtime."""
    environment = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": "devices=2"}
    done = subprocess.run([sys.executable, "-c", OTHERS_MEMORY], env=environment, cwd=ROOT, text=True, capture_output=True,
                          timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_closing_one_leaves_the_other(two: tuple[Runtime, Runtime]) -> None:
    first, second = two
    x, y = first.zeros(N, np.float32, "x of the closed"), second.zeros(N, np.float32, "y")
    first.close()
    assert not x.alive and y.alive
    launch_one(second, y)
    assert y.to_numpy()[0] == 1
    assert "x of the closed" not in [label for label, _ in live_allocations()]
