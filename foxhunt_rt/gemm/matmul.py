"""Objects over cuBLASLt that own what they create: the handle of a device, and one product with its descriptors."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from foxhunt_rt.driver import Context, Stream
from foxhunt_rt.gemm import cublaslt as lt
from foxhunt_rt.gemm.spec import ProductSpec

#: Bytes that every address of a product is a multiple of: a view of a flat parameter buffer starts at a multiple of 16 elements.
ALIGNMENT = 32


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a product: cuBLASLt's 64 opaque bytes, valid for one version of the library.

    Attributes
    ----------
    data : tuple of int
        cublasLtMatmulAlgo_t.
    workspace : int
        Bytes it needs.
    config : dict
        Its attributes, for people: id, tile, split_k, ...
    """

    data: tuple[int, ...]
    workspace: int
    config: dict[str, int]


class Handle:
    """A cuBLASLt handle for one context."""

    def __init__(self, context: Context) -> None:
        self.context, self.library = context, lt.library()
        box = self.library.ffi.new("cublasLtHandle_t *")
        with context.current():
            self.library.call("cublasLtCreate", box)
        self.raw = box[0]
        self._finalizer = context.finalize(self, _destroy, self.library, self.raw)


def _destroy(context: Context, library: lt.Library, handle: Any) -> None:
    if context.usable:
        with context.current():
            library.lib.cublasLtDestroy(handle)  # a destructor never raises: its status is not looked at


