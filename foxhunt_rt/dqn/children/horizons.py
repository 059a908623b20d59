"""horizons: the net return over several horizons, and their blend as a potential for ddqn (docs/step/multi_horizon.md).

post_aux.horizons, beside ddqn: 1. `horizon_rows`, a block a row: labels from the ring, predictions; 2. `head_gradient`; 3. the
squares of the gradient; 4. `horizon_blend`: running errors, and with them the weights that the next step uses.
ddqn.horizons, between forward and ddqn: `horizon_shape`, by the weights of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from foxhunt_rt.config import HorizonsConfig
from foxhunt_rt.dqn.children.linear_head import HeadGradient, linear_head
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup
from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.kernels import abi

_THREADS = 128


class Horizons(Extension):
    """Heads for the net return over H horizons; their blend shapes the targets once it has shown that it knows something.

    Attributes
    ----------
    rows : DeviceBuffer
        f32 (B, 5 H): squared error, valid, label, its square, each of H; then the gradients.
    running : DeviceBuffer
        f32 (4, H): running means of the first four.
    streak : DeviceBuffer
        u32 (1,): steps in a row in which the blend explained something.
    blend : DeviceBuffer
        f32 (H + 1,): weights of the horizons, which add up to 1 once a label was valid; confidence.
    shaping : DeviceBuffer or None
        f32 (M,): what was added to each row's return.
    """

    name = "horizons"
    rows: DeviceBuffer
    running: DeviceBuffer
    streak: DeviceBuffer
    blend: DeviceBuffer
    shaping: DeviceBuffer | None

    def __init__(self, config: HorizonsConfig) -> None:
        self.config = config
        more = ("horizons_shaping",) if config.bound > 0.0 else ()
        self.metrics = (*(f"horizon_{h}_error" for h in config.lengths), *(f"horizon_{h}_weight" for h in config.lengths),
                        "horizons_loss", "horizons_valid", "horizons_confidence", *more)  # fmt: skip

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        return [linear_head(self.name, layout, len(self.config.lengths), self.config)]

    def record(self, step: StepView) -> None:
        rt, config, batch, drawn, replay = step.runtime, self.config, step.batch, step.drawn, step.replay
        x, group = step.trunk_output[: drawn.size], step.group(self.name)
        (rows, width), count = x.shape, len(config.lengths)
        replay.ahead = max(replay.ahead, *config.lengths)
        columns, means_of = abi.constant("HORIZON_COLUMNS"), abi.constant("HORIZON_MEANS")
        self.rows = rt.zeros((rows, columns * count), np.float32, "horizons.rows")
        self.running = rt.zeros((means_of, count), np.float32, "horizons.running")
        self.streak = rt.zeros(1, np.uint32, "horizons.streak")
        self.blend = rt.zeros(count + 1, np.float32, "horizons.blend")
        self.shaping = rt.zeros(batch.size, np.float32, "horizons.shaping") if config.bound > 0.0 else None
        means = rt.zeros(means_of * count, np.float32, "horizons.means")
        bars = rt.array(np.array(config.lengths, np.int32), "horizons.lengths")
        weight, bias = group.theta("weight"), group.theta("bias")
        if self.shaping is not None:
            sigma = step.metric("popart_sigma") if step.config.popart.enabled else None
            here, following = step.trunk_output, step.trunk_output_next
            reads = [here, following, weight, bias, step.ret, batch.discount, bars, self.blend, step.step]
            with step.child("ddqn.horizons", before="ddqn", reads=[*reads, *([sigma] if sigma is not None else [])],
                            writes=[self.shaping, step.shaped_ret]) as child:  # fmt: skip
                child.launch("horizon_shape", (batch.size,), (_THREADS,), dict(
                    x=here, x_next=following, w=weight, bias=bias, ret=step.ret, discount=batch.discount,
                    bars=bars, blend=self.blend, step=step.step, sigma=sigma, shaping=self.shaping,
                    shaped=step.shaped_ret, bound=config.bound, B=batch.size, H=count, Hp=width))  # fmt: skip
        back = HeadGradient.create(step, group, rows)
        reads = [*back.reads, weight, bias, drawn.index, replay.rows, replay.ring, bars, step.step]
        with step.child("post_aux.horizons", after="ddqn", reads=[*reads, *([self.shaping] if self.shaping is not None else [])],
                        writes=[self.rows, means, *back.writes, self.running, self.streak, self.blend,
                                step.metrics_of(self)]) as child:  # fmt: skip
            child.launch("horizon_rows", (rows,), (_THREADS,), dict(
                x=x, w=weight, bias=bias, index=drawn.index, ring_rows=replay.rows, ring=replay.ring, bars=bars,
                step=step.step, rows=self.rows, B=rows, H=count, Hp=width, capacity=replay.capacity))  # fmt: skip
            back.record(child, self.rows, means, outputs=count)
            child.launch("horizon_blend", (1,), (256,), dict(
                means=means, shaping=self.shaping, running=self.running, streak=self.streak, blend=self.blend,
                metrics=step.metrics_of(self), rate=config.rate, temperature=config.blend_temperature, B=batch.size, H=count,
                n=4 if self.shaping is not None else 3, ready_steps=config.ready_steps))  # fmt: skip

    def reset(self) -> None:
        for buffer in self.persistent().values():
            buffer.fill(0)

    def persistent(self) -> Mapping[str, DeviceBuffer]:
        return {"running": self.running, "streak": self.streak, "blend": self.blend}


__all__ = ["Horizons"]
