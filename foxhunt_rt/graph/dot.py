"""A picture of a step graph in Graphviz's language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foxhunt_rt.graph.child import Child, KernelOp

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph


def _rows(child: Child) -> list[str]:
    out: list[str] = []
    for op in child.ops:
        text = f"{op.kernel} {'x'.join(map(str, op.grid))}·{'x'.join(map(str, op.block))}" if isinstance(op, KernelOp) else (
            type(op).__name__.removesuffix("Op").lower())  # fmt: skip
        out.append(text)
    return out or ["a foreign graph"]


def render(step: StepGraph) -> str:
    """Clusters are children; a chain of launches inside each, as captured; edges between children are dependencies."""
    lines = [f'digraph "{step.plan.name}" {{', "  rankdir=LR; compound=true; fontname=Helvetica;",
             '  node [shape=box style="rounded,filled" fillcolor=white fontname=Helvetica fontsize=10];']  # fmt: skip
    for i, child in enumerate(step.children):
        color = "#eef3fb" if child is not step.plan.tail else "#f3f3f3"
        label = f"{child.name} when {child.when}" if child.when else child.name
        lines.append(f'  subgraph cluster_{i} {{ label="{label}"; style=filled; color="{color}";')
        rows = _rows(child)
        lines += [f'    n{i}_{j} [label="{text}"];' for j, text in enumerate(rows)]
        lines += [f"    n{i}_{j} -> n{i}_{j + 1};" for j in range(len(rows) - 1)]
        lines.append("  }")
    for a, b in step.edges:
        last = len(_rows(step.children[a])) - 1
        lines.append(f"  n{a}_{last} -> n{b}_0 [ltail=cluster_{a} lhead=cluster_{b} penwidth=1.4];")
    return "\n".join([*lines, "}"])
