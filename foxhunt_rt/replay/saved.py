"""The contents of a ring as plain arrays, and back: what a checkpoint holds of it. Continuing is bit for bit the same.

Rows and final observations that the ring does not hold (yet) are left out: nothing ever reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.replay.errors import ReplayError
from foxhunt_rt.replay.ring import Replay

__all__ = ["check_contents", "describe", "plain", "read_contents", "structured", "write_contents"]


def plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Structs as numbers: words along a last axis where all fields are of one type, else bytes."""
    if array.dtype.names is None:
        return array
    kinds = {field[0] for field in array.dtype.fields.values()}  # type: ignore[union-attr]
    word = kinds.pop() if len(kinds) == 1 else np.dtype(np.uint8)
    return np.ascontiguousarray(array).view(word).reshape(*array.shape, array.dtype.itemsize // word.itemsize)


def structured(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The inverse of `plain`."""
    if dtype.names is None:
        return array
    return np.ascontiguousarray(array).view(dtype).reshape(array.shape[:-1])


def describe(replay: Replay) -> dict[str, Any]:
    """What two rings must have in common for the contents of one to go into the other. JSON-ready."""
    return {"capacity": replay.capacity, "state_dim": replay.state_dim, "mode": replay.mode,
            "portfolio_dim": replay.portfolio_dim, "context_dim": replay.context_dim, "n_step": replay.n_step,
            "final_observations": replay.final_observations, "returns": replay.returns is not None,
            "mirror": replay.sign is not None, "conviction": replay.conviction is not None}  # fmt: skip


def _parts(replay: Replay, inserted: int, finals: int, environments: int | None) -> dict[str, DeviceBuffer]:
    """What is held, by name: views of the first rows of each buffer."""
    rows = min(inserted, replay.capacity)
    sums = {
        "block_sum": replay.block_sum,
        "super_sum": replay.super_sum,
        "ring": replay.ring,
        "returns": replay.returns,
    }
    by_row = {"priority": replay.priority, "rows": replay.rows, "state": replay.state, "portfolio": replay.portfolio,
              "mirrored": replay.mirrored, "conviction": replay.conviction}  # fmt: skip
    by_final = {"final_state": replay.final_state, "final_owner": replay.final_owner}
    parts = {name: buffer for name, buffer in sums.items() if buffer is not None}
    parts |= {name: buffer[:rows] for name, buffer in by_row.items() if buffer is not None}
    parts |= {
        name: buffer[: min(finals, replay.final_observations)]
        for name, buffer in by_final.items()
        if buffer is not None
    }
    if replay.running is not None:
        parts["running"] = replay.running[: environments or 0]
    if replay.account is not None and replay.drawdown is not None:
        parts |= {"account": replay.account[: environments or 0], "drawdown": replay.drawdown}
    return parts


def _counts(counts: Mapping[str, Any]) -> tuple[int, int, int | None]:
    environments = counts["environments"]
    return int(counts["inserted"]), int(counts["finals"]), None if environments is None else int(environments)


def read_contents(replay: Replay) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Host copies of what the ring holds, and the host's counts (JSON-ready). Synchronizes; not legal inside a capture."""
    state = replay.read_state()
    if state.inserted != replay.inserted:
        raise ReplayError(f"{state.inserted} rows were inserted, the host knows of {replay.inserted}; call note_inserted "
                          "after each launch of a graph that inserts")  # fmt: skip
    tensors = {name: plain(part.to_numpy() if part.nbytes else np.empty(part.shape, part.dtype))
               for name, part in _parts(replay, state.inserted, state.finals, replay._environments).items()}  # fmt: skip
    return tensors, {"inserted": state.inserted, "finals": state.finals, "environments": replay._environments}


def check_contents(replay: Replay, tensors: Mapping[str, npt.NDArray[Any]], counts: Mapping[str, Any]) -> None:
    """Raises ReplayError unless `write_contents` can take these."""
    parts = _parts(replay, *_counts(counts))
    for name in sorted(set(parts) ^ set(tensors)):
        raise ReplayError(f"{name} is {'missing' if name in parts else 'unknown'}; give the contents of such a ring")
    for name, part in parts.items():
        wanted = plain(np.empty(part.shape, part.dtype))
        if tensors[name].shape != wanted.shape or tensors[name].dtype != wanted.dtype:
            raise ReplayError(f"{name} is {tensors[name].dtype}{list(tensors[name].shape)}, this ring takes "
                              f"{wanted.dtype}{list(wanted.shape)}; give the contents of such a ring")  # fmt: skip


def write_contents(replay: Replay, tensors: Mapping[str, npt.NDArray[Any]], counts: Mapping[str, Any]) -> None:
    """Puts contents that `read_contents` took from a ring of the same sizes in place of what is there. Synchronizes."""
    check_contents(replay, tensors, counts)
    replay.clear()  # rows that are not written have no priority
    for name, part in _parts(replay, *_counts(counts)).items():
        if part.nbytes:
            part.copy_from(structured(tensors[name], part.dtype))
    replay.inserted = int(counts["inserted"])
    _, _, replay._environments = _counts(counts)
