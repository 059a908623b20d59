"""PolicySnapshot: the policy as it was, for another thread to act by while training goes on.

It shares nothing with the agent but the device: a stream, module instances, a graph and buffers of its own. The parameters
are copied on its stream, after what the agent has queued and before what the agent queues next; the host waits for neither.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn.actor import Actor
from foxhunt_rt.driver import LifetimeError
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import decode_actions

if TYPE_CHECKING:
    from foxhunt_rt.dqn.agent import Agent

__all__ = ["PolicySnapshot"]


class PolicySnapshot:
    """An immutable policy. Made by `Agent.snapshot`.

    Any thread may call it, several too: they take turns. It outlives the agent. Whatever context is current in the calling thread
    is so afterwards. What it costs: docs/agent.md.

    In a capture: refused. Synchronizes: yes. Allocates: yes.

    Attributes
    ----------
    steps : int
        Training steps of the agent before the snapshot.
    epsilon : float
        The agent's at that moment.
    branches : tuple of int
    """

    def __init__(self, agent: Agent) -> None:
        learner, source = agent.learner, agent.runtime
        self.steps, self.epsilon, self.branches = agent.steps, agent.epsilon, agent.branches
        self._lock = threading.Lock()
        self._actor: Actor | None = None
        rt = Runtime(source.device.ordinal)
        try:
            params = rt.zeros(learner.layout.size, np.float32, "snapshot.theta")
            control = rt.zeros(1, abi.dtype("control_block"), "snapshot.control")
            live = learner.replay.context
            context = None if live is None else rt.zeros(live.size, np.float32, "snapshot.context")
            actor = Actor(rt, learner.layout, params, control, agent.environments, context=context)
            actor.explore(self.epsilon, 0.0)  # loads what later changes need
            rt.stream.wait(source.stream)
            params.copy_from_device(learner.adam.theta)
            control.copy_from_device(learner.control.buffer)
            if context is not None and live is not None:
                context.copy_from_device(live)
            actor.policy.draws.copy_from_device(agent.policy.draws)
            if actor.history is not None and agent.actor.history is not None:
                pairs = zip(*(h.windows.buffers() for h in (actor.history, agent.actor.history)), strict=True)
                for mine, theirs in pairs:
                    mine.copy_from_device(theirs)
            rt.stream.before(source.stream)  # the next step overwrites what is being copied
        except BaseException:
            rt.close()
            raise
        self._actor = actor
        self._release = weakref.finalize(self, rt.close)

    def act(
        self, states: npt.ArrayLike, epsilon: float | None = None, temperature: float = 0.0
    ) -> npt.NDArray[np.int32]:
        """What `Agent.act` would have returned at the moment of the snapshot, bit for bit; see there.

        In a capture: refused. Synchronizes: yes, with the stream of the snapshot alone. Allocates: no.

        Parameters
        ----------
        states : array_like of float, shape (n, S) or (S,)
        epsilon : float, optional
            Default: the agent's at that moment. 0 is greedy.
        temperature : float
            Above 0: Boltzmann exploration.

        Raises
        ------
        LifetimeError
            The snapshot is closed.
        """
        with self._lock:
            return self._open().act(states, self.epsilon if epsilon is None else epsilon, temperature)

    def values(self, states: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Expected return of every choice, as `Agent.values`.

        In a capture: refused. Synchronizes: yes, with the stream of the snapshot alone. Allocates: no.
        """
        with self._lock:
            return self._open().values(states)

    def choices(self, actions: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """The choice in each branch, shape (..., branches), of mixed-radix actions."""
        return decode_actions(actions, self.branches)

    def _open(self) -> Actor:
        if self._actor is None:
            raise LifetimeError("the snapshot is closed; take another with Agent.snapshot")
        return self._actor

    def close(self) -> None:
        """Waits for a call in another thread and for the snapshot's stream, and releases everything. Idempotent.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        with self._lock:
            actor, self._actor = self._actor, None
            if actor is not None:
                self._release()

    def __enter__(self) -> PolicySnapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
