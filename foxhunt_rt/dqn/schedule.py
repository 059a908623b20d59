"""What the host may change while training runs, and how a change reaches the device: in stream order.

The control block is made from the configuration; `Control.set` changes both. The schedules themselves (learning rate,
tau_polyak, beta_per) are computed on the device by counters, from the step number: docs/step/counters.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt._names import choose
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi

#: Fields of the control block that are options of the configuration.
_OPTIONS = {
    "restart_period": "optim.restart_period",
    "lr": "optim.lr",
    "lr_min": "optim.lr_min",
    "adam_beta1": "optim.beta1",
    "adam_beta2": "optim.beta2",
    "adam_eps": "optim.eps",
    "weight_decay": "optim.weight_decay",
    "max_grad_norm": "optim.max_grad_norm",
    "tau_start": "optim.tau_start",
    "tau_end": "optim.tau_end",
    "gamma": "loss.gamma",
    "beta_per_start": "replay.beta_start",
    "beta_per_end": "replay.beta_end",
    "alpha_per": "replay.alpha",
    "eps_per": "replay.eps",
    "label_smoothing": "loss.label_smoothing",
    "grad_budget": "loss.grad_budget",
    "reward_scale": "loss.reward_scale",
    "v_min": "loss.v_min",
    "v_max": "loss.v_max",
    "restart_momentum": "optim.restart_momentum",
    "alarm_edge_mass": "guard.edge_mass",
    "alarm_spike_share": "guard.spike_share",
    "alarm_atom_use": "guard.atom_use",
    "spike_mass": "guard.spike_mass",
}


def control_block(config: Config, *, seed: int, alpha_c51: float) -> npt.NDArray[Any]:
    """The control block of a configuration: a structured array of shape (1,).

    Parameters
    ----------
    config : Config
    seed : int
        Of Philox.
    alpha_c51 : float
        Share of the cross-entropy now; the training loop raises it by epoch.
    """
    block = np.zeros(1, abi.dtype("control_block"))
    for field, key in _OPTIONS.items():
        section, name = key.split(".")
        block[field] = getattr(getattr(config, section), name)
    block["seed"], block["horizon"], block["alpha_c51"] = seed, config.horizon, alpha_c51
    block["vaccine_period"] = config.vaccine.period if config.vaccine.enabled else 0
    block["causal_period"] = config.causal.period if config.causal.enabled else 0
    block["q_clip"] = config.guard.q_clip * max(abs(config.loss.v_min), abs(config.loss.v_max))
    return block


class Control:
    """The control block in device memory, with the configuration that it stands for.

    Attributes
    ----------
    buffer : DeviceBuffer
        control_block[1].
    config : Config
        As changed by `set`.
    initial : Config
        What `reset` goes back to.
    """

    def __init__(self, rt: Runtime, config: Config, *, seed: int) -> None:
        self.initial = config
        self.config, self.seed, self.alpha_c51 = config, seed, config.alpha_c51(0)
        self.buffer = rt.zeros(1, abi.dtype("control_block"), "control")
        self._words = self.buffer.view((abi.constant("CONTROL_WORDS"),), np.uint64)
        self._user = rt.ungraphed("control")
        self.apply()

    def set(self, **values: float) -> None:
        """Changes options for every step launched from now on; steps queued before do not see it. Does not synchronize.

        Parameters
        ----------
        **values
            Fields of the control block by name, such as ``lr``, ``gamma``, ``alpha_c51``, ``max_grad_norm``.

        Raises
        ------
        ConfigError
            A name is unknown or a value is out of range; nothing was changed.
        """
        config, alpha = self.config, self.alpha_c51
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name == "alpha_c51":
                if not 0.0 <= value <= 1.0:
                    raise ConfigError(f"alpha_c51 = {value} is out of range; give a share from 0 to 1")
                alpha = float(value)
            elif name in _OPTIONS:
                section, option = _OPTIONS[name].split(".")
                changes.setdefault(section, {})[option] = value
            else:
                hint = choose(name, [*_OPTIONS, "alpha_c51"], "these can")
                raise ConfigError(f"{name} cannot change while training runs; {hint}")
        self.config, self.alpha_c51 = config.merged(changes), alpha
        self.apply()

    def reset(self, seed: int) -> None:
        """Goes back to the configuration it was made with, and to another seed. Does not synchronize."""
        self.config, self.seed, self.alpha_c51 = self.initial, seed, self.initial.alpha_c51(0)
        self.apply()

    def restore(self, seed: int, initial: Config, config: Config, alpha_c51: float) -> None:
        """Takes the place of another block, for a checkpoint. Does not synchronize."""
        self.initial, self.config, self.seed, self.alpha_c51 = initial, config, seed, alpha_c51
        self.apply()

    def apply(self) -> None:
        """Queues the whole block: one ungraphed one-thread kernel from a module of its own. Does not synchronize."""
        words = control_block(self.config, seed=self.seed, alpha_c51=self.alpha_c51).view(np.uint64)
        args: dict[str, Any] = {f"w{i}": int(word) for i, word in enumerate(words)}
        self._user.launch("apply_control", grid=(1,), block=(32,), args={"control": self._words, **args})


__all__ = ["Control", "control_block"]
