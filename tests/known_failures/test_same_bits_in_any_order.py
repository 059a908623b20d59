"""Known failure K9: replays differed from run to run, by sums whose order was that in which blocks came.

Two runs on one machine often come in one order, so that luck hides such a sum. hostsim's `seed` shuffles the blocks of a
launch, the threads of a block, and graph nodes without an edge between them: whatever the order, the bits must be the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from ..dqn.everything import EVERYTHING

TRAIN = """
import hashlib, json, sys
import numpy as np
import foxhunt_rt as fx
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner

# 300 rows: the batch is split among blocks, whose partial gradients are added; a budget: one more sum over the rows
config = Config().with_set(["network.hidden=24,19", "network.atoms=11", "replay.capacity=1024", "replay.batch=300",
                            "optim.horizon=50", "loss.v_min=-3", "loss.v_max=3", "loss.grad_budget=0.01", *sys.argv[1:]])
learner = Learner(fx.Runtime(), config, 5, (3, 2))
random, staging = np.random.default_rng(0), learner.replay.staging(16)
for _ in range(40):
    learner.replay.insert_batch(staging, random.integers(0, 6, 16), random.normal(size=16), random.random(16) < 0.1,
                                np.zeros(16, bool), state=random.normal(size=(16, 5)).astype(np.float32),
                                next_state=random.normal(size=(16, 5)).astype(np.float32))
learner.set(alpha_c51=0.5)
learner.begin_epoch(2)
for _ in range(3):
    learner.step()
learner.drain()
found = {}
for i, buffer in enumerate(learner.state_buffers()):
    array = buffer.to_numpy()
    for name in ("started_ns", "ended_ns"):
        if name in (array.dtype.names or ()):
            array[name] = 0
    found[f"{i} {buffer.label}"] = hashlib.sha256(array.tobytes()).hexdigest()
print(json.dumps(found))
"""


def digests(options: str, settings: Sequence[str]) -> dict[str, Any]:
    """Digest of every buffer that a step writes, after three steps."""
    done = subprocess.run([sys.executable, "-c", TRAIN, *settings], text=True, capture_output=True, timeout=100,
                          env=os.environ | {"FOXHUNT_HOSTSIM": options})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.hostsim
@pytest.mark.parametrize(
    "settings", [(), EVERYTHING], ids=["core", "every feature"]
)  # some sums of the core are written anew
def test_three_steps_give_the_same_bits_in_any_order(settings: tuple[str, ...]) -> None:
    natural = digests("workers=1", settings)
    assert len(natural) > 10
    for options in ("seed=1", "seed=2,workers=1", "seed=3,deferred=1"):
        other = digests(options, settings)
        assert [name for name in natural if other[name] != natural[name]] == [], options
