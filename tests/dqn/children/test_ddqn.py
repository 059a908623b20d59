"""ddqn alone, from given logits: projection against rlax, ties, the budget, statistics, and each fault of the guard planted.

The gradient against autodiff is in test_whole_step.py, which runs the same kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime, abi
from foxhunt_rt.dqn.children import ddqn
from foxhunt_rt.dqn.guard import CLEAR, Finding, decode

from .. import oracle

F32 = npt.NDArray[np.float32]


@dataclass
class Loss:
    """Inputs of ddqn in host memory; `run` launches it ungraphed."""

    shape: ddqn.LossShape
    logits: F32
    action: npt.NDArray[np.int32]
    ret: F32
    discount: F32
    priority: F32
    step: npt.NDArray[Any]

    @classmethod
    def make(cls, batch: int = 9, branches: tuple[int, ...] = (3, 2), atoms: int = 11, *, v_min: float = -2.0,
             v_max: float = 3.0, alpha: float = 0.4, seed: int = 0, reduction: str = "mean") -> Loss:  # fmt: skip
        shape = ddqn.LossShape(batch, branches, atoms, reduction)
        random = np.random.default_rng(seed)
        logits = np.zeros((3, batch, shape.head_padded), np.float32)
        used = (1 + shape.actions) * atoms
        logits[..., :used] = random.normal(size=(3, batch, used))
        step = np.zeros(1, abi.dtype("step_block"))
        step["v_min"], step["v_max"], step["delta_z"] = v_min, v_max, np.float32(v_max - v_min) / np.float32(atoms - 1)
        step["alpha_c51"], step["beta_per"], step["q_clip"], step["spike_mass"] = (
            alpha,
            0.5,
            0.9 * max(abs(v_min), v_max),
            0.95,
        )
        priority = random.uniform(0.5, 2.0, batch).astype(np.float32)
        step["min_priority"] = priority.min().view(np.uint32)
        return cls(shape, logits, random.integers(0, np.prod(branches), batch).astype(np.int32),
                   random.normal(size=batch).astype(np.float32), np.full(batch, 0.95, np.float32), priority, step)  # fmt: skip

    def run(self, rt: Runtime, *, budget: float = 0.0) -> dict[str, Any]:
        """Every output, the guard's finding, and the sums of the statistics."""
        self.step["grad_budget"] = budget
        device = {name: rt.array(getattr(self, name), f"test.{name}")
                  for name in ("logits", "action", "ret", "discount", "priority", "step")}  # fmt: skip
        guard = rt.array(np.array([(CLEAR,)], abi.dtype("guard_block")), "test.guard")
        delta = rt.zeros(self.shape.batch, np.float32, "test.td_error")
        buffers = ddqn.DdqnBuffers.create(rt, self.shape, delta, budget=budget > 0, keep_target=True, label="test")
        ddqn.record(rt.ungraphed("test.ddqn"), self.shape, ddqn.DdqnInputs(**device, guard=guard), buffers)  # type: ignore[arg-type]
        out = {b.label.rsplit(".", 1)[1]: b.to_numpy() for b in ddqn.writes(buffers)}  # type: ignore[attr-defined]
        out["finding"] = decode(int(guard.to_numpy()["key"][0]))
        for buffer in (*device.values(), guard, *ddqn.writes(buffers)):
            buffer.free()
        return out

    def combined(self, index: int) -> list[npt.NDArray[np.float64]]:
        """Logits per branch of one pass, (B, n_b, N), by the dueling formula."""
        n, at = self.shape.atoms, self.shape.atoms
        x = self.logits[index].astype(np.float64)
        out = []
        for size in self.shape.branches:
            advantage = x[:, at : at + size * n].reshape(-1, size, n)
            out.append(x[:, None, :n] + advantage - advantage.mean(1, keepdims=True))
            at += size * n
        return out


def softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def check_projection(loss: Loss, out: dict[str, Any]) -> None:
    """Mass 1 within 1e-6, and rlax's projection of the target network's distribution at our a*."""
    assert out["finding"] is None
    target = out["target"]
    np.testing.assert_allclose(target.sum(-1, dtype=np.float64), 1.0, atol=1e-6)
    z = np.linspace(float(loss.step["v_min"][0]), float(loss.step["v_max"][0]), loss.shape.atoms)
    rows = np.arange(loss.shape.batch)
    p_next = np.stack([softmax(x[rows, out["next_action"][:, b]]) for b, x in enumerate(loss.combined(2))], axis=1)
    expected = np.asarray(oracle.project(p_next, loss.ret.astype(np.float64), loss.discount.astype(np.float64), z))
    # b = (r + g z - v_min) / dz is rounded in f32: N eps of an atom
    np.testing.assert_allclose(target, expected, atol=3e-7 * loss.shape.atoms)


@pytest.mark.parametrize("atoms", [2, 3, 11, 51, 256])
def test_targets_on_every_atom_between_and_beyond_both_ends(runtime: Runtime, atoms: int) -> None:
    """Terminal rows whose return is each atom, each midpoint, near both, and beyond the ends."""
    z = np.linspace(-2.0, 3.0, atoms)
    middle = (z[1:] + z[:-1]) / 2
    ret = np.concatenate([z, middle, z * (1 + 1e-6), middle + 1e-3, [-2.001, 3.001, -1e30, 1e30, 0.0]]).astype(
        np.float32
    )
    loss = Loss.make(len(ret), (2,), atoms)
    loss.ret, loss.discount = ret, np.zeros(len(ret), np.float32)
    out = loss.run(runtime)
    check_projection(loss, out)
    on_atom = out["target"][:atoms, 0]
    np.testing.assert_allclose(on_atom, np.eye(atoms), atol=1e-6 * atoms)
    edge = out["target"][-5:-1, 0]
    np.testing.assert_allclose(edge[[0, 2], 0], 1.0, atol=1e-6)
    np.testing.assert_allclose(edge[[1, 3], -1], 1.0, atol=1e-6)


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.5, 0.03, 1e-20, 0.0])
@pytest.mark.parametrize("branches", [(4,), (3, 2), (2, 5, 3, 1, 2)])
def test_projection_shrinks_and_shifts_like_rlax(runtime: Runtime, discount: float, branches: tuple[int, ...]) -> None:
    loss = Loss.make(13, branches, 21, seed=len(branches))
    loss.discount = np.full(13, discount, np.float32)
    loss.ret = np.linspace(-7.0, 8.0, 13).astype(np.float32)
    check_projection(loss, loss.run(runtime))


def test_of_equal_actions_the_first_is_greedy(runtime: Runtime) -> None:
    loss = Loss.make(6, (5, 3), 7)
    loss.logits[1, :, 7:] = loss.logits[1, :, 7:8]  # all advantages alike
    assert not loss.run(runtime)["next_action"].any()


def test_online_network_chooses_and_target_network_values(runtime: Runtime) -> None:
    loss = Loss.make(31, (4, 6), 15)
    out = loss.run(runtime)
    z = np.linspace(-2.0, 3.0, 15)
    for b, x in enumerate(loss.combined(1)):
        np.testing.assert_array_equal(out["next_action"][:, b], (softmax(x) * z).sum(-1).argmax(-1))


