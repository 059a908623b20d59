"""Products: by the package's kernel everywhere; on a GPU by cuBLASLt, in every precision, fused and refused, with the same bits
again."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import foxhunt_rt as fx
from foxhunt_rt import gemm
from foxhunt_rt.driver import Buffer, FoxhuntError, live_bytes
from foxhunt_rt.gemm import Choice, ChoiceTable, ProductError, Products, ProductSpec
from foxhunt_rt.gemm import products as module
from foxhunt_rt.gemm.workspace import WorkspacePool
from foxhunt_rt.graph import PlanningRuntime
from foxhunt_rt.graph.child import LibraryOp
from foxhunt_rt.kernels import abi

bf16 = ml_dtypes.bfloat16
#: of the sum of |terms|: operands rounded to 24, 11 or 8 bits (one bit more where a kernel truncates to TF32), plus f32 sums
RELATIVE = {"fp32": 2e-5, "tf32": 2.0**-9, "bf16": 2.0**-7}


def matrix(shape: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def step_of(
    rt: fx.Runtime, products: Products, a: Buffer, b: Buffer, out: Buffer, **options: object
) -> fx.graph.StepGraph:
    reads = [a, b] + [x for x in (options.get("bias"),) if isinstance(x, Buffer)]
    rt.products = products
    plan = rt.plan("product")
    with plan.child("product", reads=reads, writes=[out], scratch=products.scratch()) as child:
        child.gemm(a, b, out, **options)
    return plan.build()


F32 = npt.NDArray[np.float32]


def check(found: F32, a: F32, b: F32, bias: F32 | None, epilogue: str, precision: str) -> None:  # fmt: skip
    ref, terms = (
        a.astype(np.float64) @ b.astype(np.float64),
        np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64),
    )
    if bias is not None:
        ref, terms = ref + bias, terms + np.abs(bias)
    if epilogue == "bias_relu":
        ref = np.maximum(ref, 0.0)
    share = np.abs(found - ref) / (RELATIVE[precision] * terms)
    assert share.max() <= 1.0, f"{share.max():.2f} of the budget"


CASES = [(33, 48, 16, "none"), (64, 64, 64, "bias"), (130, 80, 272, "bias_relu"), (1, 16, 16, "bias_relu")]


@pytest.mark.parametrize(("m", "k", "n", "epilogue"), CASES)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_child_gemm(runtime: fx.Runtime, m: int, k: int, n: int, epilogue: str, precision: str) -> None:
    a, b, bias = matrix((m, k), 1), matrix((k, n), 2), matrix((n,), 3)
    device = runtime.array(a, "a"), runtime.array(b, "b"), runtime.zeros((m, n), np.float32, "out")
    given = None if epilogue == "none" else runtime.array(bias, "bias")
    products = Products(runtime, ChoiceTable())
    step = step_of(runtime, products, *device, bias=given, epilogue=epilogue, precision=precision)
    step.launch()
    check(device[2].to_numpy(), a, b, None if given is None else bias, epilogue, precision)
    assert step.verify().bitwise_equal
    step.close()
    (choice,) = [c for key, c in next(iter(products.table.used.values())).items() if key.startswith("child ")]
    if runtime.driver_kind == "hostsim":
        assert (choice.use, choice.why, dict(choice.us)) == ("own", "hostsim", {})
    else:
        assert set(choice.us) == {"own", "library"}


def test_shapes_and_options_that_do_not_fit_are_one_line(runtime: fx.Runtime) -> None:
    products = gemm.attach(runtime, ChoiceTable())
    zeros = lambda *shape: runtime.zeros(shape, np.float32, "x")  # noqa: E731
    bias = zeros(16)
    wrong: list[tuple[tuple[Buffer, Buffer, Buffer], dict[str, object], str]] = [
        ((zeros(4, 16), zeros(32, 16), zeros(4, 16)), {}, r"give \(M, K\), \(K, N\), \(M, N\)"),
        ((zeros(4, 16), zeros(16, 16), zeros(5, 16)), {}, r"give \(M, K\), \(K, N\), \(M, N\)"),
        ((zeros(4, 17), zeros(17, 16), zeros(4, 16)), {}, "pad both to multiples of 16"),
        ((zeros(64), zeros(16, 16), zeros(4, 16)), {}, r"use view\(\)"),
        ((zeros(4, 16), zeros(16, 16), zeros(4, 16)), dict(epilogue="bias"), "without a bias"),
        (
            (zeros(4, 16), zeros(16, 16), zeros(4, 16)),
            dict(bias=bias, epilogue="gelu"),
            "give none, or bias and bias_relu",
        ),
        ((zeros(4, 16), zeros(16, 32), zeros(4, 32)), dict(bias=bias, epilogue="bias"), r"give \(32,\)"),
        ((zeros(4, 16), zeros(16, 16), zeros(4, 16)), dict(precision="bf16"), "use fp32 or tf32"),
    ]
    for buffers, options, message in wrong:
        plan = runtime.plan("wrong")
        with pytest.raises(ProductError, match=message):
            with plan.child("c", reads=[*buffers[:2], bias], writes=[buffers[2]], scratch=products.scratch()) as child:
                child.gemm(*buffers, **options)


@pytest.mark.hostsim
def test_what_only_the_library_does_says_so_on_hostsim(runtime: fx.Runtime) -> None:
    products = gemm.attach(runtime, ChoiceTable())
    a, b, out = (runtime.zeros((32, 32), np.float32, name) for name in "abc")
    with pytest.raises(ProductError, match="runs on a GPU alone"):
        with runtime.plan("t").child("c", [a, b], [out], scratch=products.scratch()) as child:
            child.gemm(a, b, out, transpose_a=True)
    assert products.scratch() == [] and not products.has_library


def test_a_missing_library_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when a product needs it: making `Products` without it is no error."""
    from foxhunt_rt.dqn.choose import choose
    from foxhunt_rt.dqn.layout import NetworkLayout

    class Gpu:
        """As much of a runtime on a GPU as is asked before the library is."""

        driver_kind = "cuda"
        device = type("D", (), {"architecture": "sm_90", "name": "a GPU", "driver_version": 13000})()

    monkeypatch.setattr(module, "find_library", lambda name: None)
    products = Products(Gpu(), ChoiceTable())  # type: ignore[arg-type]
    assert not products.has_library and products.machine == "a GPU, driver 13000, cublasLt none"
    layout = NetworkLayout(8, (16,), (2,), 5)
    for precision in ("tf32", "bf16"):
        with pytest.raises(
            gemm.LibraryMissing, match=rf"precision={precision} needs cuBLASLt.*foxhunt-rt\[gpu\].*precision=fp32"
        ):
            choose(Gpu(), layout, 8, precision, ChoiceTable())  # type: ignore[arg-type]
    assert choose(Gpu(), layout, 8, "fp32", ChoiceTable()).forward == (False, False)  # type: ignore[arg-type]


