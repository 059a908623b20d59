"""Matrix products: cuBLASLt, the package's own kernels, and the measured choice between them (docs/gemm.md).

Nothing is loaded at import, and cuBLASLt only where it is used.
"""

from foxhunt_rt.gemm.choices import LIBRARY, OWN, Choice, ChoiceError, ChoiceTable, machine_table
from foxhunt_rt.gemm.cublaslt import CublasError, LibraryMissing
from foxhunt_rt.gemm.matmul import Algorithm
from foxhunt_rt.gemm.products import ProductError, Products, attach
from foxhunt_rt.gemm.spec import ProductSpec
from foxhunt_rt.gemm.workspace import WORKSPACE_BYTES, WorkspacePool

__all__ = [
    "LIBRARY", "OWN", "WORKSPACE_BYTES", "Algorithm", "Choice", "ChoiceError", "ChoiceTable", "CublasError", "LibraryMissing",
    "ProductError", "ProductSpec", "Products", "WorkspacePool", "attach", "machine_table",
]  # fmt: skip
