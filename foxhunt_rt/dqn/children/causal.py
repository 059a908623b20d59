"""maintenance.causal: how much Q changes when a group of features is set to its reference, every so many steps
(docs/step/causal.md).

A part on a side branch from forward to adam, behind an IF node: 1. `causal_intervene`, 2. the forward pass on groups x rows, 3.
`causal_effect`, 4. `causal_update`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from foxhunt_rt.config import CausalConfig, ConfigError
from foxhunt_rt.dqn.children.forward import ForwardWorkspace, record_forward
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import Flag
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Windows

_THREADS = 128


class Causal(Extension):
    """Running importance of each group of features.

    Attributes
    ----------
    importance : DeviceBuffer
        f32 (G,): running mean of |Q(s) - Q(s with the group at its reference)|, in normalized reward.
    measured : DeviceBuffer
        u32 (1,): interventions so far.
    groups : tuple of int
        Columns of each group.
    """

    name = "causal"
    metrics = ("causal_largest", "causal_entropy")
    importance: DeviceBuffer
    measured: DeviceBuffer
    groups: tuple[int, ...]

    def __init__(self, config: CausalConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        rt, layout, shape, config = step.runtime, step.layout, step.shape, self.config
        self.groups = config.groups or (1,) * layout.state_dim
        if sum(self.groups) > layout.state_dim:
            raise ConfigError(
                f"causal.groups has {sum(self.groups)} columns, a state {layout.state_dim}; take some away"
            )
        count, rows = len(self.groups), min(config.rows, step.drawn.size)
        changed, all_rows = count * rows, (count + 1) * rows
        # One group more, of no columns: the rows as they are, through the same products as the others.
        bounds = rt.array(np.cumsum([0, *self.groups, 0]).astype(np.int32), "causal.bounds")
        x = rt.zeros((all_rows, layout.state_padded), np.float32, "causal.x")
        work = ForwardWorkspace.create(rt, layout, all_rows, "causal")
        effect = rt.zeros((count, rows), np.float32, "causal.effect")
        self.importance = rt.zeros(count, np.float32, "causal.importance")
        self.measured = rt.zeros(1, np.uint32, "causal.measured")
        state, theta = step.batch.state[:rows], step.adam.theta[: layout.forward_size]
        # A network that looks back sees the intervention on every state of its windows.
        window, past = step.batch.window, None
        if window is not None:
            window = window[:rows]
            past = Windows.allocate(rt, all_rows, window.window, layout.state_padded, "causal.past")
        observed, made = (w.buffers() if w is not None else [] for w in (window, past))
        self._found = largest, entropy = [step.metric(name) for name in self.metrics]
        due = Flag(step.step, "due", mask=abi.constant("DUE_CAUSAL"))
        written = [x, *made, *work.buffers(), effect, self.importance, self.measured, *self._found]
        with step.child("maintenance.causal", after="forward", when=due, reads=[state, *observed, theta, bounds, step.step],
                        writes=written) as child:  # fmt: skip
            child.launch("causal_intervene", (rows, count + 1), (_THREADS,), shared=4 * layout.state_padded, args=
                         dict(state=state, bounds=bounds, window=window.states if window else None,
                              length=window.length if window else None, x=x, past=past.states if past else None,
                              past_length=past.length if past else None, R=rows, Sp=layout.state_padded, G=count + 1,
                              mean=int(config.reference == "mean"), L=window.window if window else 0))  # fmt: skip
            record_forward(child, layout, theta, x, all_rows, work, past)
            child.launch("causal_effect", (changed,), (_THREADS,),
                         dict(changed=work.logits[:changed], observed=work.logits[changed:], step=step.step, effect=effect,
                              branch_sizes=shape.packed_branches, R=rows, G=count, K=len(shape.branches), S=shape.actions,
                              N=shape.atoms, Np=layout.head_padded))  # fmt: skip
            child.launch("causal_update", (1,), (32 * min(count, 32),),
                         dict(effect=effect, importance=self.importance, measured=self.measured, largest=largest,
                              entropy=entropy, rate=config.rate, R=rows, G=count))  # fmt: skip

    def reset(self) -> None:
        for buffer in self.persistent().values():
            buffer.fill(0)

    def persistent(self) -> dict[str, DeviceBuffer]:
        found: dict[str, Any] = {"importance": self.importance, "measured": self.measured,
                                 **dict(zip(self.metrics, self._found, strict=True))}  # fmt: skip
        return found

    def report(self) -> dict[str, Any]:
        return {"groups": list(self.groups), "interventions": int(self.measured.to_numpy()[0]),
                "importance": [float(x) for x in self.importance.to_numpy()]}  # fmt: skip


__all__ = ["Causal"]
