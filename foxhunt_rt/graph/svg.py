"""The step graph as SVG: a box a child with its launches in order, an arrow a dependency, time running downwards. Each part of a
child that is divided is a box of its own, in a frame with the name of the child.

Drawn here, in a few lines, so that a picture needs no Graphviz; `graph --dot` is for those who have it.
"""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from foxhunt_rt.graph import outline

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph

__all__ = ["render"]

WIDTH, ROW, GAP, MARGIN = 190, 18, 30, 14
FRAME, TITLE = 7, 18  # around the parts of a child, and the room for its name
_STYLE = """
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2933 }
  .name { font-weight: 600; font-size: 13px } .note { fill: #61707f; font-size: 11px }
  .child { fill: #eef3fb; stroke: #7b93b8 } .tail { fill: #f4f1ea; stroke: #b3a27a }
  .foreign { fill: #f1f1f1; stroke: #8a8a8a } .shared { fill: #fbe9e7; stroke: #c0392b } .gated { stroke-dasharray: 5 3 }
  .frame { fill: #f8fafd; stroke: #c3cfe2 }
  .edge { stroke: #44546a; stroke-width: 1.4; fill: none }
"""


def render(step: StepGraph) -> str:
    """SVG text. Colours say what `StepGraph.info` calls ``isolation``; a dashed frame is a child behind an IF node."""
    rows, info = step.rows(), step.info()
    # by name alone: how many blocks a launch has changes with sizes and tuning
    launches = {child.name: [op.name for op in child.ops] or ["a foreign graph"] for child in step.children}
    names = [c["name"] for c in rows]
    depth: dict[str, int] = {}
    for name in names:  # program order, so every predecessor has its depth already
        depth[name] = 1 + max((depth[a] for a, b in info["edges"] if b == name), default=-1)
    shown = outline.arrange(names, step.plan.outline)
    divided = {names[j]: child for child, parts in shown for j in parts if [names[i] for i in parts] != [child]}
    listed = [names[j] for _, parts in shown for j in parts]  # parts of a child side by side
    layers = [[n for n in listed if depth[n] == d] for d in range(max(depth.values()) + 1)]
    columns = max(map(len, layers))
    total = columns * WIDTH + (columns - 1) * GAP
    place: dict[str, tuple[float, float, float]] = {}
    frames: list[str] = []
    y = float(MARGIN)
    for layer in layers:
        height = float(max(ROW * (1 + len(launches[n])) + 12 for n in layer))
        framed = any(n in divided for n in layer)
        y += (FRAME + TITLE) * framed
        x = float(MARGIN)
        for child, together in groupby(layer, key=lambda n: divided.get(n)):
            parts = list(together)
            if child is not None:
                wide, tall = len(parts) * (WIDTH + GAP) - GAP + 2 * FRAME, height + 2 * FRAME + TITLE
                frames += [f'<rect class="frame" x="{x - FRAME}" y="{y - FRAME - TITLE}" width="{wide}" height="{tall}" rx="8"/>',
                           f'<text class="note" x="{x}" y="{y - FRAME - 3}">{escape(child)}</text>']  # fmt: skip
            for name in parts:
                place[name] = (x, y, height)
                x += WIDTH + GAP
        y += height + GAP + FRAME * framed
    bottom = y - GAP + MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total + 2 * MARGIN} {bottom:.0f}" '
           f'width="{total + 2 * MARGIN}" role="img" aria-label="The children of one training step">',
           f"<style>{_STYLE}</style>",
           '<rect width="100%" height="100%" rx="8" fill="#fff"/>',  # a page may be dark
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path d="M0 0L8 4L0 8z" fill="#44546a"/></marker></defs>']  # fmt: skip
    out += frames
    for a, b in info["edges"]:
        ax, ay, tall = place[a]
        bx, by, _ = place[b]
        x1, y1, x2, y2 = ax + WIDTH / 2, ay + tall, bx + WIDTH / 2, by - 2
        if x1 == x2:
            curve = f"M{x1} {y1}L{x2} {y2}"
        else:  # beside the layers in between, then across in the gap above the target, a little off its middle
            last = max(place[n][1] + place[n][2] for n in layers[depth[b] - 1])
            x2 += 24 if x1 > x2 else -24
            bend = (last + y2) / 2
            curve = f"M{x1} {y1}L{x1} {last:.0f}C{x1} {bend:.0f} {x2} {bend:.0f} {x2} {y2}"
        out.append(f'<path class="edge" d="{curve}" marker-end="url(#tip)"/>')
    tail = {c["name"] for c in info["epilogue"]}
    for row in rows:
        name = row["name"]
        x, y, height = place[name]
        kind = row["isolation"] if row["isolation"] != "isolated" else "tail" if name in tail else "child"
        out.append(f'<rect class="{kind}{" gated" if row["when"] else ""}" x="{x}" y="{y}" width="{WIDTH}" '
                   f'height="{height}" rx="6"/>')  # fmt: skip
        out.append(f'<text class="name" x="{x + 10}" y="{y + 19}">{escape(name)}</text>')
        out += [f'<text class="note" x="{x + 22}" y="{y + 19 + ROW * (i + 1)}">{escape(text)}</text>'
                for i, text in enumerate(launches[name])]  # fmt: skip
    return "\n".join([*out, "</svg>"])
