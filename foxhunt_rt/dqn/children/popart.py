"""popart: returns in units of their running deviation (docs/step/popart.md). One launch, `popart`, between per_sample and
forward; one more an insert, `replay_returns`, keeps the moments of the returns.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from foxhunt_rt.config import PopArtConfig
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.kernels import abi

# Up to so many, a thread has one row, and one parameter of a tensor: the kernel is a chain of trips to memory.
_THREADS, _MAX_BLOCKS = 128, 64


class PopArt(Extension):
    """An adaptive scale of the returns (van Hasselt 2016), without the shift.

    Attributes
    ----------
    state : DeviceBuffer
        popart_state[1]: sigma of this step and the last, by the step's parity.
    """

    name = "popart"
    metrics = ("popart_sigma", "popart_scale")
    state: DeviceBuffer

    def __init__(self, config: PopArtConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        rt, batch, replay = step.runtime, step.batch, step.replay
        replay.track_returns(step.control)
        assert replay.returns is not None
        self.state = rt.zeros(1, abi.dtype("popart_state"), "popart.state")
        tensors = [s for g in step.layout.groups for s in step.layout.group_segments[g.name]
                   if s.name.removeprefix(f"{g.name}.") in g.output_scaled]  # fmt: skip
        ranges: Buffer | None = None
        names, first, n = ("theta", "target", "m", "v"), 0, 0
        heads: dict[str, Buffer | None] = dict.fromkeys(names)
        if tensors:  # in the order of the buffer
            first = tensors[0].offset
            n = tensors[-1].stop - first
            table = np.array([(s.offset - first, s.stop - s.offset) for s in tensors], np.int32)
            ranges = rt.array(table.reshape(-1), "popart.ranges")
            heads = {name: getattr(step.adam, name)[first : first + n] for name in names}
        scaled = [b for b in heads.values() if b is not None]
        reads = [replay.returns, batch.ret, step.step, *([ranges] if ranges is not None else [])]
        work = max(batch.size, *(s.stop - s.offset for s in tensors)) if tensors else batch.size
        with step.child("popart", reads, [self.state, *scaled, step.ret, step.metrics_of(self)],
                        after="per_sample") as child:  # fmt: skip
            child.launch("popart", grid=(min(_MAX_BLOCKS, -(-work // _THREADS)),), block=(_THREADS,), args=dict(
                heads, returns=replay.returns, ret=batch.ret, step=step.step, ranges=ranges, state=self.state,
                normalized=step.ret, metrics=step.metrics_of(self), min_count=self.config.min_count,
                max_change=self.config.max_change, B=batch.size, R=len(tensors), n=n))  # fmt: skip

    def sigma(self, step: int) -> float:
        """What step number ``step`` finds as the sigma of the step before it, in raw reward; 0 before the first."""
        return float(self.state.to_numpy()[0][("sigma_even", "sigma_odd")[step & 1]])

    def reset(self) -> None:
        self.state.fill(0)

    def persistent(self) -> Mapping[str, DeviceBuffer]:
        return {"state": self.state}


__all__ = ["PopArt"]
