"""Trains a distributional DQN on CartPole-v1 to its limit of 500 steps an episode: python examples/cartpole.py [--seed N]

Runs on a GPU, or, where there is none, on the CPU through hostsim. Needs `pip install gymnasium`.
Prints a line every so many steps, and last:

    ...mean return of 100 greedy episodes: ... (the goal is 475)
"""

from __future__ import annotations

from vector_training import main

from foxhunt_rt.dqn import Config

NAME, GOAL = "CartPole-v1", 475.0
CONFIG = Config().merged({
    "network": {"hidden": [64, 64]},
    "replay": {"capacity": 65536, "batch": 64, "n_step": 3},
    # a reward of 1 a step: returns lie between 0 and 1 / (1 - gamma)
    "loss": {"gamma": 0.99, "v_min": 0.0, "v_max": 100.0, "alpha_c51_start": 1.0, "grad_budget": 0.0},
    "optim": {"lr": 1e-3, "lr_min": 1e-5, "tau_start": 0.01, "tau_end": 0.005},
    "train": {"epochs": 1, "steps_per_epoch": 20000, "epsilon_start": 0.5, "epsilon_end": 0.02},
})  # fmt: skip

if __name__ == "__main__":
    main(NAME, CONFIG, GOAL)
