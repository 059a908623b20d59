"""Children that run only on some steps, and K steps of one launch: IF and WHILE nodes, and the kernels that decide them.

A decision is a `Flag`, a word in device memory. In the composed parent a kernel reads it and sets the handle of a
conditional node; an ungraphed run reads the same word on the host. The kernels that set handles exist in the parent only:
ungraphed they would be illegal addresses (docs/conditionals.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foxhunt_rt import kernels
from foxhunt_rt.driver import Buffer, DeviceBuffer, FoxhuntError, Function, Graph, MappedBuffer
from foxhunt_rt.kernels import abi

if TYPE_CHECKING:
    from foxhunt_rt.graph.child import Child
    from foxhunt_rt.graph.plan import StepPlan
    from foxhunt_rt.graph.runtime import Runtime

ONE = (1,)
BLOCK = (32,)


@dataclass(frozen=True)
class Flag:
    """A decision that a kernel leaves in device memory.

    Parameters
    ----------
    buffer : Buffer
        One integer, or one struct with `field`.
    field : str, optional
        A 4-byte or 8-byte unsigned field of the struct.
    mask : int, optional
        Bits that count. Default: all.
    clear : int
        The word's value when nothing is raised: 0 for flags, all ones for a guard key.

    Notes
    -----
    Raised when ``(word ^ clear) & mask`` is not 0.
    """

    buffer: Buffer
    field: str | None = None
    mask: int | None = None
    clear: int = 0

    def __post_init__(self) -> None:
        word = self.word
        top = 2 ** (8 * word.nbytes) - 1
        if word.dtype.kind not in "ui" or word.dtype.itemsize not in (4, 8) or word.size != 1:
            raise FoxhuntError(f"a flag is one 32-bit or 64-bit integer, not {word.dtype}{list(word.shape)} ({word.label}): "
                               "name a field, or slice the buffer to one element")  # fmt: skip
        if not 0 <= self.clear <= top or not 0 < self.bits <= top:
            raise FoxhuntError(
                f"{word.label}: mask and clear value of a flag lie in 0 to {top:#x}, and the mask is not 0"
            )

    @property
    def word(self) -> Buffer:
        """The word itself as a view."""
        buffer = self.buffer
        if self.field is None:
            return buffer
        if buffer.dtype.names is None or self.field not in buffer.dtype.names:
            raise FoxhuntError(f"{buffer.label} has no field {self.field}: its fields are "
                               f"{', '.join(buffer.dtype.names or ('none',))}")  # fmt: skip
        if buffer.size != 1:
            raise FoxhuntError(f"{buffer.label} holds {buffer.size} structs: slice it to the one that holds the flag")
        dtype, offset = buffer.dtype.fields[self.field][:2]  # type: ignore[index]
        return type(buffer)(buffer.allocation, buffer.offset + offset, (1,), dtype, f"{buffer.label}.{self.field}")

    @property
    def bits(self) -> int:
        """The mask, all bits when none was given."""
        return 2 ** (8 * self.word.nbytes) - 1 if self.mask is None else self.mask

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Address, bytes, mask, clear value: equal for flags that are always raised together."""
        word = self.word
        return word.ptr, word.nbytes, self.bits, self.clear

    @property
    def halves(self) -> Buffer:
        """The word as 32-bit halves, low half first: what the kernels take."""
        halves: Buffer = self.word.view((self.word.nbytes // 4,), np.uint32)
        return halves

    def raised(self) -> bool:
        """The decision, taken on the host. In a capture: refused. Synchronizes: yes. Allocates: no."""
        word = self.word
        assert isinstance(word, (DeviceBuffer, MappedBuffer))
        value = int(word.to_numpy().reshape(-1).view(np.dtype(f"u{word.dtype.itemsize}"))[0])
        return bool((value ^ self.clear) & self.bits)

    def __str__(self) -> str:
        name = self.word.label
        return name if self.mask is None else f"{name} & {self.mask:#x}"


@dataclass
class Composition:
    """A composed parent.

    Attributes
    ----------
    parent : Graph
    nodes : list
        The child-graph node of each child, in program order; in a conditional body where the child is gated.
    setters, branches : int
        Nodes that set handles; IF nodes.
    """

    parent: Graph
    nodes: list[Any]
    setters: int = 0
    branches: int = 0


class LoopState:
    """What a parent of K steps a launch owns: the counter in device memory, and the word that ends a launch early."""

    def __init__(self, runtime: Runtime, name: str, steps: int, stop: Flag | None) -> None:
        self.runtime, self.steps, self.stop = runtime, steps, stop
        self.block = runtime.zeros(1, abi.dtype("loop_block"), f"{name}.loop")
        self.latched = 0
        self.latch(steps)

    def latch(self, steps: int) -> None:
        """Sets the steps of each launch from now on, in stream order: one ungraphed launch, and only when it changes."""
        if steps == self.latched:
            return
        self.runtime.ungraphed("steps_per_launch").launch("set_loop_steps", ONE, BLOCK,
                                                          dict(loop=self.block, steps=steps))  # fmt: skip
        self.latched = steps

    def args(self, handle: Any) -> dict[str, Any]:
        """Arguments of `begin_loop` and `next_step`."""
        stop = self.stop
        return dict(loop=self.block, stop=stop.halves if stop else None, clear=stop.clear if stop else 0,
                    mask=stop.bits if stop else 0, handle=int(handle), words=len(stop.halves) if stop else 1)  # fmt: skip


def writes(child: Child, word: Buffer) -> bool:
    """Whether a launch of the child writes the word (declared private or not)."""
    return any(start < word.ptr + word.nbytes and word.ptr < start + size for start, size in child.written_ranges())


def groups(children: Sequence[Child]) -> list[list[int]]:
    """Positions that share one IF node: consecutive children with the same flag, none of which writes it but the last.

    A node that is not taken costs 3 to 5 us of chain (measured, H200), so neighbours share one.
    """
    found: list[list[int]] = []
    for j, child in enumerate(children):
        last = children[found[-1][-1]] if found else None
        same = last is not None and child.when is not None and child.when == last.when
        if same and child.when is not None and not any(writes(children[i], child.when.word) for i in found[-1]):
            found[-1].append(j)
        else:
            found.append([j])
    return found


class ConditionalComposer:
    """Composes a parent with IF nodes around gated children, and with a WHILE node around all of it.

    Parameters
    ----------
    plan : StepPlan
    edges : list of (int, int)
        From `StepPlan.dependencies`.
    functions : mapping of str to Function
        The kernels that set handles, loaded for this plan alone.
    loop : LoopState or None
    """

    def __init__(self, plan: StepPlan, edges: list[tuple[int, int]], functions: dict[str, Function],
                 loop: LoopState | None) -> None:  # fmt: skip
        self.plan, self.edges, self.functions, self.loop = plan, edges, functions, loop
        self.children = plan.sequence()

    def compose(self, graphs: Sequence[Graph]) -> Composition:
        """The parent. Allocates nothing on the device."""
        parent = Graph(self.plan.runtime.context)
        made = Composition(parent, [None] * len(graphs))
        if self.loop is None:
            self._step(parent, graphs, made)
            return made
        handle = parent.conditional_handle()
        begin = self._setter(parent, "begin_loop", self.loop.args(handle), [])
        _, body = parent.add_conditional("WHILE", handle, [begin])
        outer = self._step(body, graphs, made)
        self._setter(body, "next_step", self.loop.args(handle), unique([outer[i] for i in self._ends()]))
        made.setters += 2
        return made

    def _ends(self) -> list[int]:
        """What the decision about one more step waits for: every end of the step. Of an epilogue that does not write the stop
        word only what it waits for itself, so that the decision is taken beside it."""
        count = len(self.children)
        tail = count - 1 if self.plan.tail is not None and count > 1 else None
        stop = self.loop.stop if self.loop else None
        if tail is not None and (stop is None or not writes(self.children[tail], stop.word)):
            return [i for i, j in self.edges if j == tail]
        return [i for i in range(count) if not any(a == i for a, _ in self.edges)]

    def _setter(self, graph: Graph, kernel: str, args: dict[str, Any], after: Sequence[Any]) -> Any:
        packed = kernels.pack(kernel, args)
        return graph.add_kernel(self.functions[kernel], ONE, BLOCK, packed.params, after)

    def _step(self, target: Graph, graphs: Sequence[Graph], made: Composition) -> list[Any]:
        """Fills a graph with one step; the node that stands for each child in it."""
        outer: list[Any] = [None] * len(graphs)
        sharing = groups(self.children)
        decisions = self._decisions(target, sharing)
        set_by: dict[tuple[Any, ...], Any] = {}
        for group in sharing:
            before = self._enter(
                target, group, unique([outer[i] for i, j in self.edges if j in group and i not in group])
            )
            key = decisions.of.get(group[0])
            if key is None:
                (j,) = group
                made.nodes[j] = target.add_child(graphs[j], before)
                outer[j] = self._leave(target, group, made.nodes[j])
                continue
            if key not in set_by:
                flag, writers = decisions.flag[key], decisions.writers[key]
                set_by[key] = self._setter(target, "set_conditions", _conditions(flag, decisions.handles[key]),
                                           unique([outer[i] for i in writers]))  # fmt: skip
                made.setters += 1
            node, body = target.add_conditional("IF", decisions.handle[group[0]], unique([*before, set_by[key]]))
            made.branches += 1
            for j in group:
                made.nodes[j] = body.add_child(
                    graphs[j], [made.nodes[i] for i, k in self.edges if k == j and i in group]
                )
            left = self._leave(target, group, node)
            for j in group:
                outer[j] = left
        return outer

    def _enter(self, target: Graph, group: list[int], before: list[Any]) -> list[Any]:
        """What a group of children follows. The profile's twin puts an event node here, and another in `_leave`."""
        return before

    def _leave(self, target: Graph, group: list[int], node: Any) -> Any:
        """What stands for a group of children to those that follow it."""
        return node

    def _decisions(self, target: Graph, sharing: list[list[int]]) -> _Decisions:
        """One node sets the handles of every group that goes by the same word with the same writers before it."""
        found = _Decisions({}, {}, {}, {}, {})
        for group in sharing:
            flag = self.children[group[0]].when
            if flag is None:
                continue
            word = flag.word
            writers = tuple(i for i in range(group[0]) if writes(self.children[i], word))
            number = 0
            while len(found.handles.get((word.ptr, word.nbytes, flag.clear, writers, number), ())) >= abi.constant(
                "CONDITIONS"
            ):
                number += 1
            key = (word.ptr, word.nbytes, flag.clear, writers, number)
            handle = target.conditional_handle()
            found.of[group[0]], found.flag[key], found.writers[key] = key, flag, writers
            found.handles.setdefault(key, []).append((int(handle), flag.bits))
            found.handle[group[0]] = handle
        return found


@dataclass
class _Decisions:
    of: dict[int, tuple[Any, ...]]  # first child of a group -> key of the node that decides it
    flag: dict[tuple[Any, ...], Flag]
    writers: dict[tuple[Any, ...], tuple[int, ...]]
    handles: dict[tuple[Any, ...], list[tuple[int, int]]]
    handle: dict[int, Any]


def _conditions(flag: Flag, handles: list[tuple[int, int]]) -> dict[str, Any]:
    room = abi.constant("CONDITIONS") - len(handles)
    return dict(word=flag.halves, clear=flag.clear, handle=[h for h, _ in handles] + [0] * room,
                mask=[m for _, m in handles] + [0] * room, words=len(flag.halves), count=len(handles))  # fmt: skip


def unique(nodes: Sequence[Any]) -> list[Any]:
    """Nodes without repetitions, in order."""
    return list({int(node): node for node in nodes}.values())


__all__ = ["Composition", "ConditionalComposer", "Flag", "LoopState", "groups", "unique", "writes"]
