"""What a product is, apart from where its matrices lie: sizes, types, epilogue. The key of every measured choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ProductSpec:
    """out[M][N] = epilogue(op(a)[M][K] · op(b)[K][N]), all row-major; `batch` of them at fixed distances.

    Attributes
    ----------
    m, n, k : int
        Rows and columns of the result, length of the sums.
    lda, ldb, ldo : int
        Elements from one stored row to the next.
    a_transposed, b_transposed : bool
        Whether a is stored as [K][M], b as [N][K].
    a, b, out : str
        Element types as stored, ``"f32"`` or ``"bf16"``.
    compute : str
        ``"fp32"``: f32 throughout. ``"tf32"``: f32 operands rounded to TF32. ``"bf16"``: bf16 operands. Sums are f32 in each.
    epilogue : str
        ``"none"``, ``"bias"``: + bias[N], or ``"bias_relu"``. The library's backward epilogues (DRELU, BGRAD) are not used: it
        runs them as kernels of their own, slower than `gradient_rows` (tools/bench/NOTES.md).
    batch : int
    stride_a, stride_b, stride_out, stride_bias : int
        Elements from one matrix, or bias, of the batch to the next.
    """

    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldo: int
    a_transposed: bool = False
    b_transposed: bool = False
    a: str = "f32"
    b: str = "f32"
    out: str = "f32"
    compute: str = "fp32"
    epilogue: str = "none"
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_out: int = 0
    stride_bias: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply-add is two."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def key(self) -> str:
        """One line that names it, stable between versions of the package."""
        letters = ("t" if self.a_transposed else "n") + ("t" if self.b_transposed else "n")
        text = f"{self.compute} {self.a}*{self.b}->{self.out} {letters} {self.m}x{self.n}x{self.k} "
        text += f"ld {self.lda},{self.ldb},{self.ldo} {self.epilogue}"
        if self.batch > 1:
            text += f" batch {self.batch} stride {self.stride_a},{self.stride_b},{self.stride_out},{self.stride_bias}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)
