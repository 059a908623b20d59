"""Collection: T steps of every environment in one launch, from observation to replay.

Each step of the graph, for E environments side by side:

    act          forward pass and epsilon-greedy choice            (a launch a layer, and one; a network that looks back has
                 its windows pushed on before)
    gate         conviction, where the plan head is on: exactly 1 until it is ready   (one)
    environment  trade in the next bar, write the transition and the next observation   (one)
                 with what docs/counterfactual.md adds: the steps that were not taken
    insert       the E transitions into the ring                   (three)

The collect graph is a plan of its own: its kernels are its own functions, apart from the training step's. One pass over a
window takes every decision of it once: the window is split into E contiguous walks of equal length (`split_window`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.dqn.blocks import history_of
from foxhunt_rt.dqn.children.plan import Conviction
from foxhunt_rt.dqn.policy import Policy
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Runtime, StepGraph
from foxhunt_rt.market.augment import Augmentation
from foxhunt_rt.market.environment import MarketEnvironment
from foxhunt_rt.market.walks import Walks
from foxhunt_rt.replay import Replay
from foxhunt_rt.train.errors import TrainingError

__all__ = ["Collector", "bars_of"]


def bars_of(ends: NDArray[np.int32], first: int, stop: int) -> NDArray[np.int64]:
    """The bars of [first, stop) that a pass over the window sees: those whose close it decides on or executes in.

    All but sessions of a single bar, in which no decision can execute.
    """
    bars = np.arange(first, stop - 1, dtype=np.int64)
    decisions = bars[ends[first : stop - 1] > bars]
    return np.union1d(decisions, decisions + 1)


class Collector:
    """Collects transitions into a replay.

    Parameters
    ----------
    rt : Runtime
    environment : MarketEnvironment
    policy : Policy
        Acts for all environments.
    params : Buffer
        Flat parameters that the policy acts by, read anew by each launch.
    replay : Replay
        In market mode, over the environment's feature table.
    steps : int
        T, steps of every environment a launch.
    augment : Augmentation, optional
        Rows to add or to mirror; for these `replay.set_mirror` was called.
    gate : Conviction, optional
        Scales size and training reward, of as many rows as there are environments; `replay.track_conviction` was called for it.

    Attributes
    ----------
    graph : StepGraph
    launches : int
        Launches that the pass begun last takes.
    launched : int
        Of them, done.

    Notes
    -----
    Allocates, captures and synchronizes.
    """

    def __init__(self, rt: Runtime, environment: MarketEnvironment, policy: Policy, params: Buffer, replay: Replay,
                 steps: int, augment: Augmentation | None = None, gate: Conviction | None = None) -> None:  # fmt: skip
        self.runtime, self.environment, self.policy, self.replay, self.steps = rt, environment, policy, replay, steps
        self.augment = augment
        e = environment.environments
        self.staging = replay.staging(augment.rows if augment else e)
        self.state = rt.zeros((e, environment.tables.padded_width), np.float32, "collect.state")
        self.action = rt.zeros(e, np.int32, "collect.action")
        self.history = history_of(rt, policy.layout, e, "collect.history")
        windows = None if self.history is None else self.history.windows
        self.walks: Walks | None = None
        self.launches = self.launched = 0
        plan = rt.plan("collect")
        # of what an insert reads, the staged rows are written here too
        reads = [*policy.reads(params, self.state), *environment.reads, *replay.insert_reads(self.staging)]
        writes = [*policy.writes(self.action), *environment.writes, *self.staging.buffers, self.state,
                  *replay.insert_writes(self.staging), *(windows.buffers() if windows is not None else [])]  # fmt: skip
        if augment is not None:
            reads, writes = [*reads, *augment.reads], [*writes, *augment.writes]
        if gate is not None:
            reads, writes = [*reads, gate.state], [*writes, gate.value]
        with plan.child("collect", reads=reads, writes=writes, private=policy.private()) as child:
            for _ in range(steps):
                # where an episode ended with the transition before, the state begins the next
                policy.record_act(
                    child, params, self.state, self.action, history=self.history, fresh=self.staging.ended[:e]
                )
                if gate is not None:
                    gate.record(child, policy.trunk_output, params)
                environment.record_step(child, self.action, self.staging, self.state, augment=augment,
                                        conviction=gate.value if gate is not None else None)  # fmt: skip
                replay.record_insert(child, self.staging)
        self.graph: StepGraph = plan.build(ungraphed=False)

    def begin(self, walks: Walks) -> None:
        """Puts every environment at the start of its walk. Synchronizes."""
        self.walks, self.launched = walks, 0
        self.launches = -(-walks.longest // self.steps)
        if self.augment is not None:
            self.augment.begin()
        self.environment.reset(walks)
        if self.history is not None:
            self.history.clear()
        self.environment.record_observe(self.runtime.ungraphed("collect.begin"), self.state)

    def persistent(self) -> dict[str, DeviceBuffer]:
        """By name, every buffer whose contents a launch hands to the next, the replay's apart: what a checkpoint must hold."""
        found = {"state": self.state, "accounts": self.environment.state, "draws": self.policy.draws}
        if self.augment is not None:
            found |= {"augment_draws": self.augment.draws, "augment_counts": self.augment.counts}
        if self.history is not None:  # and the transitions of the last step, which say where an episode has ended
            past = self.history.windows
            found |= {"past_states": past.states, "past_length": past.length, "staged": self.staging.words}
        return found

    def restore(self, walks: Walks, launched: int) -> None:
        """The host's side of a pass that is under way: `persistent` is for the caller to write, afterwards. Synchronizes."""
        self.walks, self.launched = walks, launched
        self.launches = -(-walks.longest // self.steps)
        self.environment.reset(walks)

    def launch(self) -> None:
        """T more steps of every environment: one graph launch. Does not synchronize."""
        self.graph.launch()
        self.replay.note_inserted(self.staging, self.steps)
        self.launched += 1

    @property
    def total(self) -> int:
        """Decisions of the whole pass."""
        return 0 if self.walks is None else int(self.walks.steps.sum())

    @property
    def decisions(self) -> int:
        """Decisions taken in this pass so far, by the host's count."""
        if self.walks is None:
            return 0
        return int(np.minimum(self.walks.steps, self.launched * self.steps).sum())

    def finish(self) -> None:
        """Launches what is left of the pass and checks on the device that it is complete. Synchronizes.

        Raises
        ------
        TrainingError
            An environment still walks.
        """
        while self.launched < self.launches:
            self.launch()
        self.environment.check()
        if active := self.environment.active():
            raise TrainingError(
                f"{active} environments are not at the end of their walk: the pass missed bars; report this"
            )

    def reset(self) -> None:
        """Starts the random numbers again from the first, in stream order: part of a fold's reset. Does not synchronize."""
        self.policy.reset()
        if self.augment is not None:
            self.augment.reset()

    def report(self) -> dict[str, Any]:
        """What was added to the steps taken in this pass, JSON-ready; empty where nothing is. Synchronizes."""
        return {} if self.augment is None else self.augment.report()

    def close(self) -> None:
        """Waits for the stream and destroys the graph."""
        self.graph.close()