def test_one_workspace_for_forward_and_backward() -> None:
    """Known failure K16: 4 x 32 MB per direction per branch, held twice. Here the memory plan of the production sizes, whose step
    makes some 25 products by the library, has one for the chain, and one for each child with products that runs beside it."""
    from foxhunt_rt.config import Config
    from foxhunt_rt.dqn.learner import Learner
    from foxhunt_rt.kernels import images

    if "sm_90" not in images.default().available("adam"):
        pytest.skip("no images for sm_90 are built")
    rt = PlanningRuntime("sm_90")
    config = Config.profile("production").with_set(["replay.capacity=4096", "her.enabled=false"])
    learner = Learner(rt, config, 48, (5, 3, 3, 3))
    calls = [op for child in learner.graph.children for op in child.ops if isinstance(op, LibraryOp)]
    assert len(calls) > 20 and len({use.buffer.ptr for op in calls for use in op.uses if use.field == "workspace"}) == 5
    spaces = [item for item in rt.memory().items if "workspace" in item.label]
    assert {(item.label, item.nbytes) for item in spaces} == {
        (f"gemm.workspace.{lane}", gemm.WORKSPACE_BYTES) for lane in ("main", "target", "iqn", "iql", "ensemble")}  # fmt: skip


def test_a_lane_has_one_workspace(runtime: fx.Runtime) -> None:
    """Known failure K16, where no images for sm_90 are built: whoever asks for a lane's workspace gets the same."""
    pool = WorkspacePool(runtime)
    before = live_bytes(runtime.context)
    first = pool.get("main")
    assert (
        pool.get("main") is first
        and first.nbytes == gemm.WORKSPACE_BYTES == pool.nbytes == live_bytes(runtime.context) - before
    )
    assert (
        pool.get("beside") is not first
        and pool.nbytes == 2 * gemm.WORKSPACE_BYTES == live_bytes(runtime.context) - before
    )


