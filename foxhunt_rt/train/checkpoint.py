"""Checkpoints: one safetensors file with everything a fold has learned, whole or absent.

Tensors: `theta`, `target`, `m`, `v` (flat, by the layout in the metadata), `normalizer.*`, `counters` (step, rng_step,
adam_step). Metadata: format, the complete configuration as TOML, and the facts of the fold as JSON. The replay is not in
it, so training cannot be resumed from one bit for bit; evaluation can.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt import __version__
from foxhunt_rt._optional import require
from foxhunt_rt.config import Config
from foxhunt_rt.train.errors import TrainingError
from foxhunt_rt.train.run_folder import write_whole

__all__ = ["FORMAT", "CheckpointError", "load_checkpoint", "save_checkpoint"]

FORMAT = 1


class CheckpointError(TrainingError):
    """A file that is no usable checkpoint; says why."""


def save_checkpoint(path: Path, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], config: Config) -> None:
    """Writes a checkpoint under a temporary name and renames it.

    Parameters
    ----------
    path : Path
    tensors : mapping of str to array
    facts : mapping
        JSON-ready: fold, epoch, support, bar clock, layout.
    config : Config
    """
    numpy_format = require("safetensors.numpy", "writing a checkpoint")
    metadata = {"format": f"foxhunt-rt {FORMAT}", "version": __version__, "config": config.to_toml(),
                "facts": json.dumps(dict(facts), allow_nan=False)}  # fmt: skip
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    write_whole(path, lambda temporary: numpy_format.save_file(contiguous, temporary, metadata=metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any], str]:
    """Tensors, facts, and the configuration's TOML.

    Raises
    ------
    CheckpointError
        The file is missing, truncated, foreign, or of a newer format.
    """
    safetensors = require("safetensors", "reading a checkpoint")
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            name, _, number = metadata.get("format", "").rpartition(" ")
            if name != "foxhunt-rt":
                raise CheckpointError(f"{path} is no checkpoint of foxhunt-rt; give one of runs/*/checkpoints")
            if int(number) > FORMAT:
                raise CheckpointError(
                    f"{path} has format {number}, newer than this version reads ({FORMAT}); update foxhunt-rt"
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (a file is not iterable)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; give one of runs/*/checkpoints") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}); take an earlier checkpoint of the run") from error
    return tensors, json.loads(metadata["facts"]), metadata["config"]
