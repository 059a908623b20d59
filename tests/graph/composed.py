"""Random plans of many children on a few buffers, in which every edge matters; and how to put a delay of ever another length in
front of every child of a plan."""

from __future__ import annotations

import numpy as np

from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Flag, Runtime, StepPlan

WIDTH = 64
DELAY_LABEL = "delay"


def buffers(rt: Runtime, count: int = 8, seed: int = 0) -> list[Buffer]:
    """Buffers of small whole numbers."""
    rng = np.random.default_rng(seed)
    return [rt.array(rng.integers(1, 100, WIDTH).astype(np.float32), f"buffer {i}") for i in range(count)]


def composed(
    rt: Runtime, on: list[Buffer], children: int = 13, seed: int = 0, when: dict[int, Flag] | None = None
) -> StepPlan:
    """A plan whose child k reads one or two buffers and writes a third, so that no order but the right one leaves the same: the
    half that it writes moves what stood there into the other half, and the sum of both is kept."""
    rng = np.random.default_rng(seed)
    plan, half = rt.plan("composed"), WIDTH // 2
    sums = rt.zeros(children, np.float32, "sums")
    for k in range(children):
        source, second, target = (on[i] for i in rng.permutation(len(on))[:3])
        both = bool(rng.integers(2))
        reads, kept = [source, second] if both else [source], sums[k : k + 1]
        with plan.child(f"child {k}", reads=reads, writes=[target, kept], when=(when or {}).get(k)) as c:
            c.copy(target[:half], target[half:])
            c.launch("reverse_rows", (1,), (half,), dict(x=source, y=target[half:], rows=1, cols=half), shared=4 * half)
            c.launch("add_scalar", (1,), (half,), dict(x=target[half:], value=k + 1.0, n=half))
            if both:
                c.launch("sum", (1,), (half,), dict(x=second, sum=target[half : half + 1], n=WIDTH))
            c.launch("sum", (1,), (half,), dict(x=target, sum=kept, n=WIDTH))
    return plan


def with_delays(rt: Runtime, plan: StepPlan, most_ns: int) -> StepPlan:
    """Puts a delay of 0 to ``most_ns`` in front of every child, other ones in every launch; they add no edge."""
    for k, child in enumerate(plan.sequence()):
        count = rt.zeros(1, np.uint32, f"{DELAY_LABEL} {k}")
        child.private += (count,)
        with child:
            child.launch("delay", (1,), (1,), dict(count=count, seed=k, most_ns=most_ns))
        child.ops.insert(0, child.ops.pop())
    return plan
