"""Blocks in front of the trunk: two linear ones, one behind the other, against float64 autodiff of the whole step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Extension, NetworkLayout, ParameterGroup, StepView, Tensor
from foxhunt_rt.dqn.blocks import BlockInputs, BlockWorkspace, InputBlock
from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.layout import STATE_PAD, Layer
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child
from foxhunt_rt.graph.child import KernelOp

from . import feature_harness as harness
from . import oracle
from .test_whole_step import CASES, Case, Taken, batch_of, settings_of, take_step
from .windows_oracle import windows_of


@dataclasses.dataclass(frozen=True)
class LinearBlock(InputBlock):
    """x W + b: no look at the past."""

    name: str
    window: int

    def layer(self, layout: NetworkLayout) -> Layer:
        return Layer(*layout.group_segments[self.name], relu=False)

    def scratch(self, rt: Runtime, layout: NetworkLayout, rows: int, passes: int, label: str) -> dict[str, Buffer]:
        return {}

    def record(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
               passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        layer = self.layer(layout)
        x = [p.x for p in passes]
        forward.own_layer(child, layer, x[0].shape[0], x, LayerWeights.of(layer, theta, target), work.out)


class Linear(Extension):
    def __init__(self, name: str, window: int = 1) -> None:
        self.name, self._block = name, LinearBlock(name, window)

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        s, pads = layout.state_dim, (STATE_PAD, STATE_PAD)
        tensors = (Tensor("weight", (s, s), True, 0.7, pads=pads), Tensor("bias", (s,), False, 0.1, pads=pads[:1]))
        return [ParameterGroup(self.name, tensors, 1.0, 1.0)]

    def block(self, config: Config) -> InputBlock:
        return self._block

    def record(self, step: StepView) -> None:
        name, chain, layer = self.name, step.blocks, self._block.layer(step.layout)
        inputs, work, group = chain.inputs[name], chain.work[name], step.group(name)
        theta, target = step.adam.theta, step.adam.target
        reads = [theta, target, *(p.x for p in inputs)]
        with step.block_forward(name, reads, work.buffers()) as child:
            self._block.record(child, step.layout, theta, target, inputs, work)
        below = chain.before[name]
        writes = [*group.gradient, *([below] if below is not None else [])]
        with step.block_backward(name, [theta, inputs[0].x, chain.gradient[name]], writes) as child:
            to = group.grad("weight").view((layer.weight.size,)), group.grad("bias")
            adam_grad.own_layer(child, layer, group.theta("weight"), inputs[0].x, chain.gradient[name], below, to, 0, 1,
                                None, relu=False)  # fmt: skip
            group.record_squares(child)


def linear(name: str) -> Any:
    return lambda p, windows, x: x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def reference_with_blocks(taken: Taken, blocks: tuple[Any, ...], window: int) -> oracle.Result:
    """The oracle of the whole step, its states replaced by windows of them."""
    learner, batch = taken.learner, batch_of(taken)
    before, after = windows_of(taken.rows, learner.batch.index.to_numpy(), learner.config.replay.n_step, window)
    seen = dataclasses.replace(batch, state=before, next_state=after)
    unpack = learner.layout.unpack
    return oracle.loss(unpack(taken.before["theta"]), unpack(taken.before["target"]), seen,
                       learner.ddqn.next_action.to_numpy(),
                       dataclasses.replace(settings_of(taken), blocks=blocks))  # fmt: skip


@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[7]], ids=lambda case: case.name)
def test_gradients_through_two_blocks(runtime: Runtime, case: Case) -> None:
    taken = take_step(runtime, case, extensions=(Linear("one"), Linear("two")))
    learner, layout = taken.learner, taken.learner.layout
    expected = reference_with_blocks(taken, (linear("one"), linear("two")), 1)
    p = {k: v.astype(np.float64) for k, v in layout.unpack(taken.before["theta"]).items()}
    x = batch_of(taken).state
    between, by_two = x @ p["one.weight"] + p["one.bias"], expected.input_magnitude
    by_one = by_two @ np.abs(p["two.weight"]).T
    magnitude = {**expected.magnitude, "two.weight": np.abs(between).T @ by_two, "two.bias": by_two.sum(0),
                 "one.weight": np.abs(x).T @ by_one, "one.bias": by_one.sum(0)}  # fmt: skip
    flat = learner.grad.grad.to_numpy()
    found = layout.unpack(flat)
    for name, array in found.items():
        print(oracle.compare(name, array, expected.gradient[name], magnitude[name]))
        if name.split(".")[0] in ("one", "two"):
            with pytest.raises(AssertionError):
                oracle.compare(name, np.zeros_like(array), expected.gradient[name], magnitude[name])
    assert not flat[layout.pads()].any()
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()


OUTPUTS = {"mamba_scan": ("out", "gated", "y", "memory"), "mamba_scan_backward": ("dproj", "dz", "partial", "stats"),
           "attention": ("weight", "o", "out"), "attention_backward": ("dq", "dkv", "stats")}  # fmt: skip


def test_a_window_holds_the_present_state_and_no_more_than_l(runtime: Runtime) -> None:
    """A length that nobody has written, 0, gives what 1 gives, one above L what L gives: no NaN, no memory of others."""
    learner = harness.learner(runtime, ("temporal.enabled=true", "attention.enabled=true", "network.window=5"))
    learner.step()
    ops = {op.name: op for child in learner.graph.plan.children for op in child.ops if op.name in OUTPUTS}
    assert set(ops) == set(OUTPUTS)
    user = runtime.ungraphed("test.lengths")
    for name, outputs in OUTPUTS.items():
        op = ops[name]
        assert isinstance(op, KernelOp)
        lengths = [buffer for field, buffer in op.fields.items() if field.startswith("length")]

        def made(value: int, op: KernelOp = op, lengths: Any = lengths, outputs: Any = outputs) -> list[Any]:
            for buffer in lengths:
                buffer.fill(value)
            user.launch(op.kernel, op.grid, op.block, op.fields, op.shared)
            return [op.fields[field].to_numpy().copy() for field in outputs]

        for wrong, right in ((0, 1), (-3, 1), (8, 5)):
            for field, a, b in zip(outputs, made(wrong), made(right), strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{name}.{field} of length {wrong}")
                assert np.isfinite(a).all()
    learner.close()
