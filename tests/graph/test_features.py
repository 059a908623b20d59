"""What a driver lacks: probed, said once, done another way, with the same bits. hostsim passes for older drivers."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foxhunt_rt.driver import FEATURES, FoxhuntError, features
from foxhunt_rt.graph import Runtime

ROOT = Path(__file__).resolve().parents[2]

#: A learner of 3 steps a launch, a gated plan and its edges: driver version, features missing, digests.
PROGRAM = """
import json, logging, sys
import numpy as np
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import Event
from foxhunt_rt.graph import Flag, Runtime

rt = Runtime()
config = Config().with_set(["network.hidden=12", "network.atoms=11", "replay.batch=16", "replay.capacity=512",
                            "loss.v_min=-3", "loss.v_max=3", "train.steps_per_launch=3"])
learner = Learner(rt, config, 5, (3, 2))
random, staging = np.random.default_rng(0), learner.replay.staging(8)
for _ in range(6):
    state, after = (random.normal(size=(8, 5)).astype(np.float32) for _ in range(2))
    learner.replay.insert_batch(staging, random.integers(0, 6, 8), random.normal(size=8), random.random(8) < 0.1,
                                np.zeros(8, bool), state=state, next_state=after)
found = learner.graph.verify(steps=5)
for _ in range(4):
    learner.step()
records = learner.drain()
learned = learner.graph.state.digest(learner.graph.state.snapshot())

word, x = rt.array(np.array([1], np.uint32), "word"), rt.zeros(100, np.float32, "x")
plan = rt.plan("gated")
for name, mask, value in (("always", None, 1.0), ("one", 1, 10.0), ("two", 2, 100.0)):
    with plan.child(name, reads=[], writes=[x], when=Flag(word, mask=mask) if mask else None) as c:
        c.launch("add_scalar", (2,), (64,), dict(x=x, value=value, n=100))
gated = plan.build()
again = gated.verify(steps=3)
gated.launch()
begin, end = Event(rt.context), Event(rt.context)
begin.record(rt.stream), end.record(rt.stream), end.synchronize()
info = gated.info()
print(json.dumps({
    "version": rt.features.driver_version, "missing": rt.features.missing, "equal": [found.bitwise_equal, again.bitwise_equal],
    "digests": sorted({m.digest for m in [*found.modes]}) + sorted({m.digest for m in again.modes}) + [learned],
    "decided": [learner.graph.decided_by, gated.decided_by], "records": len(records), "x": float(x.to_numpy()[0]),
    "chain": info["longest_chain"] - 4 * (info["decided_by"] == "device"), "edges": len(gated.graphs[0].edges()),
    "elapsed": end.elapsed_ms(begin) >= 0.0, "info_missing": info["features_missing"],
    "sizes": learner.graph._functions[0][learner.graph.children[0].kernels[0]].param_size is not None}))
"""


def run(hostsim: str = "", **environment: str) -> tuple[dict[str, object], str]:
    env = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": f"deferred=1,{hostsim}", "PYTHONPATH": str(ROOT),
           **environment}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def newest() -> dict[str, object]:
    found, log = run()
    assert found["missing"] == [] and found["decided"] == ["device", "device"] and "instead:" not in log
    return found


OLDER = {
    "version=12000": (12000, [f.name for f in FEATURES]),
    "version=12030": (12030, ["function_loading", "parameter_sizes", "event_timing"]),
    "version=12040": (12040, ["event_timing"]),
    "conditionals=0": (13000, ["conditional_nodes"]),
}


@pytest.mark.hostsim
@pytest.mark.parametrize("option", OLDER)
def test_an_older_driver_gives_the_same_bits(option: str, newest: dict[str, object]) -> None:
    version, missing = OLDER[option]
    found, log = run(option)
    assert (found["version"], found["missing"], found["info_missing"]) == (version, missing, missing)
    by = "host" if "conditional_nodes" in missing else "device"
    assert found["decided"] == [by, by]
    assert found["sizes"] == ("parameter_sizes" not in missing)
    for key in ("equal", "digests", "records", "x", "chain", "edges", "elapsed"):
        assert found[key] == newest[key], key
    for name in missing:
        assert log.count(f"no {name} (") == 1, "said once"


@pytest.mark.hostsim
def test_the_environment_takes_a_feature_away(newest: dict[str, object]) -> None:
    found, log = run(FOXHUNT_WITHOUT="conditional_nodes, edge_data")
    assert found["missing"] == ["conditional_nodes", "edge_data"]
    assert found["digests"] == newest["digests"]
    assert "no conditional_nodes (switched off); instead: the host reads the flags" in log


def test_what_this_driver_has(runtime: Runtime) -> None:
    """Every feature, on hostsim and on every driver that the package supports for real."""
    assert runtime.features.missing == ()
    assert runtime.features.to_dict()["features"] == dict.fromkeys(f.name for f in FEATURES)


def test_a_runtime_can_do_without(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    features._logged.clear()
    with caplog.at_level(logging.INFO, logger="foxhunt_rt.features"):
        for _ in range(2):
            with Runtime(without=["conditional_nodes"]) as rt:
                assert not rt.features.has("conditional_nodes") and rt.features.has("edge_data")
                assert rt.features.reason("conditional_nodes") == "switched off"
                plan = rt.plan("k")
                x = rt.zeros(4, "f4", "x")
                with plan.child("a", reads=[], writes=[x]) as c:
                    c.memset(x, 1.0)
                with pytest.raises(
                    FoxhuntError, match=r"has no conditional nodes \(switched off\): build with decisions='auto'"
                ):
                    plan.build(steps_per_launch=2, decisions="device")
                assert plan.build(steps_per_launch=2).info()["decided_by"] == "host"
    assert len(caplog.records) == 1
    assert runtime.features.has("conditional_nodes")
    for wrong, answer in (
        ("conditionals", "did you mean conditional_nodes"),
        ("", "known: conditional_nodes, function_"),
    ):
        with pytest.raises(FoxhuntError, match=answer):
            Runtime(without=[wrong])
    with pytest.raises(FoxhuntError, match="no feature warp_drive"):
        runtime.features.has("warp_drive")


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("driver_version", 11080, "the driver is for CUDA 11.8, and 12.0 is the oldest that works: update it"),
        ("COMPUTE_CAPABILITY_MAJOR", 7, "has compute capability 7.0, and 7.5 is the oldest"),
        ("CAN_MAP_HOST_MEMORY", 0, "lacks CAN_MAP_HOST_MEMORY: use another device"),
    ],
)
def test_what_has_no_fallback_is_refused(attribute: str, value: int, text: str) -> None:
    class Old:
        ordinal, name, driver_version = 0, "Old", 13000

        def attribute(self, name: str) -> int:
            if name == attribute:
                return value
            return {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0}.get(name, 1)

    device = Old()
    if attribute == "driver_version":
        device.driver_version = value
    with pytest.raises(features.UnsupportedDevice, match=text):
        features.check_device(device)  # type: ignore[arg-type]
