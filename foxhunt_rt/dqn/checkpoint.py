"""Checkpoint files: one safetensors file, whole or absent, that is taken as it is or refused with the reason.

Metadata, all text: `format` (foxhunt-rt and a number), `version` of the package, `config` (the complete configuration as TOML),
`facts` (JSON: what else the writer needs), `digest` (CRC-32 of all of it and of the tensors). What a learner puts in is in
learner_state.py; walk-forward training adds the normalizer (`normalizer.*`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt._files import write_whole
from foxhunt_rt._optional import require
from foxhunt_rt._version import package_version
from foxhunt_rt.config import Config
from foxhunt_rt.driver import FoxhuntError

__all__ = ["FORMAT", "CheckpointError", "load_checkpoint", "save_checkpoint"]

FORMAT = 1


class CheckpointError(FoxhuntError):
    """A file that is no usable checkpoint, or not for what it was given to; says why."""


def save_checkpoint(path: Path, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], config: Config) -> None:
    """Writes a checkpoint under a temporary name and renames it.

    Parameters
    ----------
    path : Path
    tensors : mapping of str to array
        Of plain numbers.
    facts : mapping
        JSON-ready.
    config : Config

    Raises
    ------
    CheckpointError
        The file cannot be written; what stood there before stands there still.
    """
    numpy_format = require("safetensors.numpy", "writing a checkpoint")
    metadata = {"format": f"foxhunt-rt {FORMAT}", "version": package_version(), "config": config.to_toml(),
                "facts": json.dumps(dict(facts), allow_nan=False)}  # fmt: skip
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    metadata["digest"] = _digest(contiguous, metadata)

    def write(temporary: Path) -> None:
        temporary.touch()  # a folder that is not there is told by the system, in its own words
        numpy_format.save_file(contiguous, temporary, metadata=metadata)

    try:
        write_whole(path, write)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror}); give another path") from error


def load_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any], str]:
    """Tensors, facts, and the configuration's TOML.

    Raises
    ------
    CheckpointError
        The file is missing, truncated, damaged, foreign, or of a newer format.
    """
    safetensors = require("safetensors", "reading a checkpoint")
    try:
        with open(path, "rb"):  # the system's own words for what is not there
            pass
        with safetensors.safe_open(str(path), framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            name, _, number = metadata.get("format", "").rpartition(" ")
            if name != "foxhunt-rt" or not number.isdecimal():
                raise CheckpointError(f"{path} is no checkpoint of foxhunt-rt; give a file that it wrote")
            if int(number) > FORMAT:
                raise CheckpointError(
                    f"{path} has format {number}, newer than this version reads ({FORMAT}); update foxhunt-rt"
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (a file is not iterable)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; give a file that was written as a checkpoint") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); give another path") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}); take an earlier checkpoint") from error
    if metadata.pop("digest", None) != _digest(tensors, metadata):
        raise CheckpointError(f"{path} is damaged (its digest differs); take an earlier checkpoint")
    return tensors, json.loads(metadata["facts"]), metadata["config"]


def _digest(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """CRC-32 of names, types, shapes, bytes and metadata: it finds damage, not intent."""
    crc = 0
    for name in sorted(tensors):
        array = tensors[name]
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape} ".encode(), crc)
        crc = zlib.crc32(array.data if array.size else b"", crc)
    return f"{zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode(), crc):08x}"