class Matmul:
    """A product's descriptors. Addresses may change between runs; only their alignment counts.

    Parameters
    ----------
    handle : Handle
    spec : ProductSpec

    Notes
    -----
    cuBLASLt takes column-major matrices: a row-major [M][N] is a column-major N x M with the same leading dimension. So the
    library computes out' = op(b)' · op(a)', its A being our b.
    """

    def __init__(self, handle: Handle, spec: ProductSpec) -> None:
        self.handle, self.spec = handle, spec
        self._lib = library = handle.library
        self._finalizers: list[Any] = []
        self.desc = self._own("cublasLtMatmulDesc", lt.COMPUTE[spec.compute], lt.TYPES["f32"])
        self._set(lt.DESC_TRANSA, "int32_t", int(spec.b_transposed))
        self._set(lt.DESC_TRANSB, "int32_t", int(spec.a_transposed))
        self._set(lt.DESC_EPILOGUE, "uint32_t", lt.EPILOGUES[spec.epilogue])
        if spec.epilogue != "none" and spec.batch > 1:
            self._set(lt.DESC_BIAS_BATCH_STRIDE, "int64_t", spec.stride_bias)
        b_rows, b_cols = (spec.k, spec.n) if spec.b_transposed else (spec.n, spec.k)
        a_rows, a_cols = (spec.m, spec.k) if spec.a_transposed else (spec.k, spec.m)
        self.left = self._layout(spec.b, b_rows, b_cols, spec.ldb, spec.stride_b)
        self.right = self._layout(spec.a, a_rows, a_cols, spec.lda, spec.stride_a)
        self.out = self._layout(spec.out, spec.n, spec.m, spec.ldo, spec.stride_out)
        self._one = library.ffi.new("float *", 1.0)
        self._zero = library.ffi.new("float *", 0.0)

    def _own(self, kind: str, *args: Any) -> Any:
        box = self._lib.ffi.new("void **")
        self._lib.call(f"{kind}Create", box, *args)
        self._finalizers.append(weakref.finalize(self, getattr(self._lib.lib, f"{kind}Destroy"), box[0]))
        return box[0]

    def _layout(self, kind: str, rows: int, cols: int, ld: int, stride: int) -> Any:
        layout = self._own("cublasLtMatrixLayout", lt.TYPES[kind], rows, cols, ld)
        if self.spec.batch > 1:
            setter = "cublasLtMatrixLayoutSetAttribute"
            self._lib.set(setter, layout, lt.LAYOUT_BATCH_COUNT, "int32_t", self.spec.batch)
            self._lib.set(setter, layout, lt.LAYOUT_BATCH_STRIDE, "int64_t", stride)
        return layout

    def _set(self, attribute: int, kind: str, value: Any) -> None:
        self._lib.set("cublasLtMatmulDescSetAttribute", self.desc, attribute, kind, value)

    def _set_bias(self, bias: int) -> None:
        # Only where the epilogue takes one: cublasLtMatmul refuses a product with an address that its epilogue has no use for.
        if self.spec.epilogue != "none":
            self._set(lt.DESC_BIAS_POINTER, "uint64_t", bias)

    def _matrices(self) -> tuple[Any, ...]:
        return self.desc, self.left, self.right, self.out, self.out

    def candidates(self, workspace: int, most: int, alignment: int = ALIGNMENT) -> list[Algorithm]:
        """The library's proposals, the one that it expects to be fastest first; none when it does not do this product.

        Only algorithms whose result does not depend on the order in which blocks end: sums that are split over K are added up in
        f32 from the workspace, in a fixed order (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE).

        Parameters
        ----------
        workspace : int
            Bytes that an algorithm may use.
        most : int
            How many are wanted.
        alignment : int
            Bytes that every address is a multiple of.
        """
        ffi, pref = self._lib.ffi, self._lib.ffi.new("void **")
        self._set_bias(alignment)  # the heuristic looks at their alignment, not behind them
        self._lib.call("cublasLtMatmulPreferenceCreate", pref)
        try:
            setter = "cublasLtMatmulPreferenceSetAttribute"
            self._lib.set(setter, pref[0], lt.PREF_MAX_WORKSPACE, "uint64_t", workspace)
            self._lib.set(setter, pref[0], lt.PREF_REDUCTION_MASK, "uint32_t", lt.REDUCTION_COMPUTE_TYPE)
            for attribute in lt.PREF_MIN_ALIGNMENT:
                self._lib.set(setter, pref[0], attribute, "uint32_t", alignment)
            results, found = ffi.new("cublasLtMatmulHeuristicResult_t[]", most), ffi.new("int *")
            try:
                with self.handle.context.current():
                    self._lib.call("cublasLtMatmulAlgoGetHeuristic", self.handle.raw, *self._matrices(), pref[0], most,
                                   results, found)  # fmt: skip
            except lt.CublasError as error:
                if error.code == lt.NOT_SUPPORTED:
                    return []
                raise
        finally:
            self._lib.lib.cublasLtMatmulPreferenceDestroy(pref[0])
        return [self._algorithm(r) for r in results[0 : found[0]] if r.state == lt.SUCCESS]

    def _algorithm(self, result: Any) -> Algorithm:
        ffi, config = self._lib.ffi, {}
        for name, (attribute, kind) in lt.ALGO_CONFIG.items():
            value, written = ffi.new(f"{kind} *"), ffi.new("size_t *")
            self._lib.call("cublasLtMatmulAlgoConfigGetAttribute", ffi.addressof(result, "algo"), attribute, value,
                           ffi.sizeof(kind), written)  # fmt: skip
            config[name] = int(value[0])
        return Algorithm(tuple(int(x) for x in result.algo.data), int(result.workspaceSize), config)

    def check(self, algorithm: Algorithm) -> int | None:
        """Bytes of workspace that an algorithm needs here; None when this library or device cannot run it."""
        ffi = self._lib.ffi
        result = ffi.new("cublasLtMatmulHeuristicResult_t *")
        self._set_bias(ALIGNMENT)
        try:
            with self.handle.context.current():
                self._lib.call(
                    "cublasLtMatmulAlgoCheck", self.handle.raw, *self._matrices(), self._algo(algorithm), result
                )
        except lt.CublasError:
            return None
        return int(result.workspaceSize)

    def _algo(self, algorithm: Algorithm) -> Any:
        return self._lib.ffi.new("cublasLtMatmulAlgo_t *", {"data": list(algorithm.data)})

    def run(self, stream: Stream, algorithm: Algorithm, a: int, b: int, out: int, bias: int = 0,
            workspace: int = 0, workspace_bytes: int = 0) -> None:  # fmt: skip
        """Launches the product on a stream, which may be capturing. All are device addresses. Does not synchronize."""
        self._set_bias(bias)
        left, right, result, scratch, queue = (
            self._lib.ffi.cast("void *", address) for address in (b, a, out, workspace, int(stream.handle))
        )
        self._lib.call("cublasLtMatmul", self.handle.raw, self.desc, self._one, left, self.left, right, self.right, self._zero,
                       result, self.out, result, self.out, self._algo(algorithm), scratch, workspace_bytes,
                       queue)  # fmt: skip


__all__ = ["Algorithm", "Handle", "Matmul"]
