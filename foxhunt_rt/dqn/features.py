"""The features of the step beyond the core: which are on, in the order of their children.

Each is an `Extension` in the child's module, with its options in a section of the configuration. One that is switched off is not
made: it adds no node, no module and no memory.
"""

from __future__ import annotations

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children import aux, causal, iqn, perturb, popart, post_aux, prune, spectral, vaccine
from foxhunt_rt.dqn.extension import Extension


def features(config: Config) -> list[Extension]:
    """The features that a configuration switches on, in the order of the step."""
    found: list[Extension] = []
    if config.popart.enabled:
        found.append(popart.PopArt(config))
    if config.spectral.enabled:
        found.append(spectral.Spectral(config.spectral))
    if config.causal.enabled:
        found.append(causal.Causal(config.causal))
    if config.cql.enabled:
        found.append(aux.Cql(config))
    if config.iql.enabled:
        found.append(aux.Iql(config))
    if config.iqn.enabled:
        found.append(iqn.Iqn(config))
    if config.selectivity.enabled:
        found.append(post_aux.Selectivity(config))
    if config.risk.enabled:
        found.append(post_aux.Risk(config))
    if config.prune.enabled:
        found.append(prune.Prune(config.prune))
    if config.vaccine.enabled:
        found.append(vaccine.Vaccine(config.vaccine))
    if config.perturb.enabled:
        found.append(perturb.Perturb(config.perturb))
    return found


__all__ = ["features"]
