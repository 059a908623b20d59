"""Children made of parts: the graph children `aux.cql` and `aux.iqn` are parts of the child `aux`.

Parts have edges of their own, so that those which do not touch run side by side; launches, verification and the ledger know parts
alone. Lists, tables and pictures show children, each with its parts, in the order of `StepPlan.outline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def owner(name: str) -> str:
    """The child that a graph child of this name is a part of: what stands before the first dot."""
    return name.partition(".")[0]


def arrange(names: Sequence[str], order: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Children in the order in which they are shown, each with the positions of its parts among ``names``.

    Parameters
    ----------
    names : sequence of str
        Graph children in program order.
    order : sequence of str
        Children that have a place. Any other stands behind the one that its first part follows in program order.
    """
    positions: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        positions.setdefault(owner(name), []).append(j)
    shown = [name for name in order if name in positions]
    for name, parts in positions.items():
        if name not in order:
            before = owner(names[parts[0] - 1]) if parts[0] else None
            shown.insert(shown.index(before) + 1 if before is not None else 0, name)
    return [(name, positions[name]) for name in shown]


def children(rows: Sequence[Row], edges: Sequence[tuple[int, int]], order: Sequence[str]) -> list[Row]:
    """Rows of graph children, in program order, as rows of children: one that is divided has the rows of its ``parts``, their
    sums and the longest chain through them."""
    found = []
    for name, parts in arrange([row["name"] for row in rows], order):
        own = [rows[j] for j in parts]
        if [row["name"] for row in own] == [name]:
            found.append({**own[0], "parts": []})
            continue
        depth: dict[int, int] = {}
        for j in parts:
            depth[j] = rows[j]["chain"] + max((depth[i] for i, k in edges if k == j and i in depth), default=0)
        gates = {row["when"] for row in own}
        found.append({"name": name,
                      **{key: list(dict.fromkeys(x for row in own for x in row[key]))
                         for key in ("kernels", "modules", "reads", "writes")},
                      **{key: sum(row[key] for row in own) for key in ("nodes", "kernel_nodes")},
                      "chain": max(depth.values()), "when": gates.pop() if len(gates) == 1 else None,
                      "isolation": min((row["isolation"] for row in own), key=_WORST.index), "parts": own})  # fmt: skip
    return found


_WORST = ["shared", "foreign", "isolated"]


def flat(rows: Sequence[Row]) -> list[Row]:
    """Rows of children as rows of graph children, in the order shown."""
    return [part for row in rows for part in (row["parts"] or [row])]


__all__ = ["arrange", "children", "flat", "owner"]
