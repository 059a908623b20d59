"""The isolation ledger: who launches what.

Rule 1: a CUfunction belongs to at most one child. Rule 2: a CUmodule with a captured function launches nothing ungraphed.
The module pool makes both hold by construction: every user (a child, or a named ungraphed user) has module instances of its
own. The ledger is the record of that, and the check that nothing went round it.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from foxhunt_rt.driver import FoxhuntError, Function, Module


class Isolation(enum.Enum):
    """STRICT raises on a breach, AUDIT records it, OFF does not look."""

    STRICT = "strict"
    AUDIT = "audit"
    OFF = "off"


class IsolationError(FoxhuntError):
    """A function or module is used by two users that must not share it."""


@dataclass
class ModuleEntry:
    """One module instance and its users."""

    module: Module
    instance: int
    #: kernel -> the child that captured it
    captured: dict[str, str] = field(default_factory=dict)
    #: kernel -> the ungraphed user that launches it
    ungraphed: dict[str, str] = field(default_factory=dict)


def standing(
    functions: Mapping[str, Function], others: Iterable[Mapping[str, Function]], ledger: Ledger, user: str
) -> str:
    """How a child stands: ``"isolated"``, ``"foreign"`` (another library's graph), or ``"shared"``: another child holds one of
    its functions, or something ungraphed launches from one of its modules. Looks itself, whatever mode the ledger is in."""
    if not functions:
        return "isolated" if user not in ledger.foreign else "foreign"
    keys = {f.key for f in functions.values()}
    if any(keys & {f.key for f in other.values()} for other in others):
        return "shared"
    modules = {id(f.module) for f in functions.values()}
    return "shared" if any(id(e.module) in modules and (e.ungraphed or set(e.captured.values()) - {user})
                           for e in ledger.entries()) else "isolated"  # fmt: skip


class Ledger:
    """The record of module instances, functions and users of one Runtime."""

    def __init__(self, mode: Isolation = Isolation.STRICT) -> None:
        self.mode = mode
        self.breaches: list[str] = []
        self.foreign: dict[str, int] = {}
        self._entries: dict[int, ModuleEntry] = {}
        self._instances = itertools.count()

    def _entry(self, module: Module) -> ModuleEntry:
        key = id(module)
        if key not in self._entries:
            self._entries[key] = ModuleEntry(module, next(self._instances))
        return self._entries[key]

    def captured(self, function: Function, child: str) -> None:
        """Records that ``child`` captures ``function``.

        Raises
        ------
        IsolationError
            In STRICT mode, when another child captured it, or its module launches something ungraphed.
        """
        if self.mode is Isolation.OFF:
            return
        entry = self._entry(function.module)
        other = entry.captured.setdefault(function.name, child)
        if other != child:
            self._breach(f"{function.name} (module {entry.instance}) is captured by {other} and by {child}: "
                         "launch it through each child, which loads an instance of its own")  # fmt: skip
        for kernel, user in entry.ungraphed.items():
            self._breach(f"{function.name} is captured by {child}, and {kernel} of the same module {entry.instance} is "
                         f"launched ungraphed by {user}: use rt.ungraphed({user!r}), which has modules of its own")  # fmt: skip

    def ungraphed(self, function: Function, user: str) -> None:
        """Records that ``user`` launches ``function`` outside any capture.

        Raises
        ------
        IsolationError
            In STRICT mode, when the module has a captured function.
        """
        if self.mode is Isolation.OFF:
            return
        entry = self._entry(function.module)
        for kernel, child in entry.captured.items():
            self._breach(f"{function.name} is launched ungraphed by {user}, and {kernel} of the same module "
                         f"{entry.instance} is captured by {child}: use rt.ungraphed({user!r})")  # fmt: skip
        entry.ungraphed.setdefault(function.name, user)

    def note_foreign(self, child: str, kernels: int) -> None:
        """Counts kernels of a library or of a foreign graph: shared handles that nobody can hand out; exempt."""
        self.foreign[child] = kernels

    def forget(self, user: str, modules: Iterable[Module]) -> None:
        """Drops what a closed graph's user had: modules that were unloaded, kernels of others."""
        for module in modules:
            self._entries.pop(id(module), None)
        self.foreign.pop(user, None)

    def _breach(self, text: str) -> None:
        if self.mode is Isolation.STRICT:
            raise IsolationError(text)
        if text not in self.breaches:
            self.breaches.append(text)

    def entries(self) -> list[ModuleEntry]:
        """Module instances in the order of their first use."""
        return list(self._entries.values())

    def rows(self) -> list[dict[str, object]]:
        """One row a module instance: instance, image, bytes, captured {kernel: child}, ungraphed {kernel: user}."""
        return [{"module": e.instance, "image": e.module.name, "image_bytes": e.module.size,
                 "captured": dict(sorted(e.captured.items())), "ungraphed": dict(sorted(e.ungraphed.items()))}
                for e in self._entries.values()]  # fmt: skip

    def table(self) -> str:
        """The same as text, one line a function."""
        lines = [f"{'module':>6}  {'image':<28} {'function':<28} {'user':<28} how"]
        for e in self._entries.values():
            for how, users in (("captured", e.captured), ("ungraphed", e.ungraphed)):
                lines += [
                    f"{e.instance:>6}  {e.module.name:<28} {k:<28} {u:<28} {how}" for k, u in sorted(users.items())
                ]
        lines += [f"{'-':>6}  {'foreign':<28} {count} kernels{'':<18} {child:<28} foreign"
                  for child, count in self.foreign.items()]  # fmt: skip
        return "\n".join(lines)
