"""`StepGraph.update`: a built graph takes over another plan of the same shape.

Three ways. Without conditional nodes the new parent goes to cuGraphExecUpdate. A conditional node belongs to the handle that its
own graph made, so with them the parameters are set in the step's own parent, which keeps its handles, and that goes to
cuGraphExecUpdate. Where the host decides, its executables are made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foxhunt_rt.driver import Function, Graph
from foxhunt_rt.graph.child import Child, KernelOp, MemsetOp
from foxhunt_rt.graph.conditional import groups, writes
from foxhunt_rt.graph.plan import Composer
from foxhunt_rt.graph.updates import UpdateRefused, first_departure, node_names

if TYPE_CHECKING:
    from foxhunt_rt.graph.plan import StepPlan
    from foxhunt_rt.graph.step import StepGraph

Functions = list[dict[str, Function]]


def update(step: StepGraph, plan: StepPlan) -> None:
    """See `StepGraph.update`."""
    step.runtime.check_own("update()", *(b for c in plan.sequence() for b in c.buffers))
    new, own_name, children = plan.sequence(), plan.name, step.children
    child, node, field, text = first_departure(children, new)
    if [c.name for c in new] != [c.name for c in children] or field == "when":
        raise UpdateRefused("CHILDREN_CHANGED", text, child, node, field)
    for c in new:
        c.check_alive()
    plan.name = step.plan.name
    composer = Composer(plan, step._composer.total_order)
    made = None
    try:
        with step.runtime.context.current():
            functions = [composer.load(c, plan.user(c)) for c in new]
            ungraphed = step._ungraphed and [composer.load(c, f"{plan.user(c)}/ungraphed") for c in new]
            graphs = [composer.capture(c, f) for c, f in zip(new, functions, strict=True)]
            if step.decided_by == "nobody" or (step.decided_by == "host" and step.host is None):
                made = composer.compose(graphs, step.conditions)
                result, handle = step.executable.update(made.parent)
                if result != "SUCCESS":
                    named = {int(n.parent): n for c, g, k in zip(new, graphs, made.nodes, strict=True)
                             for n in node_names(c, g, made.parent.embedded(k))}.get(handle)  # fmt: skip
                    raise UpdateRefused(result, text, child or (named.child if named else None),
                                        node or (str(named) if named else None), field)  # fmt: skip
            else:
                same_edges = plan.dependencies(composer.total_order) == step.edges
                if child is not None or not same_edges or decisions(new) != decisions(children):
                    raise UpdateRefused("ERROR_TOPOLOGY_CHANGED", text, child, node, field)
                if step.host is None:
                    _in_place(step, new, functions)
    except BaseException:
        plan.name = own_name
        raise
    step._take_over(plan, composer, graphs, made, functions, ungraphed)


def decisions(children: Sequence[Child]) -> list[Any]:
    """What decides on which children, and behind which: equal lists mean the same conditional nodes."""
    found: list[Any] = []
    for group in groups(children):
        flag = children[group[0]].when
        writers = [i for i in range(group[0]) if flag and writes(children[i], flag.word)]
        found.append((group, flag.key if flag else None, writers))
    return found


def _in_place(step: StepGraph, new: Sequence[Child], functions: Functions) -> None:
    """Sets every parameter in the step's own parent, which its executable takes over; puts the old ones back when refused."""
    parent = step.composition.parent
    try:
        _set_all(step, new, functions)
        result, _ = step.executable.update(parent)
    except BaseException:
        _set_all(step, step.children, step._functions)
        raise
    if result != "SUCCESS":
        _set_all(step, step.children, step._functions)
        raise UpdateRefused(result, "the driver does not take these parameters over behind conditional nodes")


def _set_all(step: StepGraph, children: Sequence[Child], functions: Functions) -> None:
    parent = step.composition.parent
    for child, own, position in zip(children, functions, step.composition.nodes, strict=True):
        copy = parent.embedded(position)
        if not child.ops:
            raise UpdateRefused("FOREIGN_CHILD", f"child {child.name} is a foreign graph, whose nodes have no names, and the "
                                "step holds conditional nodes", child.name)  # fmt: skip
        for op, node in zip(child.ops, copy.in_order(), strict=True):
            _set(copy, node.handle, op, own)


def _set(graph: Graph, node: Any, op: Any, functions: dict[str, Function]) -> None:
    if isinstance(op, KernelOp):
        graph.set_kernel(node, functions[op.kernel], op.grid, op.block, op.args.params, op.shared)
    elif isinstance(op, MemsetOp):
        graph.set_memset(node, op.buffer, op.value)
    else:
        graph.set_copy(node, op.target, op.source)


__all__ = ["decisions", "update"]
