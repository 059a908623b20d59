"""The Mamba-2 block: its scan against the plain recurrence, its gradient against autodiff of the whole step, its metrics."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn.children.temporal import Temporal

from .. import feature_harness as harness
from .. import oracle
from ..mamba_oracle import mamba
from ..test_blocks import reference_with_blocks
from ..test_whole_step import CASES, Case, Taken, take_step
from ..windows_oracle import windows_of

ON = ("temporal.enabled=true",)
SMALL = (*ON, "network.window=5", "temporal.heads=3", "temporal.head_dim=5", "temporal.state_dim=7", "temporal.conv=3")


def block_of(taken: Taken) -> Any:
    c = taken.learner.config.temporal
    return partial(mamba, heads=c.heads, head_dim=c.head_dim, state_dim=c.state_dim, conv=c.conv)


def magnitudes(taken: Taken, expected: oracle.Result) -> dict[str, npt.NDArray[np.float64]]:
    """Of the block's gradients: every row's and output's own term, by the Jacobian, without cancellation between them."""
    learner = taken.learner
    window = learner.config.network.window
    params = {k: v.astype(np.float64) for k, v in learner.layout.unpack(taken.before["theta"]).items()}
    own = {k: v for k, v in params.items() if k.startswith("temporal.")}
    (states, length), _ = windows_of(taken.rows, learner.batch.index.to_numpy(), learner.config.replay.n_step, window)
    block = block_of(taken)
    jacobian = jax.jit(jax.vmap(jax.jacrev(lambda p, s, n: block(p, (s[None], n[None]), s[None, -1])[0]), (None, 0, 0)))
    found = jacobian(own, states, length)
    return {k: np.einsum("rs...,rs->...", np.abs(np.asarray(j)), expected.input_magnitude) for k, j in found.items()}


@pytest.mark.parametrize(("case", "settings"), [
    (CASES[1], SMALL), (CASES[3], (*ON, "network.window=1")), (CASES[4], (*ON, "network.window=9", "temporal.heads=1")),
    (CASES[2], (*SMALL, "temporal.conv=1")), (CASES[7], SMALL),
], ids=lambda v: v.name if isinstance(v, Case) else "")  # fmt: skip
def test_gradients_of_the_whole_step(runtime: Runtime, case: Case, settings: tuple[str, ...]) -> None:
    taken = take_step(runtime, dataclasses.replace(case, settings=(*case.settings, *settings)))
    learner, layout = taken.learner, taken.learner.layout
    expected = reference_with_blocks(taken, (block_of(taken),), learner.config.network.window)
    magnitude = {**expected.magnitude, **magnitudes(taken, expected)}
    flat = learner.grad.grad.to_numpy()
    found = layout.unpack(flat)
    assert set(found) == set(expected.gradient)
    for name, array in found.items():
        print(oracle.compare(name, array, expected.gradient[name], magnitude[name]))
        if np.abs(expected.gradient[name]).max() > 0.0:
            with pytest.raises(AssertionError):
                oracle.compare(name, np.zeros_like(array), expected.gradient[name], magnitude[name])
    assert all(np.abs(expected.gradient[f"temporal.{t}"]).max() > 0.0 for t in ("in_proj", "z_proj", "out_proj", "d", "norm"))
    assert not flat[layout.pads()].any()
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()
