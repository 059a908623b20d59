"""The table of measured choices: which implementation and which algorithm of the library makes a product.

Two algorithms give different bits, and which is faster by a hair differs from run to run. So what was measured is kept, by
device, driver, version of the library and shape, in a file of the machine's user, and a copy goes with every run folder,
checkpoint and golden replay: with `ChoiceTable.load` of such a copy another process makes the same bits.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxhunt_rt._files import cache_folder, write_whole
from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.gemm.matmul import Algorithm

FORMAT = 1
OWN, LIBRARY = "own", "library"

logger = logging.getLogger("foxhunt_rt.gemm")


class ChoiceError(FoxhuntError):
    """A table that cannot be read, or that lacks a choice it is pinned to."""


@dataclass(frozen=True)
class Choice:
    """One row of the table.

    Attributes
    ----------
    use : str
        ``"own"`` or ``"library"``.
    us : dict of str to float
        Microseconds measured, by candidate; empty where there was nothing to choose from.
    algorithm : Algorithm or None
        Of a library's product.
    why : str
        Where it was not the time that decided.
    """

    use: str
    us: Mapping[str, float]
    algorithm: Algorithm | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready. The opaque words of an algorithm are hexadecimal: JSON's numbers have 53 bits."""
        row: dict[str, Any] = {"use": self.use, "us": {name: round(us, 2) for name, us in self.us.items()}}
        if self.why:
            row["why"] = self.why
        if self.algorithm is not None:
            row["algorithm"] = {"data": [f"{word:016x}" for word in self.algorithm.data],
                                "workspace": self.algorithm.workspace, "config": self.algorithm.config}  # fmt: skip
        return row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Choice:
        """The inverse of `to_dict`."""
        found = row.get("algorithm")
        algorithm = found and Algorithm(tuple(int(word, 16) for word in found["data"]), int(found["workspace"]),
                                        dict(found["config"]))  # fmt: skip
        return cls(str(row["use"]), dict(row["us"]), algorithm, str(row.get("why", "")))


def machine_table() -> Path:
    """Where this user's table stands: ``products.json`` in the package's cache folder."""
    return cache_folder() / "products.json"


class ChoiceTable:
    """Choices by machine (device, driver, library) and key.

    Parameters
    ----------
    path : Path, optional
        A file that is read now and that `put` keeps up to date. None: in memory alone.
    pinned : bool
        Nothing may be measured anew: a missing choice is an error.

    Attributes
    ----------
    used : dict
        The part that this process has asked for or put in, as `to_dict` writes it.
    """

    def __init__(self, path: Path | None = None, *, pinned: bool = False) -> None:
        self.path, self.pinned = path, pinned
        self._rows: dict[str, dict[str, Choice]] = {}
        self.used: dict[str, dict[str, Choice]] = {}
        if path is not None and path.exists():
            self._take(_read(path), path)

    @classmethod
    def of_machine(cls) -> ChoiceTable:
        """The table of this machine's user."""
        return cls(machine_table())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ChoiceTable:
        """A table pinned to what a run has left: ``choices.json`` of a run folder, the folder itself, a checkpoint
        (``.safetensors``) or a golden replay (``.npz``).

        Raises
        ------
        ChoiceError
            There is no table in it.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "choices.json"
        table = cls(pinned=True)
        if not path.exists():
            raise ChoiceError(f"{path} does not exist: give a run folder, a checkpoint or a golden replay")
        table._take(_read(path), path)
        table.path = None  # what is pinned is not written
        return table

    def _take(self, raw: Any, path: Path) -> None:
        try:
            if int(raw["format"]) > FORMAT:
                raise ChoiceError(f"{path}: a table of format {raw['format']}, newer than {FORMAT}: update foxhunt-rt")
            for machine, rows in raw["machines"].items():
                self._rows.setdefault(machine, {}).update({key: Choice.from_dict(row) for key, row in rows.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise ChoiceError(f"{path} is no table of choices ({error!r}): delete it, or give another") from error

    def get(self, machine: str, key: str) -> Choice | None:
        """What was chosen, or None where it must be measured.

        Raises
        ------
        ChoiceError
            The table is pinned and has no such choice.
        """
        choice = self._rows.get(machine, {}).get(key)
        if choice is not None:
            self.used.setdefault(machine, {})[key] = choice
        elif self.pinned:
            others = ", ".join(self._rows) or "nothing"
            raise ChoiceError(f"the pinned table has no choice for {key!r} on {machine!r}, it knows {others}: clear "
                              "network.choices to measure anew")  # fmt: skip
        return choice

    def put(self, machine: str, key: str, choice: Choice) -> None:
        """Adds a choice, and writes the file when there is one."""
        self._rows.setdefault(machine, {})[key] = choice
        self.used.setdefault(machine, {})[key] = choice
        self._save()

    def _save(self) -> None:
        if self.path is None:
            return
        text = json.dumps(_plain(self._rows), indent=1) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        except OSError as error:  # the choices hold in this process and go with the run all the same
            logger.warning("the table of measured products cannot be written: %s", error)
            self.path = None

    def clear(self, machine: str | None = None) -> None:
        """Forgets every choice, or those of one machine, in the file too."""
        if self.pinned:
            raise ChoiceError("a pinned table is not cleared: load the machine's with ChoiceTable.of_machine()")
        for name in [machine] if machine else list(self._rows):
            self._rows.pop(name, None)
        self._save()

    def to_dict(self) -> dict[str, Any]:
        """What this process has used, JSON-ready: goes with run folder, checkpoint and golden replay."""
        return _plain(self.used)


def _plain(rows: Mapping[str, Mapping[str, Choice]]) -> dict[str, Any]:
    return {"format": FORMAT, "machines": {machine: {key: choice.to_dict() for key, choice in found.items()}
                                           for machine, found in rows.items()}}  # fmt: skip


def _read(path: Path) -> Any:
    """The table in a JSON file, a checkpoint or a golden replay."""
    try:
        if path.suffix == ".safetensors":
            from foxhunt_rt._optional import require

            with require("safetensors", "reading a checkpoint").safe_open(str(path), framework="numpy") as file:
                return json.loads((file.metadata() or {})["facts"])["choices"]
        if path.suffix == ".npz":
            from foxhunt_rt.graph import Golden

            return Golden.load(path).meta["notes"]["choices"]
        return json.loads(path.read_text(encoding="utf-8"))
    except (KeyError, ValueError) as error:
        raise ChoiceError(
            f"{path} holds no table of choices ({error!r}): give one that a run of this version left"
        ) from error


__all__ = ["LIBRARY", "OWN", "Choice", "ChoiceError", "ChoiceTable", "machine_table"]
