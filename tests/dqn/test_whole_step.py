"""The whole core step against the float64 oracle (JAX, rlax, optax), on shapes that are multiples of nothing.

Tolerances: gradients |x - ref| <= 2e-5 sum|terms| + 1e-6 rms(tensor); Adam, Polyak and priorities from our own gradient and
|delta|. Run with `-s` to see the worst element of every tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.extension import Extension
from foxhunt_rt.dqn.learner import Learner

from . import oracle

WARM_UP = 3  # steps before the one that is compared, so that moments, target and priorities are not at their start


@dataclass(frozen=True)
class Case:
    """One shape and setting of the step."""

    name: str
    state_dim: int
    hidden: tuple[int, ...]
    branches: tuple[int, ...]
    atoms: int
    batch: int
    settings: tuple[str, ...] = ()
    alpha_c51: float = 0.4
    environments: int = 8
    inserts: int = 40
    seed: int = 1
    terminal_share: float = 0.1

    def config(self) -> Config:
        return Config().with_set([
            "network.hidden=" + ",".join(map(str, self.hidden)), f"network.atoms={self.atoms}",
            "replay.capacity=512", f"replay.batch={self.batch}", f"train.seed={self.seed}",
            "optim.horizon=10", *self.settings,
        ])  # fmt: skip


CASES = [
    Case("peers' shape", 48, (64, 64), (5, 3, 3, 3), 51, 64),
    Case("odd everything", 7, (13,), (3, 2), 11, 29,
         ("loss.label_smoothing=0.1", "loss.grad_budget=0", "replay.n_step=1")),
    Case("batch of one", 33, (17, 9), (2,), 51, 1, ("loss.grad_budget=0",)),
    Case("budget bites", 5, (31, 33), (4, 1, 3), 21, 33,
         ("loss.grad_budget=0.01", "optim.weight_decay=0.01", "replay.n_step=2"), alpha_c51=0.7),
    Case("sum over branches, sharp clip", 31, (65, 3), (3, 7), 2, 17,
         ("loss.branch_reduction=sum", "optim.max_grad_norm=0.05", "loss.v_min=-2", "loss.v_max=1.5")),
    Case("only cross-entropy", 12, (20, 20, 20), (2, 2, 2, 2, 2, 2, 2, 2), 51, 40, ("loss.label_smoothing=0.05",),
         alpha_c51=1.0),
    Case("only expected value", 12, (24,), (9,), 65, 40, ("loss.v_min=-0.5", "loss.v_max=0.5"), alpha_c51=0.0),
    Case("chunked statistics", 9, (16,), (3,), 19, 300, environments=20,
         inserts=20),
    Case("residual blocks", 11, (19, 19, 19), (3, 2), 11, 37, ("network.residual=true",)),
    Case("blocks where widths are equal", 11, (19, 19, 8, 12, 12), (3, 2), 11, 37,
         ("network.residual=true", "depth.enabled=true", "depth.drop=0.5")),
    Case("stochastic depth", 9, (23, 23, 23, 23), (4, 2), 13, 41,
         ("network.residual=true", "depth.enabled=true", "depth.drop=0.5", "loss.grad_budget=0.02")),
    Case("stochastic depth, split rows", 9, (16, 16), (3,), 19, 259,
         ("network.residual=true", "depth.enabled=true", "depth.drop=0.7"), environments=20, inserts=20),
]  # fmt: skip


def transitions(case: Case) -> oracle.Transitions:
    """Random rows: rewards that reach beyond the support, a tenth of them terminal, some truncated."""
    random = np.random.default_rng(case.seed)
    n = case.environments * case.inserts
    ended = random.random(n)
    return oracle.Transitions(
        state=random.normal(size=(n, case.state_dim)).astype(np.float32).astype(np.float64),
        next_state=random.normal(size=(n, case.state_dim)).astype(np.float32).astype(np.float64),
        action=random.integers(0, int(np.prod(case.branches)), n).astype(np.int32),
        reward=(random.normal(size=n) * 3.0).astype(np.float32).astype(np.float64),
        terminated=ended < case.terminal_share,
        truncated=ended > 0.95,
        environments=case.environments,
    )


def chain(rows: oracle.Transitions) -> oracle.Transitions:
    """The same rows, where s' of a row that did not end is the s of its environment's next row, as replay stores them."""
    next_state = rows.next_state.copy()
    e = rows.environments
    going = ~(rows.terminated | rows.truncated)
    going[-e:] = False
    at = np.flatnonzero(going)
    next_state[at] = rows.state[at + e]
    return oracle.Transitions(rows.state, next_state, rows.action, rows.reward, rows.terminated, rows.truncated, e)


@dataclass
class Taken:
    """A learner after the step that is compared, and its state just before."""

    case: Case
    learner: Learner
    rows: oracle.Transitions
    before: dict[str, npt.NDArray[Any]]
    record: npt.NDArray[Any]

    @cached_property
    def reference(self) -> oracle.Result:
        return reference(self)


def fill(learner: Learner, rows: oracle.Transitions) -> None:
    staging = learner.replay.staging(rows.environments)
    for at in range(0, len(rows.action), rows.environments):
        part = slice(at, at + rows.environments)
        learner.replay.insert_batch(staging, rows.action[part], rows.reward[part], rows.terminated[part],
                                    rows.truncated[part], state=rows.state[part].astype(np.float32),
                                    next_state=rows.next_state[part].astype(np.float32))  # fmt: skip


def take_step(rt: Runtime, case: Case, prepare: Callable[[Learner], None] | None = None,
              extensions: Sequence[Extension] = ()) -> Taken:  # fmt: skip
    """The step behind the warm-up; ``prepare`` is called just before it."""
    learner = Learner(rt, case.config(), case.state_dim, case.branches, keep_target=True, extensions=extensions)
    rows = chain(transitions(case))
    fill(learner, rows)
    learner.set(alpha_c51=case.alpha_c51)
    for _ in range(WARM_UP):
        learner.step()
    learner.drain()
    if prepare:
        prepare(learner)
    before = {name: buffer.to_numpy() for name, buffer in learner.persistent().items()}
    before["priority"] = learner.replay.priority.to_numpy()
    learner.step()
    return Taken(case, learner, rows, before, learner.drain()[-1])


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def taken(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Taken]:
    result = take_step(runtime, request.param)
    yield result
    result.learner.close()


def settings_of(taken: Taken) -> oracle.Settings:
    loss = taken.learner.config.loss
    f32 = lambda x: float(np.float32(x))  # noqa: E731  the device holds settings in f32
    return oracle.Settings(taken.case.branches, taken.case.atoms, f32(loss.v_min), f32(loss.v_max), f32(taken.case.alpha_c51),
                           f32(loss.label_smoothing), f32(loss.grad_budget), loss.branch_reduction,
                           residual=taken.learner.config.network.residual)  # fmt: skip


def batch_of(taken: Taken) -> oracle.Batch:
    """The batch, formed again on the host from the rows that were drawn."""
    learner, config = taken.learner, taken.learner.config
    index = learner.batch.index.to_numpy()
    priority = taken.before["priority"][index].astype(np.float64)
    progress = WARM_UP / config.horizon
    beta = config.replay.beta_start + (config.replay.beta_end - config.replay.beta_start) * progress
    weight = (priority.min() / priority) ** beta
    gamma = float(np.float32(config.loss.gamma))
    return oracle.gather(taken.rows, index, config.replay.n_step, gamma, config.loss.reward_scale, weight)


def reference(taken: Taken) -> oracle.Result:
    layout, depth = taken.learner.layout, taken.learner.depth
    factors = None if depth is None else depth.to_numpy().astype(np.float64)
    return oracle.loss(layout.unpack(taken.before["theta"]), layout.unpack(taken.before["target"]), batch_of(taken),
                       taken.learner.ddqn.next_action.to_numpy(), settings_of(taken), factors)  # fmt: skip


def check_gradient(taken: Taken, expected: oracle.Result, flat: npt.NDArray[np.float32]) -> list[str]:
    found = taken.learner.layout.unpack(flat)
    assert set(found) == set(expected.gradient)
    return [oracle.compare(name, found[name], expected.gradient[name], expected.magnitude[name])
            for name in expected.gradient]  # fmt: skip


def test_batch_is_the_rows_that_were_drawn(taken: Taken) -> None:
    batch, expected = taken.learner.batch, batch_of(taken)
    size = taken.case.state_dim
    np.testing.assert_array_equal(batch.action.to_numpy(), expected.action)
    np.testing.assert_array_equal(batch.state.to_numpy()[:, :size], expected.state)
    np.testing.assert_array_equal(batch.next_state.to_numpy()[:, :size], expected.next_state)
    assert not batch.state.to_numpy()[:, size:].any() and not batch.next_state.to_numpy()[:, size:].any()
    np.testing.assert_allclose(batch.ret.to_numpy(), expected.ret, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.discount.to_numpy(), expected.discount, rtol=1e-6)


def test_greedy_actions(taken: Taken) -> None:
    learner = taken.learner
    gap = oracle.check_greedy(learner.layout.unpack(taken.before["theta"]), batch_of(taken).next_state,
                              learner.ddqn.next_action.to_numpy(), settings_of(taken))  # fmt: skip
    print(f"\n{taken.case.name}: smallest gap between best and second best {gap:.2e}")


def test_projection_td_error_and_statistics(taken: Taken) -> None:
    learner, expected, record = taken.learner, taken.reference, taken.record
    assert learner.ddqn.target is not None
    target = learner.ddqn.target.to_numpy()
    np.testing.assert_allclose(target.sum(-1, dtype=np.float64), 1.0, atol=1e-6)
    z = np.abs(settings_of(taken).z).max()
    # an error of b of N eps moves that share of a neighbouring atom's mass
    np.testing.assert_allclose(target, expected.target, atol=4e-7 * taken.case.atoms)
    np.testing.assert_allclose(learner.batch.td_error.to_numpy(), expected.td_error, rtol=2e-5, atol=2e-6 * z)
    for name, value in {"ce": expected.ce, "mse": expected.mse, "loss": expected.loss,
                        "td_error": expected.td_error.mean(), "q_mean": expected.q.mean(), "q_min": expected.q.min(),
                        "q_max": expected.q.max(), "ce_scale": expected.scales[0],
                        "mse_scale": expected.scales[1]}.items():  # fmt: skip
        assert record[name] == pytest.approx(value, rel=5e-5, abs=2e-6 * z), name
    mean = expected.target.mean((0, 1))
    use = np.exp(-(mean[mean > 0] * np.log(mean[mean > 0])).sum()) / taken.case.atoms
    assert record["atom_use"] == pytest.approx(use, rel=2e-5)
    assert record["edge_mass"] == pytest.approx(mean[0] + mean[-1], rel=2e-5, abs=1e-6)
    assert record["weight_mean"] == pytest.approx(batch_of(taken).weight.mean(), rel=2e-5)
    if "budget" in taken.case.name:
        assert record["ce_scale"] < 1.0 and record["mse_scale"] < 1.0


def test_gradient(taken: Taken) -> None:
    flat = taken.learner.grad.grad.to_numpy()
    worst = check_gradient(taken, taken.reference, flat)
    print(f"\n{taken.case.name}\n  " + "\n  ".join(worst))
    assert not flat[taken.learner.layout.pads()].any(), "pads of the gradient stay zero"


def test_adam_polyak_and_priorities_from_our_own_gradient(taken: Taken) -> None:
    learner, before, config = taken.learner, taken.before, taken.learner.config
    layout, optim = learner.layout, config.optim
    gradient = learner.grad.grad.to_numpy().astype(np.float64)
    phase = WARM_UP / config.horizon
    cosine = 0.5 * (1.0 + np.cos(np.pi * phase))
    lr = optim.lr_min + (optim.lr - optim.lr_min) * cosine
    tau = optim.tau_end + (optim.tau_start - optim.tau_end) * cosine
    decayed = np.arange(layout.size) < layout.n_decay
    f64 = {name: before[name].astype(np.float64) for name in ("theta", "target", "m", "v")}
    beta1, beta2 = float(np.float32(optim.beta1)), float(np.float32(optim.beta2))
    theta, m, v = oracle.adamw(f64["theta"], gradient, f64["m"], f64["v"], WARM_UP + 1, lr=lr, beta1=beta1, beta2=beta2,
                               eps=optim.eps, weight_decay=optim.weight_decay, decayed=decayed,
                               max_norm=optim.max_grad_norm)  # fmt: skip
    norm = np.sqrt((gradient**2).sum())
    assert taken.record["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert taken.record["clip"] == pytest.approx(min(1.0, optim.max_grad_norm / norm), rel=1e-5)
    g = np.abs(gradient) * min(1.0, optim.max_grad_norm / norm)
    found = {name: getattr(learner.adam, name).to_numpy() for name in ("theta", "target", "m", "v")}
    target = (1.0 - tau) * f64["target"] + tau * found["theta"].astype(np.float64)
    for name, ref, terms in (
        ("m", m, beta1 * np.abs(f64["m"]) + (1 - beta1) * g),
        ("v", v, v),
        ("theta", theta, 1e-2 * np.abs(f64["theta"]) + np.abs(theta - f64["theta"]) + lr),
        ("target", target, 1e-2 * np.abs(target)),
    ):
        print("\n" + oracle.compare(f"{taken.case.name}: {name}", found[name], ref, terms))

    index, delta = learner.batch.index.to_numpy(), learner.batch.td_error.to_numpy().astype(np.float64)
    priority = before["priority"].astype(np.float64)
    priority[index] = (delta + config.replay.eps) ** config.replay.alpha
    np.testing.assert_allclose(learner.replay.priority.to_numpy(), priority, rtol=1e-5)


def test_step_is_one_launch_and_three_ways_agree(taken: Taken) -> None:
    result = taken.learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    planted = taken.learner.graph.verify(steps=1, plant="adam")
    assert not planted.bitwise_equal and planted.child == "adam"


def test_zeroing_any_gradient_tensor_fails(runtime: Runtime) -> None:
    taken = take_step(runtime, CASES[1])  # every branch has a choice: the advantages of one action have no gradient
    layout, expected = taken.learner.layout, taken.reference
    flat = taken.learner.grad.grad.to_numpy()
    check_gradient(taken, expected, flat)
    for name in layout.unpack(flat):
        tensors = layout.unpack(flat)
        tensors[name][...] = 0.0
        with pytest.raises(AssertionError, match=name.replace(".", r"\.")):
            check_gradient(taken, expected, layout.pack(tensors))
    taken.learner.close()
