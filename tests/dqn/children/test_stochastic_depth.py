"""Residual blocks and stochastic depth: masks by their distribution, the step by the oracle fed the masks (test_whole_step.py has
its cases), finite differences, and what stands around a library's products by NumPy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.children import forward
from foxhunt_rt.dqn.children.adam_grad import residual_gradient, sum_splits
from foxhunt_rt.dqn.layout import LayoutError, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

from .. import feature_harness as harness
from .. import oracle
from ..test_whole_step import (
    Case,
    Taken,
    batch_of,
    check_gradient,
    reference,
    settings_of,
    take_step,
)

RESIDUAL = ("network.residual=true", "network.hidden=16,16,16")
ON = (*RESIDUAL, "depth.enabled=true", "depth.drop=0.5")
CASE = Case("depth", 9, (18, 18, 18), (4, 2), 13, 41, ("network.residual=true", "depth.enabled=true", "depth.drop=0.5"))


@pytest.fixture(scope="module")
def taken(runtime: Runtime) -> Any:
    result = take_step(runtime, CASE)
    yield result
    result.learner.close()


def masks(rt: Runtime, settings: tuple[str, ...], steps: int) -> npt.NDArray[np.float32]:
    """Factors (steps, blocks, B) of a run."""
    learner = harness.learner(rt, settings)
    assert learner.depth is not None
    found = []
    for _ in range(steps):
        learner.step()
        learner.drain()
        found.append(learner.depth.to_numpy())
    learner.close()
    return np.array(found)


def test_masks_are_drawn_as_the_paper_has_it(runtime: Runtime) -> None:
    """Rates of each block within five deviations, independent of other blocks, rows and steps; what is kept counts 1/(1 - p)."""
    found = masks(runtime, (*RESIDUAL, "network.hidden=16,16,16,16", "depth.enabled=true", "depth.drop=0.6"), 150)
    steps, blocks, rows = found.shape
    assert blocks == 3
    for block in range(blocks):
        p = 0.6 * (block + 1) / blocks
        values = np.unique(found[:, block])
        assert values[0] == 0.0 and values[1] == pytest.approx(1.0 / (1.0 - p), rel=1e-6) and len(values) == 2
        kept = found[:, block] > 0.0
        deviation = np.sqrt(p * (1.0 - p) / kept.size)
        assert abs(kept.mean() - (1.0 - p)) < 5.0 * deviation, f"block {block}"
    kept = (found > 0.0).astype(float) - (found > 0.0).mean((0, 2), keepdims=True)
    bound = 5.0 / np.sqrt(steps * rows) * 0.25
    for what, one, other in (("blocks", kept[:, 0], kept[:, 1]), ("rows", kept[..., 1:], kept[..., :-1]),
                             ("rows of one Philox block and the next", kept[..., 4:], kept[..., :-4]),
                             ("steps", kept[1:], kept[:-1])):  # fmt: skip
        assert abs((one * other).mean()) < bound, f"{what} are not independent"


def test_masks_are_those_of_philox(runtime: Runtime) -> None:
    """Four rows to a block of four words. NumPy's Philox is the one of 64-bit words, so these come from Python's integers."""
    found = masks(runtime, ON, 3)
    learner = harness.learner(runtime, ON, rows=False)
    seed, rows = learner.config.train.seed, found.shape[2]
    learner.close()
    for step in range(3):
        for block in range(2):
            for row in (0, 1, 6, rows - 1):
                words = philox(seed, step, abi.constant("RNG_DEPTH"), block * -(-rows // 4) + row // 4)
                uniform = (words[row % 4] >> 8) / 2.0**24
                assert (found[step, block, row] > 0.0) == (uniform < np.float32(1.0 - 0.25 * (block + 1)))


def philox(seed: int, step: int, consumer: int, element: int) -> list[int]:
    """Philox4x32-10 of Salmon et al. 2011 in Python's integers."""
    word = 0xFFFFFFFF
    c = [step & word, step >> 32, consumer, element]
    k = [seed & word, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & word, (p >> 32) ^ c[3] ^ k[1], p & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c


def test_finite_differences_at_the_masks_of_the_step(taken: Taken) -> None:
    """The step's gradient by central differences of the loss in float64, masks held: the largest element of each tensor."""
    layout, settings, batch = taken.learner.layout, settings_of(taken), batch_of(taken)
    params = {name: t.astype(np.float64) for name, t in layout.unpack(taken.before["theta"]).items()}
    found = layout.unpack(taken.learner.grad.grad.to_numpy())
    assert taken.learner.depth is not None
    depth = taken.learner.depth.to_numpy().astype(np.float64)
    chosen, target, scales = (
        oracle.choices(batch.action, settings.branches),
        taken.reference.target,
        taken.reference.scales,
    )

    def loss(tensors: Any) -> float:
        logits = oracle.taken_logits(tensors, batch.state, chosen, settings, depth)
        ce, mse = oracle.parts(jnp.asarray(logits), target, batch.weight, settings)
        return float(scales[0] * ce + scales[1] * mse)

    for name in ("trunk.0.weight", "trunk.1.weight", "trunk.2.weight", "trunk.2.bias"):
        at = np.unravel_index(np.argmax(np.abs(found[name])), found[name].shape)
        step, sides = 1e-6, []
        for sign in (1.0, -1.0):
            moved = {**params, name: params[name].copy()}
            moved[name][at] += sign * step
            sides.append(loss(moved))
        assert found[name][at] == pytest.approx((sides[0] - sides[1]) / (2.0 * step), rel=1e-4), name


def test_zeroing_any_gradient_tensor_fails(taken: Taken) -> None:
    layout, flat = taken.learner.layout, taken.learner.grad.grad.to_numpy()
    check_gradient(taken, taken.reference, flat)
    for name in layout.unpack(flat):
        tensors = layout.unpack(flat)
        tensors[name][...] = 0.0
        with pytest.raises(AssertionError, match=name.replace(".", r"\.")):
            check_gradient(taken, taken.reference, layout.pack(tensors))


def test_masks_matter_and_are_online_on_s_alone(taken: Taken) -> None:
    """An oracle without masks must fail for the gradient; the logits of the other passes are those of the whole trunk."""
    learner, layout = taken.learner, taken.learner.layout
    without = oracle.loss(layout.unpack(taken.before["theta"]), layout.unpack(taken.before["target"]), batch_of(taken),
                          learner.ddqn.next_action.to_numpy(), settings_of(taken))  # fmt: skip
    with pytest.raises(AssertionError):
        check_gradient(taken, without, learner.grad.grad.to_numpy())
    logits, batch = learner.forward.logits.to_numpy(), batch_of(taken)  # type: ignore[attr-defined]
    assert learner.depth is not None
    depth = learner.depth.to_numpy().astype(np.float64)
    for p, (params, x, factors) in enumerate((("theta", batch.state, depth), ("theta", batch.next_state, None),
                                              ("target", batch.next_state, None))):  # fmt: skip
        tensors = {k: v.astype(np.float64) for k, v in layout.unpack(taken.before[params]).items()}
        for b, expected in enumerate(oracle.forward(tensors, x, settings_of(taken), np, factors)):
            np.testing.assert_allclose(dueling(logits[p], layout, b), expected, atol=2e-5, err_msg=f"pass {p}")


def dueling(logits: npt.NDArray[np.float32], layout: NetworkLayout, branch: int) -> npt.NDArray[np.float32]:
    """(B, n_b, N) of raw logits."""
    n, first = layout.atoms, layout.atoms * (1 + sum(layout.branches[:branch]))
    count = layout.branches[branch]
    advantage = logits[:, first : first + count * n].reshape(-1, count, n)
    combined: npt.NDArray[np.float32] = logits[:, None, :n] + advantage - advantage.mean(1, keepdims=True)
    return combined


def test_acting_and_evaluation_have_every_block(runtime: Runtime, taken: Taken) -> None:
    layout, rows = taken.learner.layout, 5
    tensors = layout.unpack(taken.before["theta"])
    x = np.random.default_rng(3).normal(size=(rows, layout.state_dim)).astype(np.float32)
    params = runtime.array(layout.pack(tensors), "theta")
    state = runtime.array(np.pad(x, ((0, 0), (0, layout.state_padded - layout.state_dim))), "x")
    work = forward.ForwardWorkspace.create(runtime, layout, rows, "policy")
    run(runtime, lambda child: forward.record_forward(child, layout, params, state, rows, work), [params, state],
        work.buffers())  # fmt: skip
    wide = {k: v.astype(np.float64) for k, v in tensors.items()}
    for b, expected in enumerate(oracle.forward(wide, x.astype(np.float64), settings_of(taken), np)):
        np.testing.assert_allclose(dueling(work.logits.to_numpy(), layout, b), expected, atol=2e-5)  # type: ignore[attr-defined]


def test_a_drop_of_zero_is_the_residual_network_bit_for_bit(runtime: Runtime) -> None:
    found = []
    for settings in (RESIDUAL, (*RESIDUAL, "depth.enabled=true", "depth.drop=0")):
        learner = harness.learner(runtime, settings)
        for _ in range(5):
            learner.step()
        learner.drain()
        found.append([getattr(learner.adam, name).to_numpy().tobytes() for name in ("theta", "target", "m", "v")])
        learner.close()
    assert found[0] == found[1]


def test_off_it_adds_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    plain = harness.footprint(runtime, ("network.hidden=16,16,16",))
    assert plain == harness.footprint(runtime, ("network.hidden=16,16,16", "depth.drop=0.7"))
    residual, on = harness.footprint(runtime, RESIDUAL), harness.footprint(runtime, ON)
    # a launch each way for each block, and one each way since the first two layers no longer share theirs
    assert residual.nodes == plain.nodes + 2 * 2 + 2 and residual.order == plain.order
    assert on.nodes == residual.nodes + 1 and on.children - residual.children == {"forward.depth"}
    shared = {module for module in plain.modules if not module.startswith(("linear_pair", "linear_backward_pair"))}
    assert on.bytes > residual.bytes > plain.bytes and on.modules > residual.modules > shared
    assert on.order.index("forward.depth") == on.order.index("forward") - 1


def test_all_ways_agree_bit_for_bit(taken: Taken) -> None:
    result = taken.learner.graph.verify(steps=3)
    assert result.bitwise_equal, str(result)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_fewer_bits(runtime: Runtime, precision: str) -> None:
    """Under hostsim by rounded operands, on a GPU by the library: as far off as without blocks (tests/dqn/test_precision.py)."""
    case = Case(precision, 20, (32, 32, 32), (4, 3), 21, 64,
                (*CASE.settings, f"network.precision={precision}", "network.choices=fresh"), alpha_c51=0.5)  # fmt: skip
    rounded = take_step(runtime, case)
    found, expected = rounded.learner.layout.unpack(rounded.learner.grad.grad.to_numpy()), reference(rounded).gradient
    errors = {n: float(np.linalg.norm(found[n] - ref) / np.linalg.norm(ref)) for n, ref in expected.items()}
    assert max(errors.values()) <= {"tf32": 6e-2, "bf16": 2e-1}[precision], errors
    if runtime.driver_kind == "hostsim" or precision == "bf16":  # tf32 may choose the f32 kernels on a GPU
        assert max(errors.values()) > 1e-6, "nothing was rounded"
    assert rounded.learner.graph.verify(steps=2).bitwise_equal
    rounded.learner.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])  # in fp32 our own kernels may be the faster ones
