"""A small agent and a world of random transitions, for the tests of Agent, its checkpoints and its snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np

from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Agent

CONFIG = Config().merged({
    "network": {"hidden": [16], "atoms": 11},
    "replay": {"capacity": 300, "batch": 33, "n_step": 2},
    "train": {"epochs": 4, "steps_per_epoch": 5, "seed": 5},
})  # fmt: skip
ENVIRONMENTS, STATE = 3, 5


class World:
    """Random transitions of whole episodes."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.state = self.random.normal(size=(ENVIRONMENTS, STATE)).astype(np.float32)

    def transition(self, actions: Any) -> dict[str, Any]:
        following = self.random.normal(size=(ENVIRONMENTS, STATE)).astype(np.float32)
        terminated, truncated = self.random.random((2, ENVIRONMENTS)) < 0.1
        result = dict(states=self.state, actions=actions, rewards=self.random.normal(size=ENVIRONMENTS), next_states=following,
                      terminated=terminated, truncated=truncated)  # fmt: skip
        fresh = self.random.normal(size=following.shape).astype(np.float32)
        self.state = np.where((terminated | truncated)[:, None], fresh, following)
        return result


def fill(agent: Agent, world: World, inserts: int = 15) -> None:
    for _ in range(inserts):
        agent.observe(**world.transition(agent.act(world.state)))