def test_head_gradient_is_the_chain_rule_of_the_dueling_combination(runtime: Runtime) -> None:
    """V's gradient sums over branches, A's sums to zero over a branch's actions, pads are zero."""
    loss = Loss.make(12, (3, 4), 9)
    out = loss.run(runtime, budget=1e6)
    n, d = 9, out["dlogits"].astype(np.float64)
    taken = out["ce_grad"].astype(np.float64) + out["mse_grad"]
    np.testing.assert_allclose(d[:, :n], taken.sum(1), atol=1e-8)
    choice = oracle.choices(loss.action, (3, 4))
    at = n
    for b, size in enumerate((3, 4)):
        a = d[:, at : at + size * n].reshape(-1, size, n)
        np.testing.assert_allclose(a.sum(1), 0.0, atol=1e-7)
        np.testing.assert_allclose(a[np.arange(12), choice[:, b]], taken[:, b] * (1 - 1 / size), atol=1e-8)
        at += size * n
    assert not d[:, at:].any()
    np.testing.assert_allclose(
        out["dlogits"], loss.run(runtime)["dlogits"], rtol=1e-5, atol=2e-8
    )  # one launch, not two


@pytest.mark.parametrize("batch", [8, 300])
@pytest.mark.parametrize("budget", [1e-3, 0.02, 10.0])
def test_budget_bounds_each_part_after_the_blend(runtime: Runtime, budget: float, batch: int) -> None:
    loss = Loss.make(batch, (3, 4), 9)
    out = loss.run(runtime, budget=budget)
    ce, mse = (out[name].astype(np.float64) for name in ("ce_grad", "mse_grad"))
    norms = np.linalg.norm(ce), np.linalg.norm(mse)
    scale = min(1.0, 0.7 * budget / norms[0]), min(1.0, budget / norms[1])
    expected = (scale[0] * ce + scale[1] * mse).sum(1)
    np.testing.assert_allclose(out["dlogits"][:, :9], expected, rtol=2e-5, atol=1e-9)
    stats = out["rows"].sum(0, dtype=np.float64)
    assert np.sqrt(stats[abi.constant("STAT_CE_NORM2")]) == pytest.approx(norms[0], rel=1e-5)
    assert np.sqrt(stats[abi.constant("STAT_MSE_NORM2")]) == pytest.approx(norms[1], rel=1e-5)


def test_importance_weight_of_the_least_likely_row_is_one(runtime: Runtime) -> None:
    loss = Loss.make(40)
    weight = loss.run(runtime)["rows"][:, abi.constant("STAT_WEIGHT")]
    np.testing.assert_allclose(weight, (loss.priority.min() / loss.priority) ** 0.5, rtol=1e-6)
    assert weight.max() == 1.0


# ---------------------------------------------------------------------- the guard (known failure K11)


def planted(cause: str) -> Loss:
    loss = Loss.make(9, (3, 2), 11)
    row = 4
    match cause:
        case "NaN logit, taken action":
            loss.logits[0, row, 0] = np.nan
        case "NaN logit, another action":
            loss.logits[1, row, 11 * 4 + 3] = np.nan
        case "NaN logit, target network":
            loss.logits[2, row, 2] = np.nan
        case "infinite logit":
            loss.logits[0, row, 1] = np.inf
        case "NaN return":
            loss.ret[row] = np.nan
        case "infinite return":
            loss.ret[row] = np.inf
        case "support changed under a stale spacing":
            loss.step["delta_z"] *= 4.0
        case "nothing drawn":
            loss.priority[row] = 0.0
    return loss


@pytest.mark.parametrize(
    ("cause", "check"),
    [
        ("NaN logit, taken action", "non_finite"),
        ("NaN logit, another action", "non_finite"),
        ("NaN logit, target network", "non_finite"),
        ("infinite logit", "non_finite"),
        ("NaN return", "non_finite"),
        ("infinite return", "non_finite"),
        ("support changed under a stale spacing", "q_range"),
        ("nothing drawn", "empty"),
    ],
)
def test_planted_cause_is_caught(runtime: Runtime, cause: str, check: str) -> None:
    finding = planted(cause).run(runtime)["finding"]
    assert isinstance(finding, Finding)
    assert (finding.child, finding.check) == ("ddqn", check)
    assert finding.element == 4 or cause.startswith("support")
    if check == "non_finite":
        assert not np.isfinite(finding.value)
    if check == "q_range":
        assert abs(finding.value) > 3.0