def test_blocks_by_the_library(runtime: Runtime, precision: str) -> None:
    large = Case(precision, 48, (256, 256, 256), (5, 3, 3, 3), 51, 512,
                 (*CASE.settings, f"network.precision={precision}", "network.choices=fresh", "replay.capacity=1024"),
                 environments=16, inserts=60, alpha_c51=0.5)  # fmt: skip
    step = take_step(runtime, large)
    products = step.learner.products
    assert any(products.forward) and any(products.backward), products
    found, expected = step.learner.layout.unpack(step.learner.grad.grad.to_numpy()), reference(step).gradient
    errors = {n: float(np.linalg.norm(found[n] - ref) / np.linalg.norm(ref)) for n, ref in expected.items()}
    assert max(errors.values()) <= {"tf32": 6e-2, "bf16": 2e-1}[precision], errors
    assert step.learner.graph.verify(steps=2).bitwise_equal
    step.learner.close()


def test_resume_and_reset(runtime: Runtime) -> None:
    harness.check_resume(runtime, ON)
    harness.check_reset(runtime, ON)


def test_the_metric_moves_with_the_share_that_is_kept(runtime: Runtime) -> None:
    """Planted: no block is ever left out, half of the last, nearly all of it. The share is that of the masks."""
    for drop in (0.0, 0.5, 0.95):
        records = harness.run(runtime, (*RESIDUAL, "depth.enabled=true", f"depth.drop={drop}"), 30)["depth_kept"]
        expected = 1.0 - drop * (1 + 2) / 2 / 2
        assert records.mean() == pytest.approx(expected, abs=0.05)
        assert (np.ptp(records) > 0.0) == (drop > 0.0)
    assert (masks(runtime, ON, 4) > 0.0).mean((1, 2)) == pytest.approx(harness.run(runtime, ON, 4)["depth_kept"])


