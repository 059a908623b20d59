"""JAX and our kernels on the same memory: python examples/jax_buffers.py

A JAX array becomes a read-only buffer of ours, and what our step graph writes becomes a JAX array, without a copy either way.
Runs on a GPU when JAX has one too, else on the CPU through hostsim. Prints:

    sum by our kernel 1.9..., by JAX 1.9...
    child bad writes theirs, which its owner gave out read-only: copy it with Runtime.array
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

import foxhunt_rt as fx
from foxhunt_rt import interop

N = 10_000


def main() -> None:
    rt = fx.Runtime()
    theirs = jnp.sin(jnp.arange(N, dtype=jnp.float32))
    x = interop.wrap(rt, theirs, "theirs")  # JAX arrays never change, so no child may declare to write this one
    total = rt.zeros(1, np.float32, "total")
    plan = rt.plan("sum")
    with plan.child("sum", reads=[x], writes=[total]) as child:
        child.launch("sum", (1,), (256,), dict(x=x, sum=total, n=N))
    step = plan.build()
    step.launch()

    ours = jax.dlpack.from_dlpack(total)  # waits for the step: on a GPU the stream does, not the host
    print(f"sum by our kernel {float(ours[0]):.4f}, by JAX {float(theirs.sum()):.4f}")
    np.testing.assert_allclose(ours[0], theirs.sum(), atol=1e-2)
    try:
        plan.child("bad", reads=[], writes=[x])
    except fx.graph.DeclarationError as error:
        print(error)
    del ours
    step.close()


if __name__ == "__main__":
    sys.exit("jax_buffers.py takes no arguments" if sys.argv[1:] else main())