def test_checks_at_their_limits(runtime: Runtime) -> None:
    """What no input can bring the loss to compute: mass beside 1, a positive log-probability, |Q| beyond the support,
    probabilities that do not sum to 1 (in bf16 they are off by 1e-3)."""
    good = (1.0, -1.0, 2.0)
    sums = {
        (1.0, 0.0): None, (1.00009, 0.0): None, (0.99991, -4.0): None, (1.003, 3e4): None, (np.nan, 0.0): "non_finite",
        (1.00012, 0.0): "probabilities", (0.994, 3.9): "probabilities", (0.0, 0.0): "probabilities",
        (1.003, 2e4): "probabilities",
    }  # fmt: skip
    values = {
        good: None, (1 + 9e-7, 9e-7, -2.00001): None, (1 - 9e-7, -1e4, 0.0): None,
        (1 + 2e-6, -1.0, 0.0): "mass", (1 - 2e-6, -1.0, 0.0): "mass", (0.0, -1.0, 0.0): "mass", (np.nan, -1.0, 0.0): "non_finite",
        (1.0, 2e-6, 0.0): "log_probability", (1.0, np.nan, 0.0): "non_finite", (1.0, np.inf, 0.0): "non_finite",
        (1.0, 0.0, 2.0001): "q_range", (1.0, 0.0, -1e30): "q_range", (1.0, 0.0, np.nan): "non_finite",
        (1.0, 0.0, -np.inf): "non_finite", (2.0, 0.0, 5.0): "mass",
    }  # fmt: skip
    cases = [((*given, 1.0, 0.0), check) for given, check in values.items()]
    cases += [((*good, *given), check) for given, check in sums.items()]
    columns = np.array([given for given, _ in cases], np.float32).T
    mass, log_p, q, total, log_sum = (runtime.array(column, "test.guard_probe") for column in columns)
    guard = runtime.array(np.array([(CLEAR,)] * len(cases), abi.dtype("guard_block")), "test.guard")
    runtime.ungraphed("test.guard").launch("guard_probe", (1,), (32,), dict(
        mass=mass, log_probability=log_p, q=q, probabilities=total, log_sum=log_sum, guard=guard, z_max=2.0,
        n=len(cases)))  # fmt: skip
    for i, (key, (given, check)) in enumerate(zip(guard.to_numpy()["key"], cases, strict=True)):
        finding = decode(int(key))
        assert (finding and finding.check) == check, given
        assert finding is None or (finding.child, finding.element) == ("ddqn", i)


def test_no_planted_cause_no_finding(runtime: Runtime) -> None:
    """Extreme but legal inputs: logits of +-1e4, returns far outside, a terminal row."""
    loss = Loss.make(9, (3, 2), 11)
    loss.logits *= 1e4
    loss.ret *= 1e6
    loss.discount[3] = 0.0
    out = loss.run(runtime)
    assert out["finding"] is None
    assert np.isfinite(out["dlogits"]).all() and np.isfinite(out["rows"]).all()


def test_statistics_keep_nan(runtime: Runtime) -> None:
    """A maximum over NaN is NaN, not the seed of the reduction (-1e30 was reported as a Q-value)."""
    rows = planted("NaN logit, taken action").run(runtime)["rows"]
    assert np.isnan(rows[4, [abi.constant("STAT_Q_MIN"), abi.constant("STAT_Q_MAX")]]).all()


@pytest.mark.parametrize(
    ("branches", "atoms"), [((), 51), ((2,) * 9, 51), ((256,), 51), ((0,), 51), ((2,), 1), ((2,), 257)]
)
def test_impossible_shapes_are_refused(branches: tuple[int, ...], atoms: int) -> None:
    with pytest.raises(ddqn.BranchError):
        ddqn.LossShape(4, branches, atoms)
