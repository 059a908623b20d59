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
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn import NetworkLayout
from foxhunt_rt.dqn.blocks import BlockInputs, BlockWorkspace
from foxhunt_rt.dqn.children import temporal
from foxhunt_rt.dqn.children.causal import Causal
from foxhunt_rt.dqn.children.temporal import MambaBlock, Temporal
from foxhunt_rt.graph.child import KernelOp
from foxhunt_rt.replay import Windows

from .. import feature_harness as harness
from .. import oracle
from ..mamba_oracle import mamba
from ..test_blocks import reference_with_blocks
from ..test_whole_step import CASES, Case, Taken, batch_of, settings_of, take_step
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


@pytest.mark.timeout(400)  # JAX compiles for seconds, on a busy machine for minutes
@pytest.mark.parametrize(("case", "settings"), [
    (CASES[1], SMALL),
    pytest.param(CASES[3], (*ON, "network.window=1", "temporal.conv=1"), marks=pytest.mark.slow),
    pytest.param(CASES[7], (*SMALL, "network.window=9", "temporal.heads=1"), marks=pytest.mark.slow),
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
    assert all(
        np.abs(expected.gradient[f"temporal.{t}"]).max() > 0.0 for t in ("in_proj", "z_proj", "out_proj", "d", "norm")
    )
    assert not flat[layout.pads()].any()
    if case is CASES[1]:
        result = learner.graph.verify(steps=2)
        assert result.bitwise_equal, str(result)
        assert not learner.graph.verify(steps=1, plant="adam_grad.temporal").bitwise_equal
    learner.close()


def scan_of(layout: Any, block: MambaBlock, flat: Any, states: Any, length: Any, rt: Runtime) -> Any:
    """The block's output by its kernels, f64."""
    windows = Windows.allocate(rt, len(states), block.window, layout.state_padded, "windows")
    padded = np.zeros(windows.states.shape, np.float32)
    padded[..., : layout.state_dim] = states
    windows.states.copy_from(padded)
    windows.length.copy_from(length)
    x = rt.array(np.ascontiguousarray(padded[:, -1]), "x")
    work = BlockWorkspace.create(rt, layout, block, len(states), 1, "work")
    block.record(rt.ungraphed("test.temporal"), layout, flat, None, [BlockInputs(x, windows)], work)  # type: ignore[arg-type]
    out = work.out.to_numpy()[0]  # type: ignore[attr-defined]
    assert not out[:, layout.state_dim :].any()
    return out[:, : layout.state_dim].astype(np.float64)


def layout_of(state_dim: int, settings: tuple[str, ...]) -> tuple[Any, MambaBlock]:
    config = Config().with_set(settings)
    extension = Temporal(config.temporal)
    plain = NetworkLayout(state_dim, (5,), (2,), 3)
    block = extension.block(config)
    return dataclasses.replace(plain, groups=tuple(extension.parameters(plain)), blocks=(block,)), block


@pytest.mark.parametrize(("state_dim", "settings"), [
    (1, (*ON, "network.window=1", "temporal.heads=1", "temporal.head_dim=1", "temporal.state_dim=1", "temporal.conv=1")),
    (33, (*ON, "network.window=33", "temporal.heads=7", "temporal.head_dim=3", "temporal.state_dim=17", "temporal.conv=5")),
    (48, ON), (20, (*ON, "network.window=3", "temporal.conv=8")),
])  # fmt: skip
def test_the_scan_is_the_recurrence(runtime: Runtime, state_dim: int, settings: tuple[str, ...]) -> None:
    """Every length of a window, masked and full."""
    layout, block = layout_of(state_dim, settings)
    random = np.random.default_rng(state_dim)
    tensors = layout.init(3)
    tensors["temporal.dt_bias"] += 4.0  # steps that matter
    length = np.arange(1, block.window + 1, dtype=np.int32)
    states = random.normal(size=(block.window, block.window, state_dim)).astype(np.float32)
    states[np.arange(block.window) < block.window - length[:, None]] = 0.0
    theta = runtime.array(layout.pack(tensors), "theta")
    found = scan_of(layout, block, theta, states, length, runtime)
    p = {k: v.astype(np.float64) for k, v in tensors.items()}
    sizes = dict(heads=block.heads, head_dim=block.head_dim, state_dim=block.state_dim, conv=block.conv)
    wide = states.astype(np.float64)
    expected = np.asarray(jax.jit(partial(mamba, **sizes))(p, (wide, length), wide[:, -1]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    assert np.abs(expected - states[:, -1]).max() > 0.02
    if block.window > 1:  # the oldest state that is held counts
        other = states.copy()
        other[-1, 0] += 1.0
        changed = scan_of(layout, block, theta, other, length, runtime)
        np.testing.assert_array_equal(changed[:-1], found[:-1])
        assert np.abs(changed[-1] - found[-1]).max() > 0.0


def test_finite_differences(runtime: Runtime) -> None:
    """The gradient that adam_grad makes is that of the loss: along a random direction of the block's parameters."""
    taken = take_step(runtime, dataclasses.replace(CASES[1], settings=(*CASES[1].settings, *SMALL)))
    learner, layout = taken.learner, taken.learner.layout
    params = {k: v.astype(np.float64) for k, v in layout.unpack(taken.before["theta"]).items()}
    before, _ = windows_of(taken.rows, learner.batch.index.to_numpy(), learner.config.replay.n_step, 5)
    settings, batch = dataclasses.replace(settings_of(taken), blocks=(block_of(taken),)), batch_of(taken)
    assert learner.ddqn.target is not None
    target = learner.ddqn.target.to_numpy().astype(np.float64)  # type: ignore[attr-defined]
    choices = oracle.choices(batch.action, settings.branches)

    @jax.jit
    def loss(p: Any) -> Any:
        return sum(oracle.parts(oracle.taken_logits(p, before, choices, settings), target, batch.weight, settings))

    random, h = np.random.default_rng(0), 1e-4
    direction = {k: random.normal(size=v.shape) for k, v in params.items() if k.startswith("temporal.")}
    up, down = (float(loss({k: v + sign * h * direction.get(k, 0.0) for k, v in params.items()})) for sign in (1, -1))
    gradient = layout.unpack(learner.grad.grad.to_numpy())  # type: ignore[attr-defined]
    along = sum(float((gradient[k] * d).sum()) for k, d in direction.items())
    assert (up - down) / (2 * h) == pytest.approx(along, rel=2e-3)
    learner.close()


def test_off_adds_nothing_and_on_adds_parts(runtime: Runtime) -> None:
    off, on = harness.footprint(runtime, ("network.window=7",)), harness.footprint(runtime, SMALL)
    assert off == harness.footprint(runtime, ())
    assert on.children - off.children == {
        "per_sample.windows", "forward.temporal_past", "forward.temporal_gate", "forward.temporal", "adam_grad.temporal",
        "adam_grad.temporal_gate", "adam_grad.temporal_past", "adam_grad.temporal_metrics"}  # fmt: skip
    assert (
        not {("adam_grad.temporal_gate", "adam_grad.temporal"), ("per_sample.windows", "forward.temporal_gate")}
        & on.edges
    )
    assert {("adam_grad.temporal_gate", "adam_grad.temporal_past"), ("adam_grad.temporal_past", "adam")} <= on.edges
    assert on.nodes == off.nodes + 11 and on.bytes > off.bytes
    with Runtime(runtime.device.ordinal) as own:
        learner = harness.learner(own, SMALL, rows=False)
        by_name = {child.name: child for child in learner.graph.children}
        assert by_name["per_sample"].kernels + by_name["per_sample.windows"].kernels == ["per_sample", "replay_windows"]
        assert (
            by_name["forward.temporal_past"].kernels == by_name["forward.temporal_gate"].kernels == ["linear_forward"]
        )
        assert by_name["forward.temporal"].kernels == ["mamba_scan", "linear_forward"]
        assert by_name["adam_grad.temporal"].kernels == ["linear_backward", "mamba_scan_backward"]
        assert by_name["adam_grad.temporal_past"].kernels == ["linear_backward", "grad_reduce"]
        learner.close()


def test_resume_and_reset(runtime: Runtime) -> None:
    harness.check_resume(runtime, (*SMALL, "iql.enabled=true"), before=4, after=3)
    harness.check_reset(runtime, SMALL, steps=3)
    harness.check_refused(runtime, (*SMALL, "temporal.heads=3"), ((*SMALL, "temporal.heads=2"), r"temporal\.heads"))


def test_metrics_move_with_their_causes(runtime: Runtime) -> None:
    """A louder out_proj raises the ratio, a faster decay lowers the memory, shorter episodes the length; none the others."""

    def measured(name: str = "temporal.d", factor: float = 1.0, more: float = 0.0,
                 case: Case = harness.CASE) -> dict[str, float]:  # fmt: skip
        def prepare(learner: Any) -> None:
            tensors = learner.params()
            tensors[name] = tensors[name] * np.float32(factor) + np.float32(more)
            learner.load_params(tensors)

        taken = take_step(runtime, dataclasses.replace(case, settings=(*case.settings, *SMALL)), prepare)
        found = {metric: float(taken.record[metric]) for metric in Temporal.metrics}
        taken.learner.close()
        return found

    plain = measured()
    assert (
        plain["temporal_ratio"] > 0.0
        and 0.0 < plain["temporal_memory"] < 1.0
        and 0.2 <= plain["temporal_length"] <= 1.0
    )
    louder = measured("temporal.out_proj", 3.0)
    assert louder["temporal_ratio"] == pytest.approx(3.0 * plain["temporal_ratio"], rel=1e-4)
    assert measured("temporal.out_proj", 0.0)["temporal_ratio"] == 0.0
    faster = measured("temporal.a_log", 1.0, 7.0)
    assert (
        faster["temporal_memory"] < 0.7 * plain["temporal_memory"]
        and faster["temporal_length"] == plain["temporal_length"]
    )
    shorter = measured(case=dataclasses.replace(harness.CASE, terminal_share=0.6))
    assert (
        shorter["temporal_length"] < 0.7 * plain["temporal_length"]
        and shorter["temporal_memory"] < plain["temporal_memory"]
    )


@pytest.mark.parametrize(("settings", "tile"), [(SMALL, 2), ((*SMALL, "temporal.conv=4", "network.window=7"), 5),
                                                ((*SMALL, "temporal.conv=5"), 1)])  # fmt: skip
def test_windows_in_tiles(
    runtime: Runtime, settings: tuple[str, ...], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit in shared memory goes through tile by tile, with the same gradients; also where a tile is shorter than
    the convolution's reach."""

    def gradient(floats: int | None = None) -> dict[str, npt.NDArray[np.float32]]:
        if floats is not None:
            monkeypatch.setattr(temporal, "_SHARED_FLOATS", floats)
        taken = take_step(runtime, dataclasses.replace(CASES[1], settings=(*CASES[1].settings, *settings)))
        launch = next(op for child in taken.learner.graph.plan.children for op in child.ops
                      if op.name == "mamba_scan_backward")  # fmt: skip
        assert isinstance(launch, KernelOp)
        assert launch.fields["tile"] == (launch.fields["L"] if floats is None else tile)
        found = taken.learner.layout.unpack(taken.learner.grad.grad.to_numpy())
        taken.learner.close()
        return found

    layout, block = layout_of(CASES[1].state_dim, settings)
    whole = gradient()
    row = block.sizes["Cp"] + 1
    least = next(n for n in range(1, 1 << 14) if _fits(block, layout, n, monkeypatch))
    tiled = gradient(least + 2 * row * (tile - 1))
    for name, array in whole.items():
        scale = float(np.abs(array).max())
        np.testing.assert_allclose(tiled[name], array, rtol=1e-4, atol=2e-5 * scale, err_msg=name)


def _fits(block: MambaBlock, layout: Any, floats: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(temporal, "_SHARED_FLOATS", floats)
        try:
            return block.tile(layout, backward=True)[0] >= 1
        except ConfigError:
            return False


def test_shared_memory_is_refused_beyond_what_every_device_has(runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match="shared memory.*lower"):
        harness.learner(runtime, (*ON, "network.window=256", "temporal.heads=64"), rows=False)


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_an_intervention_is_on_every_state_of_the_window(runtime: Runtime, reference: str) -> None:
    """causal: |Q(do) - Q| of the first intervention, by the oracle on the windows that the step drew."""
    learner = harness.learner(runtime, (*SMALL, "causal.enabled=true", "causal.period=1", "causal.groups=3,4", "causal.rows=9",
                                        f"causal.reference={reference}"))  # fmt: skip
    learner.step()  # step 0 is not due
    params = {k: v.astype(np.float64) for k, v in learner.params().items()}
    learner.step()
    learner.drain()
    assert learner.batch.window is not None
    size, loss, case = harness.CASE.state_dim, learner.config.loss, harness.CASE
    states = learner.batch.window.states.to_numpy()[:9, :, :size].astype(np.float64)
    length = learner.batch.window.length.to_numpy()[:9]
    c = learner.config.temporal
    block = partial(mamba, heads=c.heads, head_dim=c.head_dim, state_dim=c.state_dim, conv=c.conv)
    settings = oracle.Settings(case.branches, case.atoms, loss.v_min, loss.v_max, 0.0, 0.0, 0.0, blocks=(block,))

    def q(windows: Any) -> Any:
        p = [jax.nn.softmax(logits, axis=-1) for logits in oracle.forward(params, (windows, length), settings)]
        return np.concatenate([np.asarray((x * settings.z).sum(-1)) for x in p], axis=1)

    held = (np.arange(states.shape[1]) >= states.shape[1] - length[:, None])[..., None]
    found = harness.extension(learner, Causal).importance.to_numpy()
    for group, columns in enumerate((slice(0, 3), slice(3, 7))):
        changed = states.copy()
        changed[..., columns] = held * (states[:, -1, columns].mean(0) if reference == "mean" else 0.0)
        assert found[group] == pytest.approx(np.abs(q(changed) - q(states)).mean(), rel=2e-4)
    learner.close()
