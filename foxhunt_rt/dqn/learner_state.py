"""All that a learner hands from one step to the next, as plain arrays and JSON, and back: resuming is bit for bit the same.

    tensors, facts = read_state(learner)             # drains the learner
    check_state(other, tensors, facts)               # raises CheckpointError; nothing has changed
    write_state(other, tensors, facts)

`Learner.persistent` names the buffers; a test shows that no other carries anything. A child with a memory adds it there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.checkpoint import CheckpointError
from foxhunt_rt.dqn.guard import GuardFault, decode
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.replay import ReplayError, saved

__all__ = ["check_state", "config_of", "read_state", "write_state"]

_REPLAY = "replay."

#: Options that are built into graphs and buffers; all others follow the checkpoint.
_BUILT_IN = ("network.hidden", "network.residual", "network.atoms", "network.precision", "replay.batch", "loss.branch_reduction",
             "her.enabled", "her.rows", "her.reward", "her.tolerance", "her.achieved_column", "her.goal_column", "her.goal_width",
             "popart.enabled", "popart.min_count", "popart.max_change",
             "spectral.enabled", "spectral.sigma_max", "depth.enabled", "depth.drop", "isv.enabled",
             "network.window", "temporal.enabled", "temporal.heads", "temporal.head_dim", "temporal.state_dim", "temporal.conv",
             "attention.enabled", "attention.heads", "attention.head_dim",
             "vaccine.enabled", "vaccine.period", "vaccine.rate", "vaccine.target_max",
             "causal.enabled", "causal.period", "causal.groups", "causal.rows", "causal.reference", "causal.rate",
             "prune.enabled", "prune.sparsity", "prune.first_epoch", "prune.last_epoch",
             "perturb.enabled", "perturb.period", "perturb.shrink", "perturb.sigma",
             "iqn.quantiles", "iqn.kappa", "iqn.budget_share",
             "ensemble.heads", "ensemble.diversity", "ensemble.spread", "ensemble.budget_share",
             *(f"adaptive_gamma.{name}" for name in ("enabled", "low", "high", "use_low", "use_high", "rate")),
             *(f"homeostat.{name}" for name in (
                 "enabled", "rate", "relax", "atom_use", "entropy", "grad_norm", "weight_norm", "smoothing_max", "budget_factor",
                 "decay_max", "loss_weight", "loss_weight_max", "budget_share")),
             "horizons.enabled", "horizons.lengths", "horizons.rate", "horizons.blend_temperature",
             "horizons.ready_steps", "horizons.bound",
             "plan.enabled", "plan.length", "plan.holdout", "plan.block_bars", "plan.rate", "plan.ready_steps",
             "plan.gate_readiness",
             "denoise.enabled", "denoise.rows", "denoise.sigma", "denoise.shape_trunk", "denoise.trunk_weight",
             "denoise.budget_share")  # fmt: skip


def _sizes(learner: Learner) -> dict[str, Any]:
    """What a learner must have in common with the one that a state came from. JSON-ready."""
    config = learner.config
    sizes: dict[str, Any] = {"state_dim": learner.layout.state_dim, "branches": list(learner.layout.branches)}
    for key in _BUILT_IN:
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        sizes[key] = list(value) if isinstance(value, tuple) else value
    return {**sizes, "loss.grad_budget above 0": learner.ddqn.ce_grad is not None,
            "parameters": {s.name: [s.offset, list(s.padded_shape)] for s in learner.layout.segments}}  # fmt: skip


def read_state(learner: Learner, *, replay: bool = True) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Host copies of a learner's state. Drains it, so it synchronizes; not legal inside a capture.

    Parameters
    ----------
    learner : Learner
    replay : bool
        With the contents of the ring, without which training cannot be resumed bit for bit.

    Returns
    -------
    tensors : dict of str to array
        Of plain numbers: `theta`, `target`, `m`, `v`, `counters`, ..., and `replay.*`.
    facts : dict
        JSON-ready.

    Raises
    ------
    GuardFault
        A step, or an action, met something impossible: such a state is not worth keeping.
    """
    learner.drain()
    if (finding := decode(int(learner.guard.to_numpy()["key"][0]))) is not None:
        raise GuardFault(learner.launched, finding)
    control = learner.control
    tensors = {name: saved.plain(buffer.to_numpy()) for name, buffer in learner.persistent().items()}
    facts: dict[str, Any] = {
        "sizes": _sizes(learner), "step": learner.launched, "seed": control.seed, "alpha_c51": control.alpha_c51,
        "config": control.initial.to_dict(), "changed_config": control.config.to_dict(), "replay": None,
        "choices": learner.choices,
    }  # fmt: skip
    if replay:
        contents, counts = saved.read_contents(learner.replay)
        tensors.update({f"{_REPLAY}{name}": array for name, array in contents.items()})
        facts["replay"] = {"sizes": saved.describe(learner.replay), "counts": counts}
    return tensors, facts


