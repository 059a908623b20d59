"""Agent: the learner, its replay and its policy behind four calls, for any vector environment.

agent = fx.dqn.Agent(state_dim=4, branches=[2], environments=8)
actions = agent.act(states)
agent.observe(states, actions, rewards, next_states, terminated, truncated)
metrics = agent.step()                          # one cuGraphLaunch
agent.save("agent.safetensors")                 # and load: bit for bit
policy = agent.snapshot()                       # policy.act(states) in another thread

How to use it: docs/agent.md.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.actor import Actor, finite
from foxhunt_rt.dqn.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from foxhunt_rt.dqn.children.isv import context_dim
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.learner_state import check_state, config_of, read_state, write_state
from foxhunt_rt.dqn.snapshot import PolicySnapshot
from foxhunt_rt.driver import DeviceBuffer, FoxhuntError
from foxhunt_rt.graph import MemoryPlan, Runtime, require_memory
from foxhunt_rt.interop import to_numpy
from foxhunt_rt.replay import ReplayError, decode_actions, encode_actions

__all__ = ["Agent", "Metrics"]

_KIND = "agent"  # of a checkpoint


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any], str]:
    """A checkpoint that an agent wrote."""
    tensors, facts, toml = load_checkpoint(Path(path))
    if facts.get("kind") != _KIND:
        raise CheckpointError(f"{os.fspath(path)} is no checkpoint of an agent; give a file that Agent.save wrote")
    return tensors, facts, toml


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

    Attributes
    ----------
    memory : MemoryPlan or None
        What it allocates, known before it did.

    Raises
    ------
    ConfigError, ReplayError
        Sizes that do not fit together.
    MemoryExceeded
        The device has not that much free memory; nothing was allocated.

    Notes
    -----
    In a capture: refused. Synchronizes: yes. Allocates: yes.

    One thread at a time.
    """

    def __init__(self, state_dim: int, branches: Sequence[int], config: Config | None = None, runtime: Runtime | None = None,
                 environments: int = 1) -> None:  # fmt: skip
        self.config = config or Config()
        self.branches, self.state_dim, self.environments = tuple(branches), state_dim, environments
        self._epoch = 0
        self._expected: npt.NDArray[np.float32] | None = None  # states that the next observe must bring, NaN: any
        self.runtime = runtime or Runtime()
        with contextlib.ExitStack() as undo:
            if runtime is None:
                undo.callback(self.runtime.close)
            self.memory: MemoryPlan | None = require_memory(
                self.runtime, lambda planning: Agent(state_dim, branches, self.config, planning, environments))  # fmt: skip
            self._build(undo)
            self._release = weakref.finalize(self, undo.pop_all().close)

    def _build(self, undo: contextlib.ExitStack) -> None:
        """Learner, and the graphs of observe and act; what ends them goes to `undo`."""
        rt = self.runtime
        self.learner = Learner(rt, self.config, self.state_dim, self.branches)
        undo.callback(self.learner.close)
        self.replay = self.learner.replay
        self._staging = self.replay.staging(self.environments)
        self.actor = Actor(rt, self.learner.layout, self.learner.adam.theta, self.learner.control.buffer, self.environments,
                           guard=self.learner.guard, context=self.replay.context)  # fmt: skip
        undo.callback(self.actor.close)
        self.policy, history = self.actor.policy, self.actor.history
        plan = rt.plan("observe")
        with plan.child(
            "insert", reads=self.replay.insert_reads(self._staging), writes=self.replay.insert_writes(self._staging)
        ) as child:
            self.replay.record_insert(child, self._staging)
        if history is not None:
            assert self._staging.state is not None
            reads = self.replay.insert_reads(self._staging)
            with plan.child("history", reads=reads, writes=history.windows.buffers()) as child:
                history.record_push(child, self._staging.state, ended=self._staging.ended, context=self.replay.context)
        self._insert = plan.build(ungraphed=False)
        undo.callback(self._insert.close)

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
        """Actions for a batch of states.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Parameters
        ----------
        states : array_like of float, shape (n, S) or (S,)
            Any n; more than `environments` take several launches. With a network that looks back (temporal.enabled): a state of
            each environment, which follows on those that `observe` was given; or windows of states, shape (n, k, S) with k at
            most network.window, oldest first.
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
        return self.actor.act(states, self.epsilon if epsilon is None else epsilon, temperature)

    def values(self, states: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Expected return of every choice, branches side by side.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Parameters
        ----------
        states : array_like of float, shape (n, S) or (S,)

        Returns
        -------
        ndarray of float32, shape (n, sum(branches)) or (sum(branches),)
            In normalized reward. The random numbers of `act` advance as if it had been called.
        """
        return self.actor.values(states)

    def choices(self, actions: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """The choice in each branch, shape (..., branches), of mixed-radix actions. `actions` is the inverse."""
        return decode_actions(actions, self.branches)

    def actions(self, choices: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Mixed-radix actions of choices, one a branch."""
        return encode_actions(choices, self.branches)

    def observe(self, states: npt.ArrayLike, actions: npt.ArrayLike, rewards: npt.ArrayLike, next_states: npt.ArrayLike,
                terminated: npt.ArrayLike, truncated: npt.ArrayLike, absent: npt.ArrayLike | None = None) -> None:  # fmt: skip
        """Stores one transition of each environment, in stream order.

        Arrays may be NumPy's, PyTorch's, or of whatever speaks DLPack or the CUDA array interface. Device memory is copied to
        the host first, which waits for what its producer has queued.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Parameters
        ----------
        states, next_states : array_like of float, shape (E, S)
            Where an episode ended, `next_states` holds its last observation, not the first of the next episode. Gymnasium's three
            autoreset modes: docs/agent.md.
        actions : array_like of int, shape (E,)
            As `act` gives them.
        rewards : array_like of float, shape (E,)
            Raw.
        terminated, truncated : array_like of bool, shape (E,)
            A truncated episode bootstraps from its last observation.
        absent : array_like of bool, shape (E,), optional
            Environments that made no transition this time, such as those that spent the step on a reset; the rest of their row
            counts for nothing. An episode that is going on ends there, and its last `n_step` transitions are lost.

        Raises
        ------
        ReplayError
            Wrong shapes or values that are not finite, or a state that is not the one the environment's last transition led to:
            each observation is stored once, so episodes must be whole. Nothing was stored.
        ForeignMemoryError
            An array that cannot be read. Nothing was stored.
        """
        rt, wanted = self.runtime, (self.environments, self.state_dim)
        state, following = finite(rt, "states", states), finite(rt, "next_states", next_states)
        for name, array in (("states", state), ("next_states", following)):
            if array.shape != wanted:
                raise ReplayError(f"{name} have shape {array.shape}; give {wanted}, one row per environment")
        action, reward = to_numpy(rt, actions, "actions"), to_numpy(rt, rewards, "rewards")
        ends = to_numpy(rt, terminated, "terminated"), to_numpy(rt, truncated, "truncated")
        missing = np.zeros(self.environments, bool) if absent is None else to_numpy(rt, absent, "absent")
        if missing.shape != wanted[:1] or missing.dtype != np.bool_:
            raise ReplayError(
                f"absent is {missing.dtype}{list(missing.shape)}; give bool {wanted[:1]}, one per environment"
            )
        decode_actions(action, self.branches)  # refuses what lies outside the action space
        if self._expected is not None:
            broken = ((state != self._expected) & ~np.isnan(self._expected)).any(axis=1) & ~missing
            if broken.any():
                raise ReplayError(f"environment {np.flatnonzero(broken)[0]}: the state is not the next state of its last "
                                  "transition, whose episode goes on; pass truncated=True where an episode is cut")  # fmt: skip
        self.replay.fill(self._staging, action, reward, *ends, absent=missing, state=state, next_state=following)
        self._insert.launch()
        self.replay.note_inserted(self._staging)
        over = ends[0] | ends[1] | missing
        self._expected = np.where(over[:, None], np.float32(np.nan), following)

    def step(self) -> Metrics | None:
        """One training step, or `train.steps_per_launch` of them: one launch. Does not wait for it.

        In a capture: refused. Synchronizes: no, but it waits by mapped memory when
        `launches_ahead` launches are in flight. Allocates: no.

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
        """Waits for every step launched; the metrics of the last one.

        In a capture: legal. Synchronizes: yes, by mapped memory. Allocates: no.
        """
        self.learner.drain()
        return None if self.learner.last is None else Metrics.of(self.learner.last)

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """Writes everything into one safetensors file, under a temporary name first. Waits for every step launched.

        An agent that loads it goes on bit for bit as this one does.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Parameters
        ----------
        path : path
        replay : bool
            With the ring and its priorities, most of the file. Without it the loaded agent must observe anew before it can train.

        Raises
        ------
        CheckpointError
            The file cannot be written; what stood there before stands there still.
        GuardFault
            Training met something impossible: such a state is not saved.
        MissingExtra
            safetensors or tomli-w is not installed.
        """
        tensors, facts = read_state(self.learner, replay=replay)
        tensors["policy.draws"] = self.policy.draws.to_numpy()
        tensors |= {f"history.{name}": buffer.to_numpy() for name, buffer in self._history().items()}
        if replay and self._expected is not None:
            tensors["expected"] = self._expected
        facts |= {"kind": _KIND, "environments": self.environments, "epoch": self._epoch}
        save_checkpoint(Path(path), tensors, facts, self.config)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Puts this agent where another of the same sizes was when it was saved, settings and schedules included.

        Waits for the device. If it is interrupted the agent is as new, not half of each.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Raises
        ------
        CheckpointError
            The file is missing, truncated, damaged, foreign, of a newer format, or of other sizes. Nothing has changed.
        MissingExtra
            safetensors is not installed.
        """
        tensors, facts, _ = _read(path)
        try:
            expected, draws = self._check(tensors, facts)
        except CheckpointError as error:
            raise CheckpointError(f"{os.fspath(path)} is not for this agent: {error}") from None
        self._expected, self._epoch = None, 0
        try:
            write_state(self.learner, tensors, facts)
            self.policy.draws.copy_from(draws)
            for name, buffer in self._history().items():
                buffer.copy_from(tensors[f"history.{name}"])
        except BaseException:
            with contextlib.suppress(FoxhuntError):  # a dead context has nothing left to reset
                self.learner.reset(self.config.train.seed)
                self.policy.reset()
                if self.actor.history is not None:
                    self.actor.history.clear()
            raise
        self._expected, self._epoch, self.config = expected, int(facts["epoch"]), config_of(facts)

    def _check(self, tensors: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> tuple[Any, npt.NDArray[np.uint64]]:
        """Refuses what `load` could not take whole. Returns the expected states, or None, and the counters of the policy."""
        check_state(self.learner, tensors, facts)
        if facts.get("environments") != self.environments or not isinstance(facts.get("epoch"), int):
            raise CheckpointError(f"environments and epoch are {facts.get('environments')} and {facts.get('epoch')} in it, with "
                                  f"{self.environments} environments here; make the agent with as many")  # fmt: skip
        expected, draws = tensors.get("expected"), tensors.get("policy.draws")
        shape = (self.environments, self.state_dim)
        if draws is None or draws.shape != shape[:1] or draws.dtype != np.uint64:
            raise CheckpointError("policy.draws is missing or of another shape; give a file that Agent.save wrote")
        for name, buffer in self._history().items():
            found = tensors.get(f"history.{name}")
            if found is None or found.shape != buffer.shape or found.dtype != buffer.dtype:
                raise CheckpointError(
                    f"history.{name} is missing or of another shape; give a file that Agent.save wrote"
                )
        if expected is not None and (expected.shape != shape or expected.dtype != np.float32):
            raise CheckpointError("expected is of another shape; give a file that Agent.save wrote")
        return expected, draws

    def _history(self) -> dict[str, DeviceBuffer]:
        """The past of the environments, by name; empty for a network that does not look back."""
        history = self.actor.history
        return {} if history is None else {"states": history.windows.states, "length": history.windows.length}

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], runtime: Runtime | None = None) -> Agent:
        """An agent of the sizes and configuration in a file that `save` wrote, where that one was. Raises as `load`.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        _, facts, _ = _read(path)
        try:
            sizes, config, environments = facts["sizes"], config_of(facts), int(facts["environments"])
            state_dim, branches = int(sizes["state_dim"]) - context_dim(config), [int(n) for n in sizes["branches"]]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{os.fspath(path)} holds no whole agent ({error!r}); give a file that Agent.save wrote"
            ) from None
        agent = cls(state_dim, branches, config, runtime, environments)
        try:
            agent.load(path)
        except BaseException:
            agent.close()
            raise
        return agent

    def snapshot(self) -> PolicySnapshot:
        """The policy after all that is queued so far, immutable, for any thread to act by while training goes on.

        The host does not wait for training.

        In a capture: refused. Synchronizes: yes, with the snapshot's own stream. Allocates: yes, a graph of its own.
        """
        return PolicySnapshot(self)

    def close(self) -> None:
        """Waits for the device and releases the graphs, and the runtime where the agent made it. Idempotent. An agent that is
        collected without does the same.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        self._release()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