def test_children_with_one_workspace_never_run_side_by_side(runtime: fx.Runtime) -> None:
    """Even where nothing else orders them."""
    x, y, shared = (runtime.zeros(64, np.float32, name) for name in ("x", "y", "shared"))
    plan = runtime.plan("lanes")
    for name, buffer in (("one", x), ("two", y)):
        with plan.child(name, reads=[], writes=[buffer], scratch=[shared]) as child:
            child.memset(buffer, 1)
    assert plan.dependencies() == [(0, 1)]
    step = plan.build()
    assert all(b.label != "shared" for b in step.state.buffers), "what is in a workspace is no part of the state"
    step.close()


# On a GPU: cuBLASLt itself


def library_product(rt: fx.Runtime, products: Products, spec: ProductSpec, a: Buffer, b: Buffer, out: Buffer,
                    bias: Buffer | None = None) -> fx.graph.StepGraph:  # fmt: skip
    plan = rt.plan("library")
    reads = [x for x in (a, b, bias) if x is not None]
    with plan.child("library", reads=reads, writes=[out], scratch=products.scratch()) as child:
        products.call(child, spec, a, b, out, bias)
    return plan.build()


def put(rt: fx.Runtime, x: npt.NDArray[np.float32], kind: str, label: str) -> tuple[Buffer, npt.NDArray[np.float32]]:
    """A device copy, and what it holds in f32."""
    if kind == "f32":
        return rt.array(x, label), x
    rounded = x.astype(bf16)
    return rt.array(rounded.view(np.uint16).view(abi.bf16), label), rounded.astype(np.float32)


def got(buffer: Buffer) -> npt.NDArray[np.float32]:
    array = buffer.to_numpy()  # type: ignore[attr-defined]
    return array if array.dtype == np.float32 else array.view(np.uint16).view(bf16).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize(("m", "k", "n"), [(64, 64, 64), (259, 48, 272), (37, 1024, 80)])
