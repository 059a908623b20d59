"""Agent: the learner, its replay and its policy behind four calls, for any vector environment.

agent = fx.dqn.Agent(state_dim=4, branches=[2], environments=8)
actions = agent.act(states)
agent.observe(states, actions, rewards, next_states, terminated, truncated)
metrics = agent.step()                          # one cuGraphLaunch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.policy import Policy, PolicyError
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import ReplayError, decode_actions, encode_actions

__all__ = ["Agent", "Metrics"]


@dataclass(frozen=True)
class Metrics:
    """What one training step reported; means are over the batch and the branches, in normalized reward.

    Attributes
    ----------
    step : int
        Which step, from 0. Steps report up to ``guard.launches_ahead`` launches late.
    loss : float
        Importance-weighted blend, which is minimized.
    ce, mse : float
        Its parts with unit weights: cross-entropy, squared error of the expected return.
    td_error : float
        abs(Q - y).
    q_mean, q_min, q_max : float
        Q of the actions taken; extremes over all actions.
    target_mean : float
        y.
    atom_use : float
        Share of the atoms that the mean target uses: exp(entropy) / atoms.
    edge_mass : float
        Target mass on the first and the last atom: above a few percent the support is too narrow.
    grad_norm : float
        Global norm before the clip.
    lr, alpha_c51 : float
        Learning rate and share of the cross-entropy of that step.
    replay_size : int
        Rows held.
    """

    step: int
    loss: float
    ce: float
    mse: float
    td_error: float
    q_mean: float
    q_min: float
    q_max: float
    target_mean: float
    atom_use: float
    edge_mass: float
    grad_norm: float
    lr: float
    alpha_c51: float
    replay_size: int

    @classmethod
    def of(cls, record: npt.NDArray[Any]) -> Metrics:
        """From a `step_record`."""
        return cls(**{name: record[name].item() for name in cls.__dataclass_fields__})


class Agent:
    """A distributional double DQN for `environments` environments that step together.

    Parameters
    ----------
    state_dim : int
        S, floats of a state.
    branches : sequence of int
        Choices of each factor of the action; ``[n]`` for a plain discrete action.
    config : Config, optional
        Default: `Config()`. The support is ``loss.v_min`` to ``loss.v_max``, in reward times ``loss.reward_scale``.
    runtime : Runtime, optional
        Default: one of its own, on device 0.
    environments : int
        E, transitions of one `observe`.

    Raises
    ------
    ConfigError, ReplayError
        Sizes that do not fit together.

    Notes
    -----
    Allocates, loads, captures and synchronizes; not legal inside a capture. One thread at a time.
    """

    def __init__(self, state_dim: int, branches: Sequence[int], config: Config | None = None, runtime: Runtime | None = None,
                 environments: int = 1) -> None:  # fmt: skip
        self.config = config or Config()
        self._owned = Runtime() if runtime is None else None
        self.runtime = rt = runtime or self._owned
        assert rt is not None
        self.branches, self.state_dim, self.environments = tuple(branches), state_dim, environments
        self.learner = Learner(rt, self.config, state_dim, self.branches)
        self.replay = self.learner.replay
        self._staging = self.replay.staging(environments)
        self._epoch = 0
        self._expected: npt.NDArray[np.float32] | None = None  # states that the next observe must bring, NaN: any

        plan = rt.plan("observe")
        with plan.child(
            "insert", reads=self._staging.buffers, writes=self.replay.insert_writes(self._staging)
        ) as child:
            self.replay.record_insert(child, self._staging)
        self._insert = plan.build(ungraphed=False)

        self.policy = Policy(
            rt, self.learner.layout, self.learner.control.buffer, environments, guard=self.learner.guard
        )
        self._exploration = (0.0, 0.0)
        self._state = rt.zeros((environments, self.replay.padded_state_dim), np.float32, "act.state")
        self._action = rt.zeros(environments, np.int32, "act.action")
        self._padded = np.zeros(self._state.shape, np.float32)
        plan = rt.plan("act")
        theta = self.learner.adam.theta
        with plan.child("act", reads=self.policy.reads(theta, self._state), writes=self.policy.writes(self._action),
                        private=self.policy.private()) as child:  # fmt: skip
            self.policy.record_act(child, theta, self._state, self._action)
        self._act = plan.build(ungraphed=False)

    @property
    def steps(self) -> int:
        """Training steps launched."""
        return self.learner.launched

    @property
    def epsilon(self) -> float:
        """Where the schedule of epsilon stands: linear from ``train.epsilon_start`` to ``epsilon_end`` over ``horizon`` steps."""
        train = self.config.train
        progress = min(1.0, self.steps / self.config.horizon)
        return train.epsilon_start + (train.epsilon_end - train.epsilon_start) * progress

    @property
    def ready(self) -> bool:
        """Whether the replay holds enough rows for a step."""
        return self.replay.ready(self.config.replay.batch)

    def act(
        self, states: npt.ArrayLike, epsilon: float | None = None, temperature: float = 0.0
    ) -> npt.NDArray[np.int32]:
        """Actions for a batch of states. Synchronizes.

        Parameters
        ----------
        states : array_like of float, shape (n, S) or (S,)
            Any n; more than `environments` take several launches.
        epsilon : float, optional
            Chance of a random choice in each branch. Default: the schedule. 0 is greedy.
        temperature : float
            Above 0: Boltzmann exploration instead of the best choice.

        Returns
        -------
        ndarray of int32, shape (n,) or ()
            Mixed radix; `choices` takes them apart.

        Raises
        ------
        ReplayError
            States of another width, or not finite.
        PolicyError
            The network gives values that are not finite.
        """
        rows, shape = self._rows(states)
        exploration = (self.epsilon if epsilon is None else float(epsilon), float(temperature))
        if exploration != self._exploration:
            self.policy.set_exploration(*exploration)
            self._exploration = exploration
        actions = np.empty(len(rows), np.int32)
        for first in range(0, len(rows), self.environments):
            part = rows[first : first + self.environments]
            self._forward(part)
            actions[first : first + len(part)] = self._action.to_numpy()[: len(part)]
        if actions.size and actions.min() < 0:
            raise PolicyError("the network's values are not finite; load the parameters of an earlier step")
        return actions.reshape(shape)

    def values(self, states: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Expected return of every choice, branches side by side. Synchronizes.

        Parameters
        ----------
        states : array_like of float, shape (n, S) or (S,)

        Returns
        -------
        ndarray of float32, shape (n, sum(branches)) or (sum(branches),)
            In normalized reward. The random numbers of `act` advance as if it had been called.
        """
        rows, shape = self._rows(states)
        values = np.empty((len(rows), sum(self.branches)), np.float32)
        for first in range(0, len(rows), self.environments):
            part = rows[first : first + self.environments]
            self._forward(part)
            values[first : first + len(part)] = self.policy.q.to_numpy()[: len(part)]
        return values.reshape(*shape, -1)

    def _rows(self, states: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], tuple[int, ...]]:
        """The states as (n, S), and the shape of what comes out for them."""
        array = self._finite("states", states)
        if array.ndim not in (1, 2) or array.shape[-1] != self.state_dim:
            raise ReplayError(f"states have shape {array.shape}; give (n, {self.state_dim}) or ({self.state_dim},)")
        return array.reshape(-1, self.state_dim), array.shape[:-1]

    def _forward(self, rows: npt.NDArray[np.float32]) -> None:
        self._padded[: len(rows), : self.state_dim] = rows
        self._state.copy_from(self._padded)
        self._act.launch()

    def choices(self, actions: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """The choice in each branch, shape (..., branches), of mixed-radix actions. `actions` is the inverse."""
        return decode_actions(actions, self.branches)

    def actions(self, choices: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Mixed-radix actions of choices, one a branch."""
        return encode_actions(choices, self.branches)

    def observe(self, states: npt.ArrayLike, actions: npt.ArrayLike, rewards: npt.ArrayLike, next_states: npt.ArrayLike,
                terminated: npt.ArrayLike, truncated: npt.ArrayLike) -> None:  # fmt: skip
        """Stores one transition of each environment, in stream order.

        Parameters
        ----------
        states, next_states : array_like of float, shape (E, S)
            Where an episode ended, `next_states` holds its last observation, not the first of the next episode. With Gymnasium's
            vector environments use ``AutoresetMode.SAME_STEP`` and take it from ``infos["final_obs"]``.
        actions : array_like of int, shape (E,)
            As `act` gives them.
        rewards : array_like of float, shape (E,)
            Raw.
        terminated, truncated : array_like of bool, shape (E,)
            A truncated episode bootstraps from its last observation.

        Raises
        ------
        ReplayError
            Wrong shapes or values that are not finite, or a state that is not the one the environment's last transition led to:
            each observation is stored once, so episodes must be whole. Nothing was stored.
        """
        state, following = self._finite("states", states), self._finite("next_states", next_states)
        wanted = (self.environments, self.state_dim)
        for name, array in (("states", state), ("next_states", following)):
            if array.shape != wanted:
                raise ReplayError(f"{name} have shape {array.shape}; give {wanted}, one row per environment")
        action = np.asarray(actions)
        decode_actions(action, self.branches)  # refuses what lies outside the action space
        if self._expected is not None:
            broken = np.flatnonzero(((state != self._expected) & ~np.isnan(self._expected)).any(axis=1))
            if broken.size:
                raise ReplayError(f"environment {broken[0]}: the state is not the next state of its last transition, whose "
                                  "episode goes on; pass truncated=True where an episode is cut")  # fmt: skip
        self.replay.fill(self._staging, action, rewards, terminated, truncated, state=state, next_state=following)
        self._insert.launch()
        self.replay.note_inserted(self._staging)
        ended = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        self._expected = np.where(ended[:, None], np.float32(np.nan), following)

    def step(self) -> Metrics | None:
        """One training step, or `train.steps_per_launch` of them: one launch. Does not wait for it.

        Returns
        -------
        Metrics or None
            Of the newest step that has reported; None before the first report.

        Raises
        ------
        ReplayError
            Too few rows (`ready`); nothing was launched.
        GuardFault
            An earlier step found something impossible.
        """
        epoch = self.steps // self.config.train.steps_per_epoch
        if epoch != self._epoch:
            self.learner.set(alpha_c51=self.config.alpha_c51(epoch))
            self._epoch = epoch
        left = self.config.train.steps_per_epoch - self.steps % self.config.train.steps_per_epoch
        self.learner.step(min(self.learner.steps_per_launch, left))
        self.learner.take()  # only the newest is passed on; a fault has raised
        return None if self.learner.last is None else Metrics.of(self.learner.last)

    def drain(self) -> Metrics | None:
        """Waits for every step launched; the metrics of the last one."""
        self.learner.drain()
        return None if self.learner.last is None else Metrics.of(self.learner.last)

    @staticmethod
    def _finite(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(values, np.float32)
        if not np.isfinite(array).all():
            raise ReplayError(f"{name} hold a value that is not finite in float32; mend the environment")
        return array

    def close(self) -> None:
        """Waits for the device and releases the graphs, and the runtime where the agent made it. Idempotent."""
        for graph in (self._act, self._insert):
            graph.close()
        self.learner.close()
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
