"""The features of the step beyond the core: which are on, in the order of their children.

Each is an `Extension` in the child's module, with its options in a section of the configuration. One that is switched off is not
made: it adds no node, no module and no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children import (
    adaptive_gamma,
    attention,
    aux,
    causal,
    denoise,
    ensemble,
    epoch_stats,
    her,
    homeostat,
    horizons,
    iqn,
    isv,
    perturb,
    plan,
    popart,
    post_aux,
    prune,
    spectral,
    stochastic_depth,
    temporal,
    vaccine,
)
from foxhunt_rt.dqn.extension import Extension

#: Children of the step in the order in which it is told; a name with a dot is a part of the child before the dot.
CHILDREN = ("counters", "per_sample", "popart", "spectral", "forward", "ddqn", "aux", "post_aux", "adam_grad", "adam",
            "maintenance", "iql_modulate", "per_priority")  # fmt: skip

#: Section of the configuration, and what it switches on, in the order of the step.
FEATURES: tuple[tuple[str, Callable[[Any], Extension]], ...] = (
    ("her", her.Her),
    ("popart", popart.PopArt),
    ("spectral", spectral.Spectral),
    ("depth", stochastic_depth.StochasticDepth),
    ("temporal", temporal.Temporal),
    ("attention", attention.Attention),
    ("causal", causal.Causal),
    ("cql", aux.Cql),
    ("iql", aux.Iql),
    ("iqn", iqn.Iqn),
    ("ensemble", ensemble.Ensemble),
    ("epoch", epoch_stats.EpochStatistics),
    ("adaptive_gamma", adaptive_gamma.AdaptiveGamma),
    ("homeostat", homeostat.Homeostat),
    ("selectivity", post_aux.Selectivity),
    ("risk", post_aux.Risk),
    ("horizons", horizons.Horizons),
    ("plan", plan.Plan),
    ("denoise", denoise.Denoise),
    ("prune", prune.Prune),
    ("vaccine", vaccine.Vaccine),
    ("perturb", perturb.Perturb),
    ("isv", isv.Isv),
)


def features(config: Config) -> list[Extension]:
    """The features that a configuration switches on, in the order of the step."""
    sections = ((getattr(config, name), make) for name, make in FEATURES)
    return [make(section) for section, make in sections if section.on]


__all__ = ["CHILDREN", "FEATURES", "features"]
