"""How the network's products are made: by which implementation, layer by layer, and in which precision.

`NetworkProducts` is what forward and adam_grad go by; dqn/choose.py measures and fills it in. The specifications of a layer's
products by cuBLASLt stand here too. docs/gemm.md has the whole picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foxhunt_rt.dqn.layout import Layer, NetworkLayout, padded
from foxhunt_rt.driver import Buffer
from foxhunt_rt.gemm import Products, ProductSpec

PASSES = 3
#: Bits of mantissa that a precision keeps of an operand
MANTISSA = {"fp32": 23, "tf32": 10, "bf16": 7}


@dataclass(frozen=True)
class NetworkProducts:
    """Who makes which product of the network.

    Attributes
    ----------
    precision : str
        ``"fp32"``, ``"tf32"`` or ``"bf16"``: that of the operands. Sums, parameters, logits and gradients are f32 in each.
    forward, backward : tuple of bool
        By layer: whether the library makes it.
    rounded : bool
        The f32 kernels of the package stand in for tensor-core products, by rounding every operand to the precision's mantissa.
    gemm : Products or None
        Who records the library's products.
    """

    precision: str
    forward: tuple[bool, ...]
    backward: tuple[bool, ...]
    rounded: bool = False
    gemm: Products | None = None

    @classmethod
    def own(cls, layout: NetworkLayout) -> NetworkProducts:
        """Everything in f32 by the package's kernels."""
        none = (False,) * len(layout.layers)
        return cls("fp32", none, none)

    @property
    def bf16(self) -> bool:
        """Whether operands are kept as bf16."""
        return self.precision == "bf16" and not self.rounded

    @property
    def bits(self) -> int:
        """Bits of mantissa of a rounded operand."""
        return MANTISSA[self.precision]

    @property
    def scratch(self) -> list[Buffer]:
        """The workspace that forward and adam_grad share: they never run side by side (known failure K16)."""
        used = self.gemm is not None and any((*self.forward, *self.backward))
        return self.gemm.scratch() if self.gemm is not None and used else []


@dataclass(frozen=True)
class LayerWeights:
    """Where a layer's parameters lie: views of the flat buffers."""

    w: Buffer  # (Kp, Np) online
    bias: Buffer  # (Np,)
    w_target: Buffer | None = None
    bias_target: Buffer | None = None

    @classmethod
    def of(cls, layer: Layer, theta: Buffer, target: Buffer | None, bias: Buffer | None = None,
           bias_target: Buffer | None = None) -> LayerWeights:  # fmt: skip
        """From flat parameters; ``bias`` and ``bias_target`` are flat too, where biases come from elsewhere."""

        def cut(flat: Buffer | None, begin: int, end: int) -> Buffer | None:
            return None if flat is None else flat[begin:end]

        weight, b = layer.weight, layer.bias
        return cls(theta[weight.offset : weight.stop], (theta if bias is None else bias)[b.offset : b.stop],
                   cut(target, weight.offset, weight.stop),
                   cut(target if bias_target is None else bias_target, b.offset, b.stop))  # fmt: skip

    def of_pass(self, index: int) -> LayerWeights:
        """Those of one of the step's three passes alone: the third is the target network's."""
        if index < PASSES - 1:
            return LayerWeights(self.w, self.bias)
        assert self.w_target is not None and self.bias_target is not None
        return LayerWeights(self.w_target, self.bias_target)


def forward_spec(layer: Layer, rows: int, precision: str) -> ProductSpec:
    """y[rows][Np] = act(x W + b), f32 in and out. Only the rows of W up to the next multiple of 16 count: the rest are pads."""
    return ProductSpec(rows, layer.n_padded, padded(layer.k), layer.k_padded, layer.n_padded, layer.n_padded,
                       compute=precision, epilogue="bias_relu" if layer.relu else "bias")  # fmt: skip


def forward_bf16_spec(layer: Layer, rows: int, parameters: int, head_bias: int) -> ProductSpec:
    """The three passes as one batch: bf16 in, bf16 out for a trunk layer, f32 logits and biases for the heads."""
    return ProductSpec(rows, layer.n_padded, padded(layer.k), layer.k_padded, layer.n_padded, layer.n_padded, a="bf16", b="bf16",
                       out="bf16" if layer.relu else "f32", compute="bf16", epilogue="bias_relu" if layer.relu else "bias",
                       batch=PASSES, stride_a=rows * layer.k_padded, stride_b=parameters, stride_out=rows * layer.n_padded,
                       stride_bias=parameters if layer.relu else head_bias)  # fmt: skip


def input_gradient_spec(layer: Layer, rows: int, products: NetworkProducts, out: str | None = None) -> ProductSpec:
    """dx[rows][Kp] = dy W', before the derivative of ReLU. ``out``: ``"f32"`` or ``"bf16"``; default: as the operands."""
    kind = "bf16" if products.bf16 else "f32"
    return ProductSpec(rows, layer.k_padded, layer.n_padded, layer.n_padded, layer.n_padded, layer.k_padded, b_transposed=True,
                       a=kind, b=kind, out=out or kind, compute=products.precision)  # fmt: skip


def weight_gradient_spec(layer: Layer, rows: int, products: NetworkProducts) -> ProductSpec:
    """dW[Kp][Np] = x' dy, always f32."""
    kind = "bf16" if products.bf16 else "f32"
    return ProductSpec(layer.k_padded, layer.n_padded, rows, layer.k_padded, layer.n_padded, layer.n_padded, a_transposed=True,
                       a=kind, b=kind, compute=products.precision)  # fmt: skip


def matrices(buffer: Buffer, first: int, count: int) -> Buffer:
    """Matrices first to first + count of a (passes, rows, columns) buffer, one under the other: (count * rows, columns)."""
    view: Buffer = buffer[first : first + count].view((count * buffer.shape[1], buffer.shape[2]))
    return view


def flat(buffer: Buffer) -> Buffer:
    """All elements of a buffer as a vector."""
    view: Buffer = buffer.view((buffer.size,))
    return view


Inputs = Buffer | Sequence[Buffer]
"""A layer's inputs: of each pass one, or all of them in one (passes, B, Kp) buffer."""

__all__ = [
    "MANTISSA", "PASSES", "Inputs", "LayerWeights", "NetworkProducts", "flat", "forward_bf16_spec", "forward_spec",
    "input_gradient_spec", "matrices", "weight_gradient_spec",
]  # fmt: skip
