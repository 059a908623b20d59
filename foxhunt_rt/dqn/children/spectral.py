"""spectral: bounds the largest singular value of the trunk's weight matrices, all in three launches (docs/step/spectral.md).

One power iteration a step with a vector that the step hands on, then W <- W / max(1, sigma/sigma_max) before the network is
used. `Spectral.serve` does the same once more to a copy of parameters that leave the learner, whose last update no projection
has followed yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import SpectralConfig
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import NetworkLayout, Segment
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi

_THREADS = 256
_ROWS = 8  # rows of a block: one a warp
_PER_BLOCK = 4096  # elements that a block scales


class Launches(Protocol):
    """A child that records, or an ungraphed user that launches."""

    def launch(self, kernel: str, grid: Sequence[int], block: Sequence[int], args: Mapping[str, Any]) -> None: ...


def matrices(layout: NetworkLayout) -> list[Segment]:
    """What is bounded: the weights of the trunk's layers. Heads are not."""
    return [layer.weight for layer in layout.layers[:-1]]


@dataclass(frozen=True)
class SpectralBuffers:
    """The vectors of the iteration and what it finds."""

    table: DeviceBuffer  # spectral_matrix[M]
    u: DeviceBuffer  # f32 (sum Kp,) W v, of any length: recomputed from v in every iteration
    s: DeviceBuffer  # f32 (sum Np,) W^T u
    v: DeviceBuffer  # f32 (sum Np,) right singular vectors, unit length: what an iteration hands to the next
    sigma: DeviceBuffer  # f32 (M,) estimates of the last iteration, before its projection
    blocks: tuple[int, int, int]  # of the three launches

    @classmethod
    def create(cls, rt: Runtime, weights: Sequence[Segment], label: str) -> SpectralBuffers:
        """Allocates; the vectors are still zero: see `start`. ``label`` begins the labels."""
        rows, at = [], [0] * 5  # u, v, and the first blocks of the three launches
        for weight in weights:
            kp, n_padded = weight.padded_shape
            rows.append((weight.offset, weight.shape[0], kp, n_padded, *at))
            sizes = (kp, n_padded, -(-kp // _ROWS), n_padded // abi.constant("SPECTRAL_COLUMNS"),
                     -(-weight.size // _PER_BLOCK))  # fmt: skip
            at = [a + size for a, size in zip(at, sizes, strict=True)]
        return cls(rt.array(np.array(rows, abi.dtype("spectral_matrix")), f"{label}.matrices"),
                   rt.zeros(at[0], np.float32, f"{label}.u"), rt.zeros(at[1], np.float32, f"{label}.s"),
                   rt.zeros(at[1], np.float32, f"{label}.v"), rt.zeros(len(rows), np.float32, f"{label}.sigma"),
                   (at[2], at[3], at[4] + 1))  # fmt: skip

    @property
    def written(self) -> list[Buffer]:
        """What `record` writes, theta and metrics aside."""
        return [self.u, self.s, self.v, self.sigma]


def start(weights: Sequence[Segment]) -> npt.NDArray[np.float32]:
    """Random unit vectors to begin with, pads zero, f32 (sum Np,): the same in every fold."""
    random = np.random.Generator(np.random.Philox(key=0))
    parts = []
    for weight in weights:
        v = random.normal(size=weight.shape[1])
        parts.append(np.pad(v / np.linalg.norm(v), (0, weight.padded_shape[1] - len(v))))
    return np.concatenate(parts).astype(np.float32)


def record(launches: Launches, theta: Buffer, buffers: SpectralBuffers, sigma_max: float, largest: Buffer,
           projected: Buffer) -> None:  # fmt: skip
    """Three launches: one power iteration and the projection.

    Parameters
    ----------
    launches : Child or UngraphedUser
    theta : Buffer
        f32 (P,), changed in place.
    buffers : SpectralBuffers
    sigma_max : float
        Baked by value.
    largest, projected : Buffer
        f32 (1,): the largest estimate, and the share of the matrices that were above the bound.
    """
    rows, columns, blocks = buffers.blocks
    u, v, table = buffers.u, buffers.v, buffers.table
    sizes = {"M": table.size, "V": v.size, "n": theta.size}
    launches.launch("spectral_rows", (rows,), (32 * _ROWS,),
                    dict(theta=theta, matrices=table, v=v, u=u, U=u.size, rows=_ROWS, **sizes))  # fmt: skip
    launches.launch("spectral_columns", (columns,), (_THREADS,),
                    dict(theta=theta, matrices=table, u=u, s=buffers.s, U=u.size, **sizes))  # fmt: skip
    launches.launch("spectral_project", (blocks,), (_THREADS,),
                    dict(theta=theta, matrices=table, s=buffers.s, v=v, sigma=buffers.sigma, largest=largest,
                         projected=projected, sigma_max=sigma_max, per_block=_PER_BLOCK, **sizes))  # fmt: skip


class Spectral(Extension):
    """The child, and the projection of parameters that are served.

    Attributes
    ----------
    buffers : SpectralBuffers
        Those of the step.
    """

    name, metrics = "spectral", ("spectral_sigma_max", "spectral_projected")
    buffers: SpectralBuffers

    def __init__(self, config: SpectralConfig) -> None:
        self.sigma_max = config.sigma_max

    def record(self, step: StepView) -> None:
        rt, self._weights = step.runtime, matrices(step.layout)
        self.buffers = SpectralBuffers.create(rt, self._weights, "spectral")
        self._served = SpectralBuffers.create(rt, self._weights, "spectral.served")
        self._theta = rt.zeros(step.layout.size, np.float32, "spectral.served.theta")
        self._metrics = rt.zeros(2, np.float32, "spectral.served.metrics")
        self._user = rt.ungraphed("spectral.serve")
        self.reset()
        trunk = step.adam.theta[: self._weights[-1].stop]
        found = [step.metric(name) for name in self.metrics]
        with step.child(self.name, before="forward", reads=[self.buffers.table],
                        writes=[trunk, *self.buffers.written, *found]) as child:  # fmt: skip
            record(child, trunk, self.buffers, self.sigma_max, *found)
        self.serve(step.adam.theta)  # type: ignore[arg-type]  # loads what it launches, before any step

    def reset(self) -> None:
        self.buffers.v.copy_from(start(self._weights))

    def persistent(self) -> dict[str, DeviceBuffer]:
        return {"v": self.buffers.v}

    def serve(self, theta: DeviceBuffer) -> DeviceBuffer:
        self._theta.copy_from_device(theta)
        self._served.v.copy_from_device(self.buffers.v)
        record(self._user, self._theta, self._served, self.sigma_max, self._metrics[:1], self._metrics[1:])
        return self._theta


__all__ = ["Spectral", "SpectralBuffers", "matrices", "record", "start"]
