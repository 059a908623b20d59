"""The policy: from states to actions, inside any child (docs/step/forward.md for the network).

    policy = Policy(rt, layout, control, rows=64)
    with plan.child("act", reads=policy.reads(theta, state), writes=policy.writes(action)) as child:
        policy.record_act(child, theta, state, action)
    policy.set_exploration(epsilon=0.1)             # in stream order, any time after

The kernels a child launches belong to that child: collecting and training never share a function.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.dqn.children.ensemble import EnsembleHeads
from foxhunt_rt.dqn.children.forward import ForwardWorkspace, own_layer, record_forward
from foxhunt_rt.dqn.children.isv import append_context
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.layout import NetworkLayout
from foxhunt_rt.driver import Buffer, FoxhuntError
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import History, Windows

__all__ = ["Policy", "PolicyError"]


class PolicyError(FoxhuntError):
    """Exploration out of range, or a network that cannot act."""


class Policy:
    """Acts for up to `rows` environments: greedy, epsilon-greedy per branch, or Boltzmann.

    Parameters
    ----------
    runtime : Runtime
    layout : NetworkLayout
        At most 8 branches of at most 255 choices, and 256 atoms.
    control : Buffer of control_block, (1,)
        Read: seed, v_min, v_max.
    rows : int
        Most rows a launch may have.
    guard : Buffer of guard_block, optional
        Takes a fault where an expected return is not finite. With or without it, the action is -1 there.
    context : Buffer, float32 (C,), optional
        What `record_act` writes into the last C columns of every state before it looks at it: ``Replay.context``, or a copy.
    label : str
        Begins the labels of its buffers.

    Notes
    -----
    In a capture: refused. Synchronizes: no. Allocates: yes.

    Allocates; starts greedy. Row r draws from Philox(seed, counter of r), and every launch advances the counters, so a replayed
    graph explores anew. Two policies with one seed draw the same numbers: do not average over both.
    """

    def __init__(self, runtime: Runtime, layout: NetworkLayout, control: Buffer, rows: int, *, guard: Buffer | None = None,
                 context: Buffer | None = None, label: str = "policy") -> None:  # fmt: skip
        if len(layout.branches) > 8 or max(layout.branches) > 255 or not 2 <= layout.atoms <= 256:
            raise PolicyError(f"branches {layout.branches} with {layout.atoms} atoms are too large to act; give at most 8 "
                              "branches of 255 choices, 2 to 256 atoms")  # fmt: skip
        self.runtime, self.layout, self.control, self.rows, self.guard = runtime, layout, control, rows, guard
        self.context = context
        self.workspace = ForwardWorkspace.create(runtime, layout, rows, label)
        self._heads = EnsembleHeads.of(layout)
        self._more: Buffer | None = None  # f32 (rows, Mp) advantages of an ensemble's heads beside the network's own
        if self._heads is not None:
            self._more = runtime.zeros((rows, self._heads.layer.n_padded), np.float32, f"{label}.more")
        self.explore = runtime.zeros(1, abi.dtype("explore_block"), f"{label}.explore")
        self.draws = runtime.zeros(rows, np.uint64, f"{label}.draws")
        self.q = runtime.zeros((rows, sum(layout.branches)), np.float32, f"{label}.q")
        self.set_exploration(0.0)  # so that its module is loaded now and not between replays

    @property
    def trunk_output(self) -> Buffer:
        """f32 (rows, Hp): the trunk's output on the states acted in, for as long as the child has recorded nothing else."""
        return self.workspace.hidden[-1]

    def reads(self, params: Buffer, state: Buffer) -> list[Buffer]:
        """What `record_act` reads, for the child's declaration."""
        return [params, state, self.control, self.explore, *([self.context] if self.context is not None else [])]

    def writes(self, action: Buffer) -> list[Buffer]:
        """What `record_act` writes, but for the state, into which it writes the context where there is one."""
        more = [self._more] if self._more is not None else []
        return [*self.workspace.buffers(), *more, self.draws, self.q, action]

    def private(self) -> list[Buffer]:
        """The guard: claimed by an integer minimum, so it orders nothing."""
        return [self.guard] if self.guard is not None else []

    def record_act(self, child: Child, params: Buffer, state: Buffer, action: Buffer, *, history: History | None = None,
                   fresh: Buffer | None = None, windows: Windows | None = None) -> None:  # fmt: skip
        """Records the network's forward pass and the choice: one launch a layer, and one; one more with a context, and with a
        history. With an ensemble (docs/step/ensemble.md) one more, and the choice is by the mean of its heads.

        Parameters
        ----------
        child : Child
            Declares `reads`, `writes` and `private`.
        params : Buffer, float32 (P,)
            Flat parameters.
        state : Buffer, float32 (R, Sp)
            Pads zero; R at most `rows`.
        action : Buffer, int32 (R,)
            Receives the actions, mixed radix; -1 where an expected return is not finite. `q` (rows, S) receives the expected
            returns of all branches' choices side by side.
        history : History, optional
            Of R environments, for a network that looks back: ``state`` is put behind it. The child writes its windows.
        fresh : Buffer, int32 (R,), optional
            Where it is not 0 the state begins an episode.
        windows : Windows, optional
            Written, and looked at, instead of those of ``history``, which stays as it is.
        """
        rows = state.shape[0]
        if rows > self.rows or action.shape[0] != rows:
            raise PolicyError(f"{state.label} has {rows} rows, {action.label} {action.shape[0]}, the policy acts for "
                              f"{self.rows}; give equal numbers, at most the policy's")  # fmt: skip
        if self.context is not None:
            append_context(child, self.context, state, rows, self.layout.state_dim - self.context.size)
        if history is not None:
            history.record_push(child, state, fresh=fresh, to=windows)
            windows = windows or history.windows
        record_forward(child, self.layout, params, state, rows, self.workspace, windows)
        if self._heads is not None and self._more is not None:
            layer = self._heads.layer
            own_layer(child, layer, rows, [self.workspace.hidden[-1]], LayerWeights.of(layer, params, None), self._more)
        self._record_select(child, rows, action)

    def _record_select(self, child: Child, rows: int, action: Buffer) -> None:
        layout, heads = self.layout, self._heads
        child.launch("select_actions", grid=(rows,), block=(128,), args=dict(
            logits=self.workspace.logits, more=self._more, control=self.control, explore=self.explore, draws=self.draws,
            guard=self.guard, q=self.q, action=action, branch_sizes=sum(n << 8 * b for b, n in enumerate(layout.branches)),
            R=rows, K=len(layout.branches), S=sum(layout.branches), N=layout.atoms, Np=layout.head_padded,
            Mp=heads.layer.n_padded if heads is not None else 0, E=heads.count if heads is not None else 0,
        ))  # fmt: skip

    def set_exploration(self, epsilon: float, temperature: float = 0.0) -> None:
        """New exploration for launches queued from now on.

        In a capture: refused. Synchronizes: no. Allocates: no.

        Parameters
        ----------
        epsilon : float
            Chance, in each branch, of a uniformly random choice; 0 to 1.
        temperature : float
            Of Boltzmann exploration, in units of normalized return; 0: the best choice.
        """
        if not 0.0 <= epsilon <= 1.0:
            raise PolicyError(f"epsilon {epsilon} is no probability; give 0 to 1")
        if not 0.0 <= temperature < float("inf"):
            raise PolicyError(f"temperature {temperature} is out of range; give 0 or more")
        self.runtime.ungraphed("policy").launch("set_exploration", (1,), (32,), {
            "explore": self.explore, "epsilon": float(epsilon), "temperature": float(temperature)})  # fmt: skip

    def reset(self) -> None:
        """Starts the random numbers again from the first, in stream order: part of a fold's reset.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        self.draws.fill(0)
