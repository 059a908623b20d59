"""Products: records matrix products in children, by the library or by kernels of the package, as the table of choices says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foxhunt_rt.driver import Buffer, DeviceBuffer, FoxhuntError, Stream, find_library
from foxhunt_rt.gemm.choices import LIBRARY, OWN, Choice, ChoiceTable
from foxhunt_rt.gemm.matmul import Algorithm, Handle, Matmul
from foxhunt_rt.gemm.measure import microseconds, random_buffer
from foxhunt_rt.gemm.spec import ProductSpec
from foxhunt_rt.gemm.workspace import WORKSPACE_BYTES, WorkspacePool
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.graph.child import Use
from foxhunt_rt.kernels import abi

_CANDIDATES = 8
_MARGIN = 0.95  # of the time of the one before: a hair's breadth is noise, and the choice should not follow it
_TURNS = (
    2  # each candidate is timed so often, in turn, and the least counts: what else runs on the device falls on both
)
_PER_BLOCK = 4096
_MOST_ROW_BLOCKS = 65535  # of a grid's second dimension
_SMALL = "small"
LARGE = 50_000_000  # floating-point operations from which the library mostly won on an H200


class ProductError(FoxhuntError):
    """A product that nothing here can make."""


@dataclass(frozen=True)
class ProductCall:
    """One call of cuBLASLt, as a child records it."""

    matmul: Matmul | None  # None while a memory plan is made: there is nothing to launch
    algorithm: Algorithm | None
    spec: ProductSpec
    a: Buffer
    b: Buffer
    out: Buffer
    bias: Buffer | None
    workspace: Buffer

    @property
    def name(self) -> str:
        return "gemm" if self.spec.epilogue == "none" else f"gemm_{self.spec.epilogue}"

    @property
    def uses(self) -> Sequence[Use]:
        found = [Use("a", self.a, False), Use("b", self.b, False), Use("out", self.out, True)]
        if self.bias is not None:
            found.append(Use("bias", self.bias, False))
        return [*found, Use("workspace", self.workspace, True)]

    def launch(self, stream: Stream) -> None:
        """Launches it. Legal inside a capture; does not synchronize."""
        assert self.matmul is not None and self.algorithm is not None
        self.matmul.run(stream, self.algorithm, self.a.ptr, self.b.ptr, self.out.ptr,
                        self.bias.ptr if self.bias is not None else 0, self.workspace.ptr,
                        self.workspace.nbytes)  # fmt: skip


class Products:
    """Who makes the matrix products of one runtime.

    Parameters
    ----------
    rt : Runtime
        A `PlanningRuntime` too: then nothing is measured, and the library taken for what is large.
    table : ChoiceTable, optional
        What was measured before. Default: that of this machine's user.
    refuse_fused : bool
        Take every fused epilogue of the library for refused: what happens on a device where it is. For tests.

    Attributes
    ----------
    has_library : bool
        Whether cuBLASLt may be used: not under hostsim, which runs no machine code of GPUs, and not where it is not installed.
    machine : str
        Device, driver and library: the table's outer key.
    """

    def __init__(self, rt: Runtime, table: ChoiceTable | None = None, *, refuse_fused: bool = False) -> None:
        self.runtime, self.refuse_fused = rt, refuse_fused
        self.planning = rt.driver_kind == "none"
        architecture = getattr(rt, "architecture", "host") if self.planning else rt.device.architecture
        on_gpu = architecture != "host"
        self.has_library = on_gpu and (self.planning or find_library("cublasLt") is not None)
        self.missing = "hostsim" if not on_gpu else "" if self.has_library else "cuBLASLt is not installed"
        self.table = table if table is not None else ChoiceTable.of_machine() if self.has_library else ChoiceTable()
        self.pool = WorkspacePool(rt)
        self.handle: Handle | None = None
        if self.has_library and not self.planning:
            self.handle = Handle(rt.context)
        self.machine = self._machine()
        self._zero: DeviceBuffer | None = None

    def _machine(self) -> str:
        if self.planning:
            return "planned"
        device = self.runtime.device
        version = self.handle.library.version if self.handle is not None else "none"
        name = "hostsim" if self.runtime.driver_kind == "hostsim" else device.name
        return f"{name}, driver {device.driver_version}, cublasLt {version}"

    def scratch(self, lane: str = "main") -> list[Buffer]:
        """What a child that records products in a lane declares as `scratch`."""
        return [self.pool.get(lane)] if self.has_library else []

    # What the library can do

    def algorithm(self, spec: ProductSpec) -> Algorithm | None:
        """The fastest of the library's algorithms for a product, from the table or measured now; None when it has none.

        Raises
        ------
        LibraryMissing
            cuBLASLt is not installed.
        ChoiceError
            The table is pinned and lacks it, or what it has does not run here.
        """
        if self.refuse_fused and spec.epilogue != "none":
            return None
        known = self.table.get(self.machine, spec.key)
        if known is None:
            known = self._measure(spec)
            self.table.put(self.machine, spec.key, known)
        return known.algorithm

    def _measure(self, spec: ProductSpec) -> Choice:
        matmul = Matmul(self._handle(), spec)
        found = matmul.candidates(WORKSPACE_BYTES, _CANDIDATES)
        if not found:
            return Choice(LIBRARY, {}, None, "refused")
        a, b, out, bias = _operands(self.runtime, spec)
        workspace = self.pool.get("main")
        best, best_us, times = found[0], 0.0, {}
        for i, algorithm in enumerate(found):
            call = ProductCall(matmul, algorithm, spec, a, b, out, bias, workspace)
            us = microseconds(self.runtime, functools.partial(Child.library, call=call),
                              [a, b, *([bias] if bias is not None else [])], [out, workspace])  # fmt: skip
            times[str(i)] = us
            if i == 0 or us < _MARGIN * best_us:
                best, best_us = algorithm, us
        return Choice(LIBRARY, times, best)

    def _handle(self) -> Handle:
        if self.handle is None:
            from foxhunt_rt.gemm.cublaslt import LibraryMissing

            if self.missing == "hostsim":
                raise ProductError(
                    "cuBLASLt runs on a GPU alone: under hostsim every product is made by the package's kernels"
                )
            raise LibraryMissing("cuBLASLt is not installed: pip install 'foxhunt-rt[gpu]'")
        return self.handle

    def call(self, child: Child, spec: ProductSpec, a: Buffer, b: Buffer, out: Buffer, bias: Buffer | None = None,
             lane: str = "main") -> None:  # fmt: skip
        """Records a product of the library. Where it refuses the bias or ReLU fused, the plain product and a kernel of ours.

        Raises
        ------
        ProductError
            The library refuses the plain product too.
        """
        workspace = self.pool.get(lane)
        if self.planning:
            child.library(ProductCall(None, None, spec, a, b, out, bias, workspace))
            return
        algorithm = self.algorithm(spec)
        if algorithm is not None:
            matmul = Matmul(self._handle(), spec)
            if matmul.check(algorithm) is None:
                raise ProductError(
                    f"the table's algorithm for {spec.key!r} does not run on {self.machine}: clear the choice"
                )
            child.library(ProductCall(matmul, algorithm, spec, a, b, out, bias, workspace))
            return
        if spec.epilogue == "none":
            raise ProductError(f"cuBLASLt {self.machine} refuses {spec.key!r}: use precision fp32")
        assert bias is not None
        self.call(child, replace(spec, epilogue="none"), a, b, out, None, lane)
        for i in range(spec.batch):
            y = _flat(out, i * spec.stride_out, spec.m * spec.ldo)
            bias_relu(child, y, _flat(bias, i * spec.stride_bias, spec.n), spec.m, spec.epilogue == "bias_relu")

    def choose(self, key: str, own: Callable[[], float], library: Callable[[], float], flops: int) -> str:
        """``"own"`` or ``"library"`` for a piece of work: from the table, or whichever takes less time now.

        Parameters
        ----------
        key : str
            Names the work and its sizes.
        own, library : callable
            Give microseconds.
        flops : int
            What a memory plan goes by, which cannot measure.
        """
        if not self.has_library:
            if not self.planning and self.table.get(self.machine, key) is None:  # a plan of the memory leaves no choice
                self.table.put(self.machine, key, Choice(OWN, {}, None, self.missing))
            return OWN
        if self.planning:
            return LIBRARY if flops >= LARGE else OWN
        known = self.table.get(self.machine, key)
        if known is None:
            turns = [(own(), library()) for _ in range(_TURNS)]
            times = dict(zip((OWN, LIBRARY), map(min, zip(*turns, strict=True)), strict=True))
            known = Choice(LIBRARY if times[LIBRARY] < _MARGIN * times[OWN] else OWN, times)
            self.table.put(self.machine, key, known)
        return known.use

    def small(self, key: str, flops: int) -> bool:
        """Whether a piece of work is too small for a call of the library to pay: then ``"own"`` is noted for it, unmeasured."""
        if not self.has_library or self.planning or flops >= LARGE or self.table.pinned:
            return False
        known = self.table.get(self.machine, key)
        if known is None or known.why != _SMALL:
            self.table.put(self.machine, key, Choice(OWN, {}, None, _SMALL))
        return True

    # Child.gemm

    def record(self, child: Child, a: Buffer, b: Buffer, out: Buffer, *, bias: Buffer | None = None,
               epilogue: str = "none", precision: str = "fp32", transpose_a: bool = False, transpose_b: bool = False,
               lane: str = "main") -> None:  # fmt: skip
        """Records out = epilogue(op(a) · op(b)), row-major. Measures, the first time; not legal inside a capture.

        Parameters
        ----------
        child : Child
            Declares `scratch(lane)` as scratch.
        a, b, out : Buffer
            f32 (M, K), (K, N), (M, N), with ``transpose_a`` (K, M), with ``transpose_b`` (N, K). K and N multiples of 16.
        bias : Buffer, optional
            f32 (N,).
        epilogue : str
            ``"none"``, ``"bias"`` or ``"bias_relu"``.
        precision : str
            ``"fp32"``, or ``"tf32"``: TF32 products are allowed.
        lane : str
            Work of one lane never runs side by side, and shares a workspace.

        Raises
        ------
        ProductError
            Shapes do not fit, or neither the library nor a kernel of ours does this.
        """
        spec = _spec(a, b, out, bias, epilogue, precision, transpose_a, transpose_b)
        plain = not (transpose_a or transpose_b)

        def own(target: Child) -> None:
            linear(target, spec, a, b, out, bias if bias is not None else self._zeros(spec.n))

        def by_library(target: Child) -> None:
            self.call(target, spec, a, b, out, bias, lane)

        if not plain:
            by_library(child)  # there is no kernel of ours for it: the library, or the error that says how to get it
            return
        operands = [a, b, bias if bias is not None else self._zeros(spec.n)]
        workspace = self.scratch(lane)
        use = self.choose(f"child {spec.key}", lambda: microseconds(self.runtime, own, operands, [out]),
                          lambda: microseconds(self.runtime, by_library, operands, [out, *workspace]),
                          spec.flops)  # fmt: skip
        if use == LIBRARY:
            by_library(child)
            return
        if bias is None:  # our kernel always adds one; nobody writes these zeros, so they order nothing
            child.reads = (*child.reads, operands[2])
        own(child)

    def _zeros(self, n: int) -> Buffer:
        """A bias of zeros, f32 (n,)."""
        if self._zero is None or self._zero.size < n:
            self._zero = self.runtime.zeros(n, np.float32, "gemm.zeros")
        return _flat(self._zero, 0, n)


def attach(rt: Runtime, table: ChoiceTable | None = None) -> Products:
    """Makes `Child.gemm` work in the plans made from now on; returns who records the products."""
    rt.products = products = Products(rt, table)
    return products


def bias_relu(child: Child, y: Buffer, bias: Buffer, rows: int, relu: bool) -> None:
    """Records y = act(y + bias) in place, y (rows, N) and bias (N,) of one type: what a refused epilogue would have done."""
    kernel = "bias_relu_bf16" if y.dtype == abi.bf16 else "bias_relu"
    columns = y.size // rows
    child.launch(kernel, (-(-rows * columns // _PER_BLOCK),), (256,),
                 dict(y=y, bias=bias, R=rows, Np=columns, relu=int(relu), per_block=_PER_BLOCK))  # fmt: skip


def row_blocks(rows: int, height: int) -> int:
    """Blocks of ``height`` rows of linear_forward, which stand in the grid's second dimension.

    Raises
    ------
    ProductError
        More than a grid has there.
    """
    count = -(-rows // height)
    if count > _MOST_ROW_BLOCKS:
        raise ProductError(f"a product over {rows} rows takes {count} blocks of rows, above {_MOST_ROW_BLOCKS}; lower "
                           "replay.batch or network.window, or give the rows in parts")  # fmt: skip
    return count


def linear_threads(height: int, width: int) -> int:
    """Threads of a block of linear_forward or linear_backward that owns so many rows and columns: one a tile of 2 x 4 outputs, or
    128 with larger tiles (cuda_src/network/tile.h)."""
    return 128 if height >= abi.constant("LINEAR_BIG_ROWS") else height * width // 8


def linear(child: Child, spec: ProductSpec, a: Buffer, b: Buffer, out: Buffer, bias: Buffer) -> None:
    """Records a plain product by the package's f32 kernel."""
    height, width = (64, 64) if spec.m >= 64 and spec.n >= 64 else (16, 64)
    child.launch("linear_forward", (-(-spec.n // width), row_blocks(spec.m, height), 1), (linear_threads(height, width),),
                 dict(x0=a, x1=None, x2=None, w=b, bias=bias, w_target=None, bias_target=None, y=out, passes=1, R=spec.m,
                      K=spec.k, Kp=spec.k, Np=spec.n, relu=int(spec.epilogue == "bias_relu"), residual=0,
                      block_rows=height, block_cols=width))  # fmt: skip


def _spec(a: Buffer, b: Buffer, out: Buffer, bias: Buffer | None, epilogue: str, precision: str, transpose_a: bool,
          transpose_b: bool) -> ProductSpec:  # fmt: skip
    if any(len(x.shape) != 2 for x in (a, b, out)):
        raise ProductError(f"gemm takes matrices, not shapes {a.shape}, {b.shape}, {out.shape}: use view()")
    m, k = a.shape[::-1] if transpose_a else a.shape
    k_b, n = b.shape[::-1] if transpose_b else b.shape
    if k != k_b or out.shape != (m, n):
        raise ProductError(f"gemm of {(m, k)} by {(k_b, n)} into {out.shape}: give (M, K), (K, N), (M, N)")
    if n % 16 or k % 16:
        raise ProductError(f"gemm of K = {k}, N = {n}: pad both to multiples of 16 with zeros")
    if epilogue not in ("none", "bias", "bias_relu") or (bias is None) != (epilogue == "none"):
        raise ProductError(f"epilogue {epilogue!r} with{'out' if bias is None else ''} a bias: give none, or bias and bias_relu "
                           "with one")  # fmt: skip
    if bias is not None and bias.shape != (n,):
        raise ProductError(f"the bias has shape {bias.shape}: give ({n},)")
    if precision not in ("fp32", "tf32"):
        raise ProductError(f"gemm of f32 buffers in precision {precision!r}: use fp32 or tf32")
    return ProductSpec(
        m, n, k, a.shape[1], b.shape[1], n, transpose_a, transpose_b, compute=precision, epilogue=epilogue
    )


def _flat(buffer: Any, begin: int, size: int) -> Buffer:
    """Elements of a buffer as a vector."""
    view: Buffer = buffer.view((buffer.size,))[begin : begin + size]
    return view


def _operands(rt: Runtime, spec: ProductSpec) -> tuple[DeviceBuffer, DeviceBuffer, DeviceBuffer, DeviceBuffer | None]:
    """Random a and b, an out and, where the epilogue takes one, a bias, as large as the product needs them."""
    a_rows, b_rows = (spec.k if spec.a_transposed else spec.m), (spec.n if spec.b_transposed else spec.k)
    more = spec.batch - 1
    a = random_buffer(rt, a_rows * spec.lda + more * spec.stride_a, spec.a, "gemm.measure.a")
    b = random_buffer(rt, b_rows * spec.ldb + more * spec.stride_b, spec.b, "gemm.measure.b")
    out = random_buffer(rt, spec.m * spec.ldo + more * spec.stride_out, spec.out, "gemm.measure.out")
    bias = None
    if spec.epilogue != "none":
        bias = random_buffer(rt, spec.n + more * spec.stride_bias, spec.out, "gemm.measure.bias")
    return a, b, out, bias


__all__ = ["ProductCall", "ProductError", "Products", "attach", "bias_relu", "linear", "linear_threads", "row_blocks"]
