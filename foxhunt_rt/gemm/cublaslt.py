"""cuBLASLt through cffi: its functions (sys), and calls whose status is checked. Nothing is loaded at import.

Declarations and numbers are those of cublasLt.h 13.1 (the same since 12.0 for all that is used here), see
https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api. Objects that own what they create are in matmul.py.
"""

from __future__ import annotations

import functools
from typing import Any

import cffi

from foxhunt_rt.driver import FoxhuntError, find_library

_CDEF = """
typedef int cublasStatus_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct { uint64_t data[8]; } cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

const char *cublasLtGetStatusName(cublasStatus_t status);
const char *cublasLtGetStatusString(cublasStatus_t status);
size_t cublasLtGetVersion(void);
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);

cublasStatus_t cublasLtMatmulDescCreate(void **desc, int compute_type, int scale_type);
cublasStatus_t cublasLtMatmulDescDestroy(void *desc);
cublasStatus_t cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t size);
cublasStatus_t cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
cublasStatus_t cublasLtMatrixLayoutDestroy(void *layout);
cublasStatus_t cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t size);
cublasStatus_t cublasLtMatmulPreferenceCreate(void **preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(void *preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size);

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, void *desc, void *a, void *b, void *c, void *d,
    void *preference, int requested, cublasLtMatmulHeuristicResult_t *results, int *found);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, void *desc, void *a, void *b, void *c, void *d,
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result);
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo, int attribute, void *value,
    size_t size, size_t *written);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, void *desc, const void *alpha, const void *a, void *a_layout,
    const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
    const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_size, void *stream);
"""

# cublasStatus_t
SUCCESS, NOT_SUPPORTED = 0, 15
# cudaDataType_t
TYPES = {"f32": 0, "bf16": 14}
# cublasComputeType_t: f32 without and with TF32; products of bf16 operands are summed in f32
COMPUTE = {"fp32": 68, "tf32": 77, "bf16": 68}
# cublasLtMatmulDescAttributes_t
DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER, DESC_BIAS_BATCH_STRIDE = 3, 4, 7, 8, 10
# cublasLtMatrixLayoutAttribute_t
LAYOUT_BATCH_COUNT, LAYOUT_BATCH_STRIDE = 5, 6
# cublasLtMatmulPreferenceAttributes_t
PREF_MAX_WORKSPACE, PREF_REDUCTION_MASK, PREF_MIN_ALIGNMENT = 1, 3, (5, 6, 7, 8)
# cublasLtReductionScheme_t
REDUCTION_COMPUTE_TYPE = 2
# cublasLtEpilogue_t
EPILOGUES = {"none": 1, "bias": 4, "bias_relu": 6}
# cublasLtMatmulAlgoConfigAttributes_t: name -> (number, C type)
ALGO_CONFIG = {
    "id": (0, "int32_t"), "tile": (1, "uint32_t"), "split_k": (2, "int32_t"), "reduction": (3, "uint32_t"),
    "swizzle": (4, "uint32_t"), "custom": (5, "uint32_t"), "stages": (6, "uint32_t"), "inner_shape": (7, "uint16_t"),
    "cluster": (8, "uint16_t"),
}  # fmt: skip


class LibraryMissing(FoxhuntError, ImportError):
    """cuBLASLt is not installed."""


class CublasError(FoxhuntError):
    """A cuBLASLt call answered something other than CUBLAS_STATUS_SUCCESS.

    Attributes
    ----------
    call, name, text : str
        The function, the status' name, its description.
    code : int
        The cublasStatus_t.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(call, code, name, text)
        self.call, self.code, self.name, self.text = call, code, name, text

    def __str__(self) -> str:
        return f"{self.call}: {self.name} ({self.code}): {self.text}"


class Library:
    """The loaded library. `call` checks the status; ``lib`` and ``ffi`` are what is below.

    Parameters
    ----------
    path : str
        Of libcublasLt.so.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.ffi = cffi.FFI()
        self.ffi.cdef(_CDEF)
        self.lib = self.ffi.dlopen(path)
        self.version = int(self.lib.cublasLtGetVersion())

    def call(self, name: str, *args: Any) -> None:
        """Calls a function by name.

        Raises
        ------
        CublasError
            It answered another status than success.
        """
        status = int(getattr(self.lib, name)(*args))
        if status != SUCCESS:
            raise CublasError(name, status, self._text("Name", status), self._text("String", status))

    def _text(self, what: str, status: int) -> str:
        return str(self.ffi.string(getattr(self.lib, f"cublasLtGetStatus{what}")(status)).decode())

    def set(self, setter: str, target: Any, attribute: int, kind: str, value: Any) -> None:
        """Sets an attribute of a descriptor from a Python value of a C type."""
        box = self.ffi.new(f"{kind} *", value)
        self.call(setter, target, attribute, box, self.ffi.sizeof(kind))


@functools.cache
def library() -> Library:
    """Loads cuBLASLt, once a process.

    Raises
    ------
    LibraryMissing
        It is neither in the environment nor in a toolkit.
    """
    path = find_library("cublasLt")
    if path is None:
        raise LibraryMissing("cuBLASLt is not installed: pip install 'foxhunt-rt[gpu]', or set network.precision=fp32, for "
                             "which the package has kernels of its own")  # fmt: skip
    return Library(path)
