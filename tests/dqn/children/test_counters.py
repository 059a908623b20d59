"""counters against closed forms: every schedule at its start, inside, at the horizon and beyond; restarts; Adam's t."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime, abi
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.children import counters
from foxhunt_rt.dqn.schedule import Control, control_block
from foxhunt_rt.kernels import ArgumentError

ATOMS = 51


def latch(rt: Runtime, config: Config, step: int, alpha_c51: float = 0.3) -> tuple[Any, Any]:
    """Runs counters once at a step; returns the step block and the train state after it."""
    control = rt.array(control_block(config, seed=7, alpha_c51=alpha_c51), "control")
    state = rt.array(np.array([(step, 1000 + step, step)], abi.dtype("train_state")), "state")
    block = rt.zeros(1, abi.dtype("step_block"), "step")
    counters.record(rt.ungraphed("test.counters"), counters.CountersInputs(control),  # type: ignore[arg-type]
                    counters.CountersBuffers(state, block), ATOMS)  # fmt: skip
    result = block.to_numpy()[0], state.to_numpy()[0]
    for buffer in (control, state, block):
        buffer.free()
    return result


def config(*assignments: str) -> Config:
    return Config().with_set(["optim.horizon=100", "optim.lr=1e-2", "optim.lr_min=1e-4", "optim.tau_start=0.5",
                              "optim.tau_end=0.1", *assignments])  # fmt: skip


@pytest.mark.parametrize("step", [0, 1, 37, 50, 99, 100, 101, 10_000, 2**40])
def test_schedules(runtime: Runtime, step: int) -> None:
    c = config("replay.beta_start=0.4", "replay.beta_end=0.9")
    block, _ = latch(runtime, c, step)
    progress = min(step, 100) / 100
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    assert block["tau"] == pytest.approx(0.1 + 0.4 * cosine, rel=1e-6)
    assert block["lr"] == pytest.approx(1e-4 + (1e-2 - 1e-4) * cosine, rel=1e-6, abs=1e-9)
    assert block["beta_per"] == pytest.approx(0.4 + 0.5 * progress, rel=1e-6)
    assert block["momentum_factor"] == 1.0


@pytest.mark.parametrize(
    ("step", "phase", "restarts"),
    [(0, 0.0, False), (1, 1 / 30, False), (29, 29 / 30, False), (30, 0.0, True), (45, 0.5, False), (60, 0.0, True),
     (99, 9 / 30, False), (100, 10 / 30, False), (500, 10 / 30, False)],
)  # fmt: skip
def test_warm_restarts(runtime: Runtime, step: int, phase: float, restarts: bool) -> None:
    block, _ = latch(runtime, config("optim.restart_period=30", "optim.restart_momentum=0.25"), step)
    assert block["lr"] == pytest.approx(1e-4 + (1e-2 - 1e-4) * 0.5 * (1 + math.cos(math.pi * phase)), rel=1e-6)
    assert block["momentum_factor"] == (0.25 if restarts else 1.0)


@pytest.mark.parametrize("step", [50, 100, 101, 10_000])
def test_no_restart_at_the_horizon(runtime: Runtime, step: int) -> None:
    block, _ = latch(runtime, config("optim.restart_period=50", "optim.restart_momentum=0.25"), step)
    assert block["lr"] == pytest.approx(1e-2 if step == 50 else 1e-4, rel=1e-6)
    assert block["momentum_factor"] == (0.25 if step == 50 else 1.0)


@pytest.mark.parametrize("t", [1, 2, 10, 1000, 100_000])
def test_bias_correction_keeps_its_digits(runtime: Runtime, t: int) -> None:
    block, state = latch(runtime, config(), t - 1)
    assert state["adam_step"] == t
    for name, beta in (("bias1", np.float32(0.9)), ("bias2", np.float32(0.999))):
        assert block[name] == pytest.approx(-math.expm1(t * math.log(float(beta))), rel=5e-7)


def test_counters_advance_by_one_and_the_block_holds_the_step_itself(runtime: Runtime) -> None:
    block, state = latch(runtime, config(), 41)
    assert (block["step"], block["rng_step"], block["seed"]) == (41, 1041, 7)
    assert (state["step"], state["rng_step"], state["adam_step"]) == (42, 1042, 42)
    assert block["started_ns"] > 0
    assert block["min_priority"] == np.float32(np.inf).view(np.uint32)


def test_settings_are_latched(runtime: Runtime) -> None:
    c = config("loss.v_min=-3", "loss.v_max=7", "loss.gamma=0.9", "loss.grad_budget=2", "replay.alpha=0.7",
               "replay.eps=0.01", "optim.weight_decay=0.1", "loss.reward_scale=3", "guard.spike_mass=0.8")  # fmt: skip
    block, _ = latch(runtime, c, 0, alpha_c51=0.6)
    expected = {"v_min": -3, "v_max": 7, "delta_z": 10 / (ATOMS - 1), "gamma": 0.9, "grad_budget": 2, "alpha_per": 0.7,
                "eps_per": 0.01, "weight_decay": 0.1, "alpha_c51": 0.6, "q_clip": 0.95 * 7, "max_grad_norm": 10,
                "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": c.optim.eps, "reward_scale": 3, "spike_mass": 0.8,
                "label_smoothing": c.loss.label_smoothing, "alarm_edge_mass": c.guard.edge_mass,
                "alarm_spike_share": c.guard.spike_share, "alarm_atom_use": c.guard.atom_use}  # fmt: skip
    for name, value in expected.items():
        assert block[name] == np.float32(value), name
    latched = {"seed", "step", "rng_step", "adam_step", "started_ns", "lr", "tau", "beta_per", "bias1", "bias2",
               "momentum_factor", "min_priority", "due"}  # fmt: skip
    assert set(block.dtype.names) - latched == set(expected), "a new setting needs a line here"


def test_every_control_field_comes_from_the_configuration() -> None:
    """No field of the control block is left at zero by a forgotten line."""
    c = config("optim.restart_period=5", "optim.weight_decay=0.1", "loss.label_smoothing=0.1", "loss.v_min=-1",
               "loss.grad_budget=1", "optim.restart_momentum=0.5", "vaccine.enabled=true", "causal.enabled=true")  # fmt: skip
    block: npt.NDArray[Any] = control_block(c, seed=1, alpha_c51=0.5)
    for name in block.dtype.names or ():
        assert block[name][0] != 0, name


def test_a_change_is_applied_in_stream_order(runtime: Runtime) -> None:
    control = Control(runtime, config(), seed=3)
    control.set(lr=0.5, gamma=0.25, alpha_c51=0.75)
    block = control.buffer.to_numpy()
    assert (block["lr"][0], block["gamma"][0], block["alpha_c51"][0], block["seed"][0]) == (0.5, 0.25, 0.75, 3)
    np.testing.assert_array_equal(block, control_block(control.config, seed=3, alpha_c51=0.75))
    for name, value in {"lrr": 1.0, "gamma": 2.0, "alpha_c51": 1.5, "lr": float("nan")}.items():
        with pytest.raises(ConfigError):
            control.set(**{name: value})
    np.testing.assert_array_equal(control.buffer.to_numpy(), block)
    control.reset(9)
    np.testing.assert_array_equal(
        control.buffer.to_numpy(), control_block(config(), seed=9, alpha_c51=control.alpha_c51)
    )


def test_a_null_pointer_is_refused_before_the_launch(runtime: Runtime) -> None:
    """Known failure K5: a null rng_step reached the kernel, and the illegal address that followed hid the cause."""
    block = runtime.zeros(1, abi.dtype("step_block"), "step")
    control = runtime.zeros(1, abi.dtype("control_block"), "control")
    with pytest.raises(ArgumentError, match="state"):
        runtime.ungraphed("test.counters").launch(
            "counters", (1,), (32,), {"control": control, "state": None, "step": block, "N": 51}
        )
