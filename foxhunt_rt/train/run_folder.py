"""The run folder: everything a run leaves behind, in files that are whole or absent.

    runs/20260102-030405-smoke/
        config.toml          the complete configuration
        environment.json     package, driver, device, architecture, commit, bars
        choices.json         who makes each matrix product, as measured: network.choices keeps another run to it
        metrics.parquet      one row a training step, every record that the device wrote
        epochs.json          one object an epoch
        result.json          what `train --json` prints
        checkpoints/*.safetensors
                             fold1, fold1-best, ...; resume and resume-previous until the run is complete (resume.py)

Each file is written under a temporary name, flushed, and renamed: a reader, and a crash, see the old file or the new one.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from foxhunt_rt import __version__
from foxhunt_rt._files import write_whole
from foxhunt_rt.config import Config

__all__ = ["RunFolder", "describe_environment"]


class RunFolder:
    """A folder of one run; made by `create`, when there is something to keep.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str, config: Config, environment: dict[str, Any]) -> RunFolder:
        """Makes ``root/<time>-<name>`` with the configuration and the environment in it.

        Raises
        ------
        OSError
            The folder cannot be made or written.
        """
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        for attempt in range(100):
            path = root / (f"{stamp}-{name}" + (f"-{attempt + 1}" if attempt else ""))
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:  # another run of the same second
                if attempt == 99:
                    raise
        folder = cls(path)
        write_whole(path / "config.toml", config.save)
        folder.write_json("environment.json", environment)
        (path / "checkpoints").mkdir()
        return folder

    def write_json(self, name: str, value: Any) -> None:
        """Writes one JSON file."""
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
        write_whole(self.path / name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def checkpoint(self, name: str) -> Path:
        """Where the checkpoint of that name stands."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def forget_resume(self) -> None:
        """Removes what a run that is complete will not go on from: it holds the replay."""
        for name in ("resume", "resume-previous"):
            self.checkpoint(name).unlink(missing_ok=True)


def describe_environment(runtime: Any, bars: dict[str, Any]) -> dict[str, Any]:
    """What a run depended on beside its configuration: JSON-ready."""
    return {
        "foxhunt_rt": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "driver": runtime.driver_kind,
        "driver_version": runtime.device.driver_version,
        "device": runtime.device.name,
        "architecture": runtime.device.architecture,
        "bars": bars,
    }


def _commit() -> str | None:
    """The commit of a checkout, with `+` when the package differs from it; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        dirty = subprocess.run([*git, "status", "--porcelain", "--", "foxhunt_rt", "cuda_src"], capture_output=True,
                               text=True, check=True, timeout=10)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