def test_blocks_need_equal_widths_and_depth_needs_blocks() -> None:
    for assignments, text in ((["network.residual=true", "network.hidden=64,32,64"], "two equal widths in a row"),
                              (["network.residual=true", "network.hidden=64"], "two equal widths"),
                              (["depth.enabled=true"], "network.residual=true"),
                              (["depth.enabled=true", "depth.drop=1", "network.residual=true"], "below 1")):  # fmt: skip
        with pytest.raises(ConfigError, match=text):
            Config().with_set(assignments)
    assert Config().with_set(["depth.enabled=true", "network.residual=true"]).depth.enabled, "in any order"
    with pytest.raises(LayoutError, match="equal widths"):
        NetworkLayout(4, (8, 16), (2,), 5, residual=True)


def test_a_checkpoint_of_another_trunk_is_refused(runtime: Runtime) -> None:
    harness.check_refused(runtime, ON, ((*ON, "depth.drop=0.4"), "depth.drop is 0.5"), (RESIDUAL, "depth.enabled is True"),
                          (("network.hidden=16,16,16",), "network.residual is True"))  # fmt: skip


# ---------------------------------------------------------------- what stands around products

F32 = npt.NDArray[np.float32]
bf16 = ml_dtypes.bfloat16


def put(rt: Runtime, x: F32, kind: str) -> Buffer:
    return rt.array(x if kind == "f32" else x.astype(bf16).view(np.uint16).view(abi.bf16), "x")


