"""Small learners on seeded synthetic rows: what the tools of this folder record, check and time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import foxhunt_rt as fx
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner

#: The network of the peers that the benchmarks run beside: 765 logits with 51 atoms.
PEER_BRANCHES = (5, 3, 3, 3)
PEER_STATE_DIM = 48


def config(**values: object) -> Config:
    """A configuration from dotted names, for example ``config(**{"replay.batch": 64})``."""
    return Config().with_set([f"{name}={value}" for name, value in values.items()])


def fill(learner: Learner, rows: int, seed: int = 0, environments: int = 64) -> None:
    """Inserts `rows` synthetic transitions: a linear reward, a tenth of the episodes' steps their last."""
    rng = np.random.default_rng(seed)
    replay, actions = learner.replay, int(np.prod(learner.shape.branches))
    staging = replay.staging(environments)
    s = replay.state_dim - replay.context_dim  # what is observed; the ring appends its context itself
    weight = rng.standard_normal(s).astype(np.float32) / np.sqrt(s)
    state = rng.standard_normal((environments, s)).astype(np.float32)
    for _ in range(-(-rows // environments)):
        after = (0.9 * state + 0.3 * rng.standard_normal((environments, s))).astype(np.float32)
        terminated = rng.random(environments) < 0.05
        truncated = ~terminated & (rng.random(environments) < 0.05)
        replay.insert_batch(staging, rng.integers(0, actions, environments), state @ weight, terminated, truncated,
                            state=state, next_state=after)  # fmt: skip
        fresh = rng.standard_normal((environments, s)).astype(np.float32)
        state = np.where((terminated | truncated)[:, None], fresh, after)


def learner(rt: fx.Runtime, settings: Config, state_dim: int, branches: Sequence[int], rows: int) -> Learner:
    """A learner whose replay holds `rows` synthetic transitions."""
    made = Learner(rt, settings, state_dim, branches)
    fill(made, rows)
    return made


def odd_learner(rt: fx.Runtime) -> Learner:
    """A learner whose sizes are multiples of nothing, with every part of the core step on."""
    settings = config(**{
        "network.hidden": "50,33", "network.atoms": 21, "replay.capacity": 1000, "replay.batch": 19,
        "replay.n_step": 3, "loss.alpha_c51_start": 0.4, "loss.label_smoothing": 0.01, "loss.grad_budget": 0.5,
        "optim.weight_decay": 0.01, "loss.v_min": -5, "loss.v_max": 5,
    })  # fmt: skip
    return learner(rt, settings, 37, (3, 4, 2), 640)
