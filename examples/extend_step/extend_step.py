"""A loss of your own in the training step, with parameters of its own: python examples/extend_step/extend_step.py

A head that predicts the n-step return from the trunk's output, as an auxiliary task: its gradient joins that of the C51 heads
on the way back through the trunk, its weights have their own Adam with their own clip, its error is a field of every record. The
step stays one graph launch. One kernel in return_head.cu; runs on a GPU (needs nvcc) or through hostsim (needs g++). Prints:

    ungraphed ...
    child by child ...
    parent ... {'cuGraphLaunch': 3}
    bitwise equal
    error of the return head: 1... in the first steps, 0... in the last
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import foxhunt_rt as fx
from foxhunt_rt import kernels
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Extension, Learner, NetworkLayout, ParameterGroup, StepView, Tensor

SOURCE = Path(__file__).with_name("return_head.cu")


class ReturnHead(Extension):
    """Mean squared error of a linear prediction of the return."""

    name, metrics, trunk_gradient = "return_head", ("return_mse",), True

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        width = layout.hidden[-1]
        weight = Tensor("weight", (width, 1), decayed=True, bound=width**-0.5)
        bias = Tensor("bias", (1,), decayed=False, bound=0.0)
        return [ParameterGroup(self.name, (weight, bias), lr_factor=1.0, max_grad_norm=1.0)]

    def record(self, step: StepView) -> None:
        group, x, dx, mse = (
            step.group(self.name),
            step.trunk_output,
            step.trunk_gradient(self.name),
            step.metric("return_mse"),
        )
        batch, width = x.shape
        inputs = dict(x=x, w=group.theta("weight"), bias=group.theta("bias"), ret=step.batch.ret)
        with step.child(self.name, after="ddqn", reads=inputs.values(), writes=[dx, mse, *group.gradient]) as child:
            child.launch("return_head", (1,), (256,), dict(inputs, dx=dx, dw=group.grad("weight"), dbias=group.grad("bias"),
                         mse=mse, coefficient=self.coefficient, B=batch, Hp=width), shared=4 * batch)  # fmt: skip
            group.record_squares(child)


def main() -> None:
    rt = fx.Runtime()
    kernels.add(kernels.compile(SOURCE, rt.device.architecture))
    config = Config().with_set(["network.hidden=32,32", "replay.batch=64", "replay.capacity=4096", "replay.n_step=1"])
    learner = Learner(rt, config, state_dim=8, branches=[3], extensions=[ReturnHead(coefficient=0.1)])

    random, rows = np.random.default_rng(0), learner.replay.staging(16)
    for _ in range(128):  # rewards that a linear function of the state explains
        state, next_state = random.normal(size=(2, 16, 8)).astype(np.float32)
        reward = state[:, 0] - 0.5 * state[:, 1]
        learner.replay.insert_batch(rows, random.integers(0, 3, 16).astype(np.int32), reward, np.ones(16, bool),
                                    np.zeros(16, bool), state=state, next_state=next_state)  # fmt: skip
    for _ in range(600):
        learner.step()
    records = learner.drain()
    first, last = records["return_mse"][:20].mean(), records["return_mse"][-20:].mean()
    print(learner.graph.verify(steps=3))
    print(f"error of the return head: {first:.3f} in the first steps, {last:.3f} in the last")
    assert last < 0.3 * first
    learner.close()


if __name__ == "__main__":
    sys.exit("extend_step.py takes no arguments" if sys.argv[1:] else main())
