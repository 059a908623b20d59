"""How losses with a block a row of the head's output are launched: a warp a branch, the logits in shared memory if they fit."""

from __future__ import annotations

from dataclasses import dataclass

from foxhunt_rt.config import ConfigError
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.kernels import abi

_SHARED_BYTES = 48 << 10  # what every device gives a block


@dataclass(frozen=True)
class RowLaunch:
    """A kernel and how a row of it is launched."""

    kernel: str
    threads: int
    shared: int  # bytes

    @classmethod
    def of(cls, kernels: tuple[str, str], shape: LossShape, *, tasks: int, logits: int, work: int, most: tuple[int, int] = (0, 0),
           lower: str = "network.atoms") -> RowLaunch:  # fmt: skip
        """Chooses between a kernel and the one for many atoms or long rows.

        Parameters
        ----------
        kernels : (str, str)
            The one, the other.
        shape : LossShape
        tasks : int
            Warps that have something to do at once.
        logits : int
            Floats of the row that the first reads from shared memory, the second in place.
        work : int
            Floats that both need there.
        most : (int, int)
            Threads of a block that their registers allow. Default: those of one head.
        lower : str
            The settings to lower where a row does not fit.

        Raises
        ------
        ConfigError
            A row takes more shared memory than every device has.
        """
        if (nbytes := 4 * work) > _SHARED_BYTES:
            raise ConfigError(
                f"{kernels[0]} takes {nbytes} bytes of shared memory for a row, above {_SHARED_BYTES}: lower {lower}"
            )
        staged = nbytes + 4 * logits
        narrow = shape.atoms <= abi.constant("HEAD_NARROW") and staged <= _SHARED_BYTES
        threads = min(32 * tasks, most[0 if narrow else 1] or abi.constant("HEAD_THREADS"))
        return cls(kernels[0], threads, staged) if narrow else cls(kernels[1], threads, nbytes)


__all__ = ["RowLaunch"]
