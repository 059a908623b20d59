"""Whether the loss falls, measured on the same question twice: fixed rows, unit weights, frozen target and support.

During training the loss chases a moving target on rows drawn by priority, so its course says little. Here 1,024 rows are
drawn once, after the first collection of a fold, and two networks are asked about them: the one the fold began with and
the one it ended with. Both are held against one set of target distributions, those of the target network at the end of the
fold; its own greedy action takes the place of the online network's, so that no part of the target depends on the network
asked. The numbers come from the kernels of the training step, launched ungraphed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.dqn.children import ddqn
from foxhunt_rt.dqn.children.forward import ForwardWorkspace, record_forward
from foxhunt_rt.dqn.guard import CLEAR
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Batch

__all__ = ["LossProbe"]

ONLINE, ONLINE_NEXT, TARGET_NEXT = range(3)


class LossProbe:
    """MSE and CE of a network on fixed rows.

    Parameters
    ----------
    rt : Runtime
    learner : Learner
        Whose replay, layout and settings are used.
    rows : int
        Rows to draw.

    Notes
    -----
    Allocates. `draw` and `measure` synchronize; neither is legal inside a capture.
    """

    def __init__(self, rt: Runtime, learner: Learner, rows: int) -> None:
        self.learner, self.rows = learner, rows
        layout = learner.layout
        self.shape = ddqn.LossShape(rows, layout.branches, layout.atoms, learner.shape.reduction)
        self.batch = Batch.allocate(rt, rows, layout.state_dim, layout.window)
        self.raw = np.zeros(rows, np.float32)  # returns as drawn, in raw reward
        self.step = rt.zeros(1, abi.dtype("step_block"), "probe.step")
        self.guard = rt.zeros(1, abi.dtype("guard_block"), "probe.guard")
        self.theta = rt.zeros(layout.size, np.float32, "probe.theta")
        self.target = rt.zeros(layout.size, np.float32, "probe.target")
        self.logits = rt.zeros((3, rows, layout.head_padded), np.float32, "probe.logits")
        workspace = ForwardWorkspace.create(rt, layout, rows, "probe")
        # One pass at a time, so one set of hidden buffers serves all three.
        self.passes = [ForwardWorkspace(workspace.hidden, self.logits[p : p + 1].view(self.logits.shape[1:]), workspace.blocks)
                       for p in (ONLINE, ONLINE_NEXT, TARGET_NEXT)]  # fmt: skip
        self.buffers = ddqn.DdqnBuffers.create(rt, self.shape, self.batch.td_error, budget=False, gradient=False,
                                               label="probe.ddqn")  # fmt: skip
        self.user: Any = rt.ungraphed("loss_probe")

    def draw(self, seed: int) -> None:
        """Draws the rows from the replay: all priorities are equal after a first collection, so the draw is uniform over
        the rows, stratified in time. Their returns are formed with the learner's gamma of now."""
        config = self.learner.config
        block = np.zeros(1, abi.dtype("step_block"))
        block["seed"], block["rng_step"] = seed, np.uint64(2**63)  # a counter that training never reaches
        block["gamma"], block["reward_scale"] = config.loss.gamma, 1.0
        block["min_priority"] = np.float32(np.inf).view(np.uint32)
        self.step.copy_from(block)
        self.learner.replay.record_sample(self.user, self.batch, self.step)
        self.raw = self.batch.ret.to_numpy()
        self.batch.priority.fill(1.0)

    def persistent(self) -> dict[str, DeviceBuffer]:
        """The fixed rows, but for `raw`: what a checkpoint must hold."""
        batch = self.batch
        found = {name: getattr(batch, name) for name in ("state", "next_state", "action", "discount", "priority")}
        for name, windows in zip(
            ("window", "next_window"), batch.windows, strict=False
        ):  # of a network that looks back
            found |= {f"{name}_states": windows.states, f"{name}_length": windows.length}
        return found

    def measure(self, theta: NDArray[np.float32], target: NDArray[np.float32]) -> dict[str, float]:
        """``{"mse", "ce"}`` of flat parameters ``theta`` against the targets of flat parameters ``target``, in the normalized
        reward of now: the unit of ``target``."""
        config, layout, batch = self.learner.config, self.learner.layout, self.batch
        batch.ret.copy_from(self.raw * np.float32(self.learner.return_scale()))
        self.theta.copy_from(theta)
        self.target.copy_from(target)
        block = np.zeros(1, abi.dtype("step_block"))
        block["v_min"], block["v_max"] = config.loss.v_min, config.loss.v_max
        block["delta_z"] = np.float32((config.loss.v_max - config.loss.v_min) / (layout.atoms - 1))
        block["label_smoothing"], block["alpha_c51"] = config.loss.label_smoothing, 1.0
        block["q_clip"], block["spike_mass"] = np.inf, 1.0
        block["min_priority"] = np.float32(1.0).view(np.uint32)
        self.step.copy_from(block)
        self.guard.copy_from(np.array([(CLEAR,)], abi.dtype("guard_block")))
        s, following = (batch.state, batch.window), (batch.next_state, batch.next_window)
        for params, (x, windows), workspace in ((self.theta, s, self.passes[ONLINE]),
                                                (self.target, following, self.passes[ONLINE_NEXT]),
                                                (self.target, following, self.passes[TARGET_NEXT])):  # fmt: skip
            record_forward(self.user, layout, params, x, self.rows, workspace, windows)
        inputs = ddqn.DdqnInputs(
            self.logits, batch.action, batch.ret, batch.discount, batch.priority, self.step, self.guard
        )
        ddqn.record(self.user, self.shape, inputs, self.buffers)
        rows: NDArray[np.float32] = self.buffers.rows.to_numpy()  # type: ignore[attr-defined]
        return {name: float(rows[:, abi.constant(f"STAT_{name.upper()}")].astype(np.float64).mean())
                for name in ("mse", "ce")}  # fmt: skip