def test_forms_and_precisions(runtime: fx.Runtime, precision: str, form: str, m: int, k: int, n: int) -> None:
    kind = "bf16" if precision == "bf16" else "f32"
    if form[0] == "t":
        m = -(-m // 16) * 16
    a, b = matrix((m, k), 1), matrix((k, n), 2)
    left, a = put(runtime, a.T.copy() if form[0] == "t" else a, kind, "a")[0], put(runtime, a, kind, "a")[1]
    right, b = put(runtime, b.T.copy() if form[1] == "t" else b, kind, "b")[0], put(runtime, b, kind, "b")[1]
    spec = ProductSpec(m, n, k, m if form[0] == "t" else k, k if form[1] == "t" else n, n, form[0] == "t", form[1] == "t",
                       a=kind, b=kind, compute=precision)  # fmt: skip
    out = runtime.zeros((m, n), np.float32, "out")
    step = library_product(runtime, Products(runtime, ChoiceTable()), spec, left, right, out)
    step.launch()
    check(
        out.to_numpy(), a, b, None, "none", precision if precision != "bf16" else "fp32"
    )  # bf16 operands are exact here
    first = out.to_numpy()
    assert step.verify(steps=2).bitwise_equal and runtime.ledger.foreign[f"{step.plan.name}/library"] >= 1
    step.launch()
    np.testing.assert_array_equal(out.to_numpy().view(np.uint32), first.view(np.uint32))
    step.close()


@pytest.mark.gpu
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("epilogue", ["bias", "bias_relu"])
@pytest.mark.parametrize(("precision", "result"), [("fp32", "f32"), ("tf32", "f32"), ("bf16", "f32"), ("bf16", "bf16")])
def test_fused_and_refused(runtime: fx.Runtime, precision: str, result: str, epilogue: str, refused: bool) -> None:
    """Three products as one batch, with a bias each, as the bf16 forward pass has them."""
    m, k, n, kind = 96, 64, 48, "bf16" if precision == "bf16" else "f32"
    left, a = put(runtime, matrix((3, m, k), 1), kind, "a")
    right, b = put(runtime, matrix((3, k, n), 2), kind, "b")
    given, bias = put(runtime, matrix((3, n), 3), result, "bias")
    out = put(runtime, np.zeros((3, m, n), np.float32), result, "out")[0]
    spec = ProductSpec(m, n, k, k, n, n, a=kind, b=kind, out=result, compute=precision, epilogue=epilogue, batch=3,
                       stride_a=m * k, stride_b=k * n, stride_out=m * n, stride_bias=n)  # fmt: skip
    products = Products(runtime, ChoiceTable(), refuse_fused=refused)
    step = library_product(runtime, products, spec, left, right, out, given)
    step.launch()
    kernels = step.children[0].kernels
    if refused:
        assert kernels == ["bias_relu_bf16" if result == "bf16" else "bias_relu"]
    for i in range(3):
        check(
            got(out)[i], a[i], b[i], bias[i], epilogue, "fp32" if result == "f32" and precision != "tf32" else precision
        )
    assert step.verify().bitwise_equal
    step.close()


PROCESS = """
    import hashlib, json, sys
    import numpy as np
    import foxhunt_rt as fx
    from foxhunt_rt.gemm import ChoiceTable, Products, ProductSpec
    from foxhunt_rt.gemm import measure, products as module
    rt = fx.Runtime()
    table = ChoiceTable.load(sys.argv[1]) if len(sys.argv) > 1 else ChoiceTable()
    if len(sys.argv) > 1:
        def measured(*args, **kw): raise SystemExit("measured, though the table has it")
        module.microseconds = measured
    made = Products(rt, table)
    digests = []
    for compute, kind in (("fp32", "f32"), ("tf32", "f32"), ("bf16", "bf16")):
        spec = ProductSpec(512, 768, 1024, 512, 768, 768, a_transposed=True, a=kind, b=kind, compute=compute)
        a, b = (measure.random_buffer(rt, 1024 * n, kind, "x") for n in (512, 768))
        out = rt.zeros((512, 768), np.float32, "out")
        plan = rt.plan("product")
        with plan.child("product", reads=[a, b], writes=[out], scratch=made.scratch()) as child:
            made.call(child, spec, a, b, out)
        step = plan.build()
        step.launch()
        digests.append(hashlib.sha256(out.to_numpy().tobytes()).hexdigest())
        step.close()
    print(json.dumps({"digests": digests, "table": table.to_dict()}))
"""


@pytest.mark.gpu
def test_same_bits_in_a_new_process_with_the_stored_table(tmp_path: Path) -> None:
    run = [sys.executable, "-c", textwrap.dedent(PROCESS)]
    first = json.loads(
        subprocess.run(run, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()[-1]
    )
    (tmp_path / "choices.json").write_text(json.dumps(first["table"]))
    again = subprocess.run([*run, str(tmp_path)], capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(again.stdout.splitlines()[-1])["digests"] == first["digests"]


@pytest.mark.gpu
def test_an_algorithm_that_is_none_is_refused_before_it_runs(runtime: fx.Runtime) -> None:
    """A table of another version of the library, whose 64 bytes mean nothing here."""
    table = ChoiceTable()
    products = Products(runtime, table)
    spec = ProductSpec(64, 64, 64, 64, 64, 64)
    known = products.algorithm(spec)
    assert known is not None
    table.put(products.machine, spec.key, Choice("library", {}, gemm.Algorithm((2**64 - 1,) * 8, 0, {})))
    a, b, out = (runtime.zeros((64, 64), np.float32, name) for name in "abc")
    with pytest.raises(FoxhuntError, match="does not run on"):
        library_product(runtime, products, spec, a, b, out)


class Machine(Products):
    """A GPU with the library, of which nothing is asked."""

    def __init__(self, table: ChoiceTable) -> None:
        self.table, self.has_library, self.planning, self.machine, self.missing = table, True, False, "a GPU", ""


def test_candidates_are_timed_in_turn_and_the_library_must_win_clearly() -> None:
    """The least of two turns: what else runs on the device in one of them decides nothing."""
    for own, library, use in (([10.0, 10.0], [90.0, 9.0], "library"), ([10.0, 10.0], [9.6, 9.7], "own"),
                              ([50.0, 8.0], [9.0, 9.0], "own")):  # fmt: skip
        order: list[str] = []

        def time(who: str, samples: list[float], order: list[str] = order) -> float:
            order.append(who)
            return samples[order.count(who) - 1]

        products = Machine(ChoiceTable())
        found = products.choose("work", lambda a=own: time("own", a), lambda b=library: time("library", b), 10**9)  # type: ignore[misc]
        assert found == use and order == ["own", "library"] * 2
        assert products.choose("work", pytest.fail, pytest.fail, 10**9) == use  # type: ignore[arg-type]


def test_small_work_is_ours_and_is_not_measured() -> None:
    products = Machine(ChoiceTable())
    products.table.put("a GPU", "stale", module.Choice("library", {"own": 3.0, "library": 2.0}))
    assert (
        products.small("work", module.LARGE - 1)
        and products.small("stale", 1)
        and not products.small("large", module.LARGE)
    )
    rows = products.table.to_dict()["machines"]["a GPU"]
    assert {key: (row["use"], row["why"], row["us"]) for key, row in rows.items()} == {
        "work": ("own", "small", {}), "stale": ("own", "small", {})}  # fmt: skip
    assert not Machine(ChoiceTable(pinned=True)).small("work", 1), "a run that is pinned keeps its choices"
