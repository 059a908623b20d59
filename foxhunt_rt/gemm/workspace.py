"""Workspaces of the library's kernels, from one pool.

Known failure K16: an earlier system held 32 MB for every direction of every branch, twice, and ran out of memory on an 80 GB
card. Here a workspace belongs to a lane: work that never runs side by side, such as forward and backward of one network, has
one. Children declare it as `scratch`, so two of them with one workspace are ordered by construction.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import Runtime

#: Bytes of one workspace: what NVIDIA recommends on Hopper
#: (https://docs.nvidia.com/cuda/cublas/#cublassetworkspace), and what the fastest products of a width of 1024 asked for.
WORKSPACE_BYTES = 32 << 20


class WorkspacePool:
    """One workspace for each stream and lane, allocated when first asked for.

    Parameters
    ----------
    rt : Runtime
    """

    def __init__(self, rt: Runtime) -> None:
        self.runtime = rt
        self._blocks: dict[str, DeviceBuffer] = {}

    def get(self, lane: str) -> DeviceBuffer:
        """The workspace of a lane, u8 (WORKSPACE_BYTES,). Allocates the first time; not legal inside a capture."""
        if lane not in self._blocks:
            self._blocks[lane] = self.runtime.empty(WORKSPACE_BYTES, np.uint8, f"gemm.workspace.{lane}")
        return self._blocks[lane]

    @property
    def nbytes(self) -> int:
        """Bytes of all workspaces."""
        return sum(block.nbytes for block in self._blocks.values())


__all__ = ["WORKSPACE_BYTES", "WorkspacePool"]