def get(buffer: Buffer) -> F32:
    found: npt.NDArray[Any] = buffer.to_numpy()  # type: ignore[attr-defined]
    return found.view(np.uint16).view(bf16).astype(np.float32) if found.dtype == abi.bf16 else found


def run(rt: Runtime, record: Any, reads: list[Buffer], writes: list[Buffer]) -> None:
    plan = rt.plan("rows")
    with plan.child("rows", reads=reads, writes=writes) as child:
        record(child)
    step = plan.build(ungraphed=False)
    step.launch()
    step.close()


def normal(kind: str, shape: tuple[int, ...], seed: int) -> F32:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return x if kind == "f32" else x.astype(bf16).astype(np.float32)


def same(kind: str, found: F32, expected: npt.NDArray[np.float64], terms: npt.NDArray[np.float64]) -> None:
    """Within a rounding or two of f32, and one of bf16."""
    eps = 2.0**-23 if kind == "f32" else 2.0**-8
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    fine = ~np.isnan(expected)
    assert (np.abs(found - expected)[fine] <= 2.0 * 2.0**-23 * terms[fine] + eps * np.abs(expected)[fine]).all()


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_the_end_of_a_block(runtime: Runtime, kind: str, rows: int) -> None:
    shape = (3, rows, 48)
    x, f = normal(kind, shape, 1), np.maximum(normal(kind, shape, 2), 0.0)
    scale = np.random.default_rng(3).choice([0.0, 1.25], rows).astype(np.float32)
    f[0, 0, 5] = np.nan  # a row that is left out does not hide it
    scale[0] = 0.0
    device = [put(runtime, a, kind) for a in (x, f, f[0] * 0)]
    factors = runtime.array(scale, "scale")
    run(runtime, lambda child: forward.residual_add(child, device[0], device[1], rows, device[2], factors),
        [device[0], factors], device[1:])  # fmt: skip
    wide = np.concatenate([scale[None], np.ones((2, rows), np.float32)])[..., None].astype(np.float64)
    same(kind, get(device[1]), x + wide * f, np.abs(x) + wide * np.abs(f))
    np.testing.assert_array_equal(get(device[2]), f[0])


@pytest.mark.parametrize("rows", [1, 3, 70, 259])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_the_gradient_of_a_block(runtime: Runtime, kind: str, masked: bool, rows: int) -> None:
    """carry = x + more, y = scale carry where f > 0, and its column sums; y in the place of x."""
    shape, heads = (rows, 80), 2
    x, inner = normal(kind, shape, 4), np.maximum(normal(kind, shape, 5), 0.0)
    more = normal("f32", (heads, *shape), 6)
    inner[0, 7] = np.nan
    scale = (
        np.random.default_rng(7).choice([0.0, 2.0], rows).astype(np.float32) if masked else np.ones(rows, np.float32)
    )
    device, f, others = put(runtime, x, kind), put(runtime, inner, kind), runtime.array(more, "more")
    factors = runtime.array(scale, "scale") if masked else None
    carry = runtime.zeros(shape, np.float32, "carry")
    part = runtime.array(np.full((sum_splits(rows), shape[1]), np.nan, np.float32), "part")
    run(runtime, lambda child: residual_gradient(child, device, f, factors, device, part, carry, others),
        [f, others, *([factors] if factors is not None else [])], [device, carry, part])  # fmt: skip
    total, terms = x + more.sum(0, dtype=np.float64), np.abs(x) + np.abs(more).sum(0, dtype=np.float64)
    same("f32", get(carry), total, terms)
    passed = ~(inner <= 0.0)
    expected = np.where(passed, scale[:, None] * total, 0.0)
    same(kind, get(device), expected, scale[:, None] * terms)
    sums, most = expected.sum(0), (scale[:, None] * terms).sum(0)
    assert (np.abs(part.to_numpy().sum(0, dtype=np.float64) - sums) <= 1e-6 * most + 1e-30).all()
