"""Changing a built graph without capturing it again: named parameter slots, and whole-graph updates.

A number in a launch is baked by value: replays keep it for ever (known failure K8). A field that may change is declared as a
`Slot` where the launch is recorded; `StepGraph.set` then changes it in every executable that holds the launch, by the
driver's node update. Values that change every step belong in a device block instead: an update costs a driver call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foxhunt_rt._names import choose
from foxhunt_rt.driver import FoxhuntError, Function, Graph, GraphExec

if TYPE_CHECKING:
    from foxhunt_rt.graph.child import Child, KernelOp


class BakedValueError(FoxhuntError):
    """A value that was baked into a launch by value is to be changed (known failure K8)."""


class UpdateRefused(FoxhuntError):
    """The driver, or we before it, refused an update of a built graph; nothing was changed.

    Attributes
    ----------
    reason : str
        The driver's result, such as ``"ERROR_TOPOLOGY_CHANGED"``.
    child, node, field : str or None
        What differs, where it can be said.
    """

    def __init__(self, reason: str, text: str, child: str | None = None, node: str | None = None,
                 field: str | None = None) -> None:  # fmt: skip
        super().__init__(reason, text, child, node, field)
        self.reason, self.text, self.child, self.node, self.field = reason, text, child, node, field

    def __str__(self) -> str:
        return f"update refused ({self.reason}): {self.text}: build the plan again"


@dataclass(frozen=True)
class Const:
    """A launch field that never changes; a plain number is one. ``source`` says where the value comes from."""

    value: Any
    source: str | None = None


@dataclass(frozen=True)
class Slot:
    """A launch field that `StepGraph.set` may change. ``source`` says where its first value comes from."""

    value: Any
    source: str | None = None


def plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """Launch fields without the marks."""
    return {name: value.value if isinstance(value, (Const, Slot)) else value for name, value in args.items()}


@dataclass(frozen=True)
class NodeName:
    """A launch by name, and its node in each graph that holds it.

    Attributes
    ----------
    child, kernel : str
        `kernel` is ``"memset"`` or ``"copy"`` for those, and a product's for a library's.
    occurrence : int
        Counts launches of one kernel in one child from 0.
    index : int
        Position among the launches of the child.
    position : int
        Position among the nodes of the child: a call of a library may be several.
    original, parent : node handles
        In the child's captured graph, and in the copy that the composed parent holds: the one that names it in the executable.
    """

    child: str
    kernel: str
    occurrence: int
    index: int
    position: int
    original: Any
    parent: Any

    def __str__(self) -> str:
        return f"{self.child}/{self.kernel}#{self.occurrence}"


def node_names(child: Child, original: Graph, copy: Graph) -> list[NodeName]:
    """The launches of a child by name. Both graphs are chains in the order of issue, whatever order the driver lists them in."""
    if not child.ops:  # a foreign graph, whose launches have no names
        return []
    from foxhunt_rt.graph.plan import node_owners

    seen: dict[str, int] = {}
    found = []
    index = {id(op): i for i, op in enumerate(child.ops)}
    nodes = zip(node_owners(child), original.in_order(), copy.in_order(), strict=True)
    for position, ((op, _), a, b) in enumerate(nodes):
        found.append(NodeName(child.name, op.name, seen.get(op.name, 0), index[id(op)], position, a.handle, b.handle))
        seen[op.name] = seen.get(op.name, 0) + 1
    return found


def check_slots(child: str, op: KernelOp, values: Mapping[str, Any]) -> None:
    """Raises unless every field exists and was declared as a slot."""
    for name in values:
        if name not in op.fields:
            raise FoxhuntError(f"{child}.{op.kernel} has no field {name}; {choose(name, op.fields, 'its fields')}")
        given = op.fields[name]
        if not isinstance(given, Slot):
            source = f" (from {given.source})" if isinstance(given, Const) and given.source else ""
            raise BakedValueError(f"{child}.{op.kernel}: {name} was baked by value at capture{source}, and replays would not "
                                  "see a change: record it as Slot(value), or keep it in a device block that the kernel "
                                  "reads")  # fmt: skip


@dataclass(frozen=True)
class Target:
    """An executable, the graph it was made from, and the node of a launch in both."""

    executable: GraphExec
    graph: Graph
    node: Any


def apply(op: KernelOp, function: Function, targets: list[Target]) -> None:
    """Sets a kernel launch in each executable, and in the graph behind it for those made later.

    Where the driver does not let one node of an executable be changed (it lies in a conditional body), the whole executable
    takes its graph's parameters over.
    """
    from foxhunt_rt.driver import DriverError

    for target in targets:
        target.graph.set_kernel(target.node, function, op.grid, op.block, op.args.params, op.shared)
        try:
            target.executable.set_kernel(target.node, function, op.grid, op.block, op.args.params, op.shared)
        except DriverError as error:
            if error.sticky:
                raise
            result, _ = target.executable.update(target.graph)
            if result != "SUCCESS":
                raise UpdateRefused(result, f"{op.kernel} lies where executables cannot be changed") from error


def first_departure(old: list[Child], new: list[Child]) -> tuple[str | None, str | None, str | None, str]:
    """(child, node, field, in words): where the shape of two plans first differs."""
    if [c.name for c in old] != [c.name for c in new]:
        odd = next(
            (b.name for a, b in zip(old, new) if a.name != b.name), (new if len(new) > len(old) else old)[-1].name
        )
        return (
            odd,
            None,
            None,
            f"the children are {', '.join(c.name for c in new)}, were {', '.join(c.name for c in old)}",
        )
    for a, b in zip(old, new, strict=True):
        names, others = [op.name for op in a.ops], [op.name for op in b.ops]
        if names != others:
            index = next((i for i, (x, y) in enumerate(zip(names, others)) if x != y), min(len(names), len(others)))
            now, was = (list_[index] if index < len(list_) else "nothing" for list_ in (others, names))
            return a.name, f"{a.name}[{index}]", "kernel", f"launch {index} of child {a.name} is {now}, was {was}"
        if (a.when and a.when.key) != (b.when and b.when.key):
            return a.name, None, "when", f"child {a.name} runs when {b.when}, was {a.when}"
    return None, None, None, "the edges between children differ"


__all__ = [
    "BakedValueError", "Const", "NodeName", "Slot", "Target", "UpdateRefused", "apply", "check_slots", "first_departure",
    "node_names", "plain",
]  # fmt: skip