def config_of(facts: Mapping[str, Any]) -> Config:
    """The configuration that the learner of a state was made with."""
    return _config(facts["config"])


def _config(values: Mapping[str, Any]) -> Config:
    try:
        return Config().merged(values)
    except ConfigError as error:
        raise CheckpointError(f"the configuration in it is not one of this version: {error}") from None


def check_state(learner: Learner, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Raises CheckpointError unless `write_state` can take this state. Changes nothing."""
    try:
        _compare(_sizes(learner), facts["sizes"])
        config_of(facts)
        _config(facts["changed_config"])
        int(facts["step"]), int(facts["seed"]), float(facts["alpha_c51"])
        own = {name: array for name, array in tensors.items() if not name.startswith(_REPLAY)}
        for name, buffer in learner.persistent().items():
            wanted = saved.plain(np.empty(buffer.shape, buffer.dtype))
            if name not in own:
                raise CheckpointError(f"{name} is missing; give a checkpoint with a learner's whole state")
            if own[name].shape != wanted.shape or own[name].dtype != wanted.dtype:
                raise CheckpointError(f"{name} is {own[name].dtype}{list(own[name].shape)}, not {wanted.dtype}"
                                      f"{list(wanted.shape)}; give a checkpoint of such a learner")  # fmt: skip
        if facts["replay"] is not None:
            _compare(saved.describe(learner.replay), facts["replay"]["sizes"], "replay.")
            saved.check_contents(learner.replay, _contents(tensors), facts["replay"]["counts"])
    except ReplayError as error:
        raise CheckpointError(f"the replay in it does not fit: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"it holds no learner's whole state ({type(error).__name__}: {error}); give one of a learner"
        ) from None


def _contents(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(_REPLAY): array for name, array in tensors.items() if name.startswith(_REPLAY)}


def _compare(here: Mapping[str, Any], there: Mapping[str, Any], prefix: str = "") -> None:
    here = json.loads(json.dumps(here))
    for name, value in here.items():
        if there[name] != value:
            if name == "parameters":
                raise CheckpointError(
                    "its parameters lie otherwise in the flat buffer; load it with the version that wrote it"
                )
            raise CheckpointError(
                f"{prefix}{name} is {there[name]} in it, {value} here; make the learner with its configuration"
            )


def write_state(learner: Learner, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Puts a learner where `read_state` found another of the same sizes. Synchronizes; not legal inside a capture.

    Without a replay in it the ring is emptied. If this is interrupted the learner is as after `Learner.reset`, not half of each.

    Raises
    ------
    CheckpointError
        The state does not fit; nothing has changed.
    """
    check_state(learner, tensors, facts)
    try:
        learner.restore(int(facts["step"]), seed=int(facts["seed"]), initial=config_of(facts),
                        config=_config(facts["changed_config"]), alpha_c51=float(facts["alpha_c51"]))  # fmt: skip
        for name, buffer in learner.persistent().items():
            buffer.copy_from(saved.structured(tensors[name], buffer.dtype))
        if facts["replay"] is not None:
            saved.write_contents(learner.replay, _contents(tensors), facts["replay"]["counts"])
    except BaseException:
        with contextlib.suppress(FoxhuntError):  # a dead context has nothing left to reset
            learner.reset(learner.control.seed)
        raise
