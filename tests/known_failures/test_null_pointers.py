"""Known failure K5: a null pointer reached a kernel that used it, and the illegal address that followed hid the cause.

A pointer is required unless the ABI header marks it optional, and then the kernel must guard it. Here the optional pointers
of kernels whose product code always gives them are null, and the other outputs must be the same bits as with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime, abi
from foxhunt_rt.dqn.guard import CLEAR
from foxhunt_rt.kernels import ArgumentError

N = 1024


def select_actions(rt: Runtime, without: str | None) -> dict[str, npt.NDArray[Any]]:
    rows, atoms, actions = 5, 7, 4
    width = abi_padded((1 + actions) * atoms)
    logits = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    control = np.zeros(1, abi.dtype("control_block"))
    control["v_min"], control["v_max"] = -1.0, 1.0
    buffers = {
        "logits": rt.array(logits, "logits"),
        "control": rt.array(control, "control"),
        "explore": rt.zeros(1, abi.dtype("explore_block"), "explore"),
        "draws": rt.zeros(rows, np.uint64, "draws"),
        "guard": guard(rt),
        "q": rt.zeros((rows, actions), np.float32, "q"),
        "action": rt.zeros(rows, np.int32, "action"),
    }
    sizes = {
        "branch_sizes": actions,
        "R": rows,
        "K": 1,
        "S": actions,
        "N": atoms,
        "Np": width,
        "more": None,
        "Mp": 0,
        "E": 0,
    }
    return launch(rt, "select_actions", (rows,), buffers, sizes, without, ("action", "draws"))


def adam_update(rt: Runtime, without: str | None) -> dict[str, npt.NDArray[Any]]:
    random = np.random.default_rng(1)
    step = np.zeros(1, abi.dtype("step_block"))
    for name, value in {"lr": 0.1, "tau": 0.5, "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_eps": 1e-8, "bias1": 0.1,
                        "bias2": 0.01, "momentum_factor": 1.0, "max_grad_norm": 1.0}.items():  # fmt: skip
        step[name] = value
    buffers = {name: rt.array(random.normal(size=N).astype(np.float32) ** 2, name)
               for name in ("theta", "target", "m", "v", "grad")}  # fmt: skip
    buffers["norm_part"] = rt.array(np.array([np.inf if without == "guard" else 4.0]), "norm_part")
    buffers |= {
        "step": rt.array(step, "step"),
        "stats": rt.zeros(1, abi.dtype("optim_stats"), "stats"),
        "guard": guard(rt),
    }
    buffers["groups"] = rt.array(np.array([(0, 0, 0, 1, 1.0, 0.0)], abi.dtype("optim_group")), "groups")
    sizes = {"n": N, "n_decay": 0, "parts": 1, "per_block": 256, "groups_n": 1}
    return launch(rt, "adam_update", (4,), buffers, sizes, without, ("theta", "m", "v", "stats"))


def guard(rt: Runtime) -> Any:
    return rt.array(np.array([(CLEAR,)], abi.dtype("guard_block")), "guard")


def abi_padded(width: int) -> int:
    return -(-width // 16) * 16


def launch(rt: Runtime, kernel: str, grid: tuple[int, ...], buffers: dict[str, Any], sizes: dict[str, Any],
           without: str | None, outputs: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    given = buffers | ({without: None} if without else {})
    rt.ungraphed("test.null_pointers").launch(kernel, grid, (128,), {**given, **sizes})
    out = {name: buffers[name].to_numpy() for name in outputs}
    for buffer in buffers.values():
        buffer.free()
    return out


@pytest.mark.parametrize(
    ("run", "pointer"),
    [
        (select_actions, "q"),
        (select_actions, "guard"),
        (adam_update, "target"),
        (adam_update, "guard"),
        (adam_update, "groups"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_optional_pointers_may_be_null(runtime: Runtime, run: Any, pointer: str) -> None:
    left_out = run(runtime, pointer)
    if (run, pointer) == (adam_update, "guard"):  # the norm is infinite, so that the guard would be told
        assert left_out["stats"]["skipped"][0] == 1 and (left_out["m"] == run(runtime, pointer)["m"]).all()
        return
    for name, array in run(runtime, None).items():
        assert array.tobytes() == left_out[name].tobytes(), name


@pytest.mark.parametrize("pointer", ["x1", "x2", "w_target", "bias_target"])
def test_a_pointer_that_some_launches_need_is_refused_where_it_is_needed(runtime: Runtime, pointer: str) -> None:
    """The input and the weights of the third pass are read where there are three passes, and there alone."""
    rows, width = 4, 16
    buffers = {name: runtime.zeros(shape, np.float32, name) for name, shape in {
        "x0": (rows, width), "x1": (rows, width), "x2": (rows, width), "w": (width, width), "bias": (width,),
        "w_target": (width, width), "bias_target": (width,), "y": (3, rows, width)}.items()}  # fmt: skip
    sizes = {
        "passes": 3,
        "R": rows,
        "K": width,
        "Kp": width,
        "Np": width,
        "relu": 0,
        "residual": 0,
        "block_rows": rows,
        "block_cols": width,
    }
    launched = runtime.ungraphed("test.null_pointers")
    with pytest.raises(ArgumentError, match=rf"^linear_forward\({pointer}\): None, but the launch touches"):
        launched.launch("linear_forward", (1, 1, 3), (128,), {**buffers, **sizes, pointer: None})
    alone = {**buffers, **sizes, "passes": 1, "x1": None, "x2": None, "w_target": None, "bias_target": None}
    launched.launch("linear_forward", (1, 1, 1), (128,), alone)
    runtime.synchronize()
