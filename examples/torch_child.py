"""A PyTorch module trained inside our step graph, from our replay: python examples/torch_child.py

One parent, one launch a step: prioritized sampling (ours) -> forward, backward and Adam of a torch module (a graph that PyTorch
captured) -> new priorities (ours). Tensors and buffers share memory; nothing is copied and the host waits for nothing. Needs a
GPU and PyTorch 2.9 or newer. Prints a loss that falls, a verification that ends with "bitwise equal", the foreign kernels of the
ledger, and that the greedy action is the best one in more than 90 % of new states.
"""

from __future__ import annotations

import sys

import numpy as np

import foxhunt_rt as fx
from foxhunt_rt import interop
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children import counters, per_priority, per_sample
from foxhunt_rt.dqn.guard import CLEAR
from foxhunt_rt.dqn.schedule import Control
from foxhunt_rt.replay import Batch, Replay

S, ACTIONS, B, E = 8, 4, 256, 64
STEPS = 400


def fill(replay: Replay, seed: int = 0) -> None:
    """A contextual bandit: a reward of 1 for the action that two signs of the state name, else 0. Every step ends an episode."""
    random = np.random.default_rng(seed)
    staging = replay.staging(E)
    for _ in range(64):
        state = random.normal(size=(E, S)).astype(np.float32)
        action = random.integers(0, ACTIONS, E)
        reward = (action == best(state)).astype(np.float32)
        replay.insert_batch(staging, action, reward, np.ones(E, bool), np.zeros(E, bool), state=state, next_state=state)


def best(state: np.ndarray) -> np.ndarray:
    return 2 * (state[:, 0] > 0) + (state[:, 1] > 0)


def main() -> float:
    """Trains, verifies, and returns the share of states in which the greedy action is the best one."""
    rt = fx.Runtime()
    if rt.driver_kind != "cuda":
        sys.exit("this example needs a GPU: hostsim runs our kernels, not PyTorch's")
    import torch

    config = Config().with_set(["replay.batch=256", "loss.gamma=0", "replay.n_step=1"])
    replay = Replay(rt, 8192, S, n_step=1)
    batch = Batch.allocate(rt, B, S)
    control = Control(rt, config, seed=1)
    state = rt.zeros(1, fx.abi.dtype("train_state"), "train_state")
    step_block = rt.zeros(1, fx.abi.dtype("step_block"), "step")
    guard = rt.array(np.array([(CLEAR,)], fx.abi.dtype("guard_block")), "guard")
    fill(replay)

    # Our buffers as tensors: the same memory.
    x, action, target, td_error = (torch.from_dlpack(b) for b in (batch.state, batch.action, batch.ret, batch.td_error))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, ACTIONS)).cuda()
    adam = torch.optim.Adam(module.parameters(), lr=3e-3, capturable=True)
    loss = torch.zeros((), device="cuda")

    def train() -> None:
        q = module(x).gather(1, action.long()[:, None])[:, 0]
        difference = target - q
        td_error.copy_(difference.detach().abs())
        mean = (difference**2).mean()
        mean.backward()
        loss.copy_(mean.detach())
        adam.step()
        adam.zero_grad(set_to_none=False)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # PyTorch wants a few runs before it captures
        action.zero_()
        for _ in range(3):
            train()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        train()

    # PyTorch's tensors as our buffers, so that verification sees what its graph writes.
    tensors = [loss, *(t.detach() for p in module.parameters() for t in (p, p.grad, *adam.state[p].values()))]
    theirs = [interop.wrap(rt, tensor, f"torch.{i}") for i, tensor in enumerate(tensors)]
    plan = rt.plan("torch")
    counters.add(plan, counters.CountersInputs(control.buffer), counters.CountersBuffers(state, step_block), 51)
    per_sample.add(plan, per_sample.PerSampleInputs(replay, step_block, guard), batch)
    plan.child_from_graph(
        "torch", graph, reads=[batch.state, batch.action, batch.ret], writes=[batch.td_error, *theirs]
    )
    per_priority.add(plan, per_priority.PerPriorityInputs(batch, step_block), replay)
    step = plan.build()

    for n in range(STEPS):
        step.launch(stream=torch.cuda.current_stream())
        if n % 100 == 0:
            print(f"step {n:4}  loss {loss.item():.4f}")
    print(step.verify(steps=3))
    print(f"foreign kernels: {rt.ledger.foreign}")

    states = np.random.default_rng(1).normal(size=(4096, S)).astype(np.float32)
    padded = torch.zeros(4096, x.shape[1], device="cuda")
    padded[:, :S] = torch.from_numpy(states).cuda()
    right = float((module(padded).argmax(1).cpu().numpy() == best(states)).mean())
    print(f"greedy action is the best one in {right:.1%} of new states")
    step.close()
    return right


if __name__ == "__main__":
    sys.exit("torch_child.py takes no arguments" if sys.argv[1:] else 0 if main() > 0.9 else 1)
