"""A picture of a step graph in Graphviz's language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foxhunt_rt.graph import outline
from foxhunt_rt.graph.child import Child, KernelOp

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph


def _rows(child: Child) -> list[str]:
    out: list[str] = []
    for op in child.ops:
        shape = f" {'x'.join(map(str, op.grid))}·{'x'.join(map(str, op.block))}" if isinstance(op, KernelOp) else ""
        out.append(op.name + shape)
    return out or ["a foreign graph"]


#: Fill of a child by `isolation.standing`; an epilogue that stands alone is grey.
COLORS = {"isolated": "#eef3fb", "foreign": "#f1f1f1", "shared": "#fbe9e7"}


def render(step: StepGraph) -> str:
    """Clusters are children, coloured by isolation, dashed behind an IF node, with their parts as clusters inside where they have
    some; a chain of launches in each, as captured; edges between parts are dependencies."""
    standing = {row["name"]: row["isolation"] for row in step.rows()}
    lines = [f'digraph "{step.plan.name}" {{', "  rankdir=LR; compound=true; fontname=Helvetica;",
             '  node [shape=box style="rounded,filled" fillcolor=white fontname=Helvetica fontsize=10];']  # fmt: skip
    names = [child.name for child in step.children]
    for k, (name, parts) in enumerate(outline.arrange(names, step.plan.outline)):
        divided = [names[i] for i in parts] != [name]
        if divided:
            lines.append(f'  subgraph cluster_of_{k} {{ label="{name}"; style="rounded"; color="#7b93b8";')
        for i in parts:
            lines += _cluster(i, step.children[i], standing[names[i]], step.children[i] is step.plan.tail)
        lines += ["  }"] * divided
    for a, b in step.edges:
        last = len(_rows(step.children[a])) - 1
        lines.append(f"  n{a}_{last} -> n{b}_0 [ltail=cluster_{a} lhead=cluster_{b} penwidth=1.4];")
    return "\n".join([*lines, "}"])


def _cluster(i: int, child: Child, standing: str, tail: bool) -> list[str]:
    """One graph child."""
    color = "#f3f3f3" if tail else COLORS[standing]
    style = "filled,dashed" if child.when else "filled"
    label = f"{child.name} when {child.when}" if child.when else child.name
    rows = _rows(child)
    return [f'  subgraph cluster_{i} {{ label="{label}"; style="{style}"; fillcolor="{color}"; color="#7b93b8";',
            *(f'    n{i}_{j} [label="{text}"];' for j, text in enumerate(rows)),
            *(f"    n{i}_{j} -> n{i}_{j + 1};" for j in range(len(rows) - 1)), "  }"]  # fmt: skip
