"""Settings that switch every feature of the step on, with what they need and often enough to be due in a few steps."""

from __future__ import annotations

from foxhunt_rt.dqn.features import FEATURES

#: For states of 5 columns and more, none of them the market's.
EVERYTHING = (
    *(f"{name}.enabled=true" for name, _ in FEATURES),
    "network.residual=true",
    "network.hidden=16,16",
    "spectral.sigma_max=0.5",
    "vaccine.period=2",
    "causal.period=2",
    "popart.min_count=2",
    "her.achieved_column=1",
    "her.goal_column=3",
)
#: Odd sizes of what is heavy on a CPU.
SMALL = ("network.window=5", "her.rows=5", "denoise.rows=3", "iqn.quantiles=5", "iqn.cosines=7", "temporal.heads=2",
         "temporal.head_dim=3", "temporal.state_dim=5", "attention.heads=2", "attention.head_dim=3", "causal.rows=4",
         "causal.groups=3,2,2")  # fmt: skip
