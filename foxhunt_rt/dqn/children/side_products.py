"""Products beside the network's own: of the embedding of aux.iqn, of the ensemble's heads, and weight gradients of the blocks in
front of the trunk.

Operands stay f32. cuBLASLt makes a product, with TF32 where network.precision is not fp32, or the package's f32 kernel does:
whichever was measured to be faster, once, as for the network's layers (docs/gemm.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights, forward_spec
from foxhunt_rt.dqn.layout import Layer
from foxhunt_rt.driver import Buffer
from foxhunt_rt.gemm import LIBRARY, Products, ProductSpec
from foxhunt_rt.gemm.measure import microseconds, random_buffer
from foxhunt_rt.graph import Child, Runtime

_DEPTH, _MOST_BATCH = (
    1024,
    64,
)  # of a library's product along the rows: so long a sum at least, and so many of them at most


@dataclass(frozen=True)
class SideProducts:
    """Who makes a product, and its recording.

    Attributes
    ----------
    gemm : Products
    precision : str
        Of the network: ``"fp32"`` allows no TF32, every other does.
    lane : str
        Of the workspace. Children of one lane never run side by side.
    """

    gemm: Products
    precision: str
    lane: str = "main"

    @property
    def compute(self) -> str:
        return "fp32" if self.precision == "fp32" else "tf32"

    def scratch(self, *used: bool) -> list[Buffer]:
        """What a child declares as scratch, if the library makes any of its products."""
        return self.gemm.scratch(self.lane) if any(used) else []

    def forward_by_library(self, layer: Layer, rows: int) -> bool:
        """Whether the library makes y = act(x W + b). Measured the first time: not legal inside a capture."""
        own, library = (partial(self._forward_time, layer, rows, by) for by in (False, True))
        return self._choose(f"forward R {rows}", layer, rows, own, library)

    def forward(
        self, child: Child, layer: Layer, x: Buffer, weights: LayerWeights, y: Buffer, by_library: bool
    ) -> None:
        """Records y (R, Np) = act(x (R, Kp) W + b)."""
        rows = x.shape[0]
        if by_library:
            spec = forward_spec(layer, rows, self.compute)
            self.gemm.call(child, spec, x, weights.w, y, weights.bias, self.lane)
        else:
            forward.own_layer(child, layer, rows, [x], weights, y)

    def weights_by_library(self, layer: Layer, rows: int) -> bool:
        """Whether the library makes dW = x' dy. Measured the first time: not legal inside a capture."""
        own, library = (partial(self._weights_time, layer, rows, by) for by in (False, True))
        return self._choose(f"weights R {rows}", layer, rows, own, library)

    def weight_gradient(self, child: Child, layer: Layer, x: Buffer, dy: Buffer, dw: Buffer) -> None:
        """Records dW = x' dy by the library, in `weight_splits` parts (Kp, Np) from the start of ``dw``, for grad_reduce.

        A result as small as a layer's has few tiles, and sums as long as the batch is high: cut, they fill the device."""
        rows = dy.shape[0]
        self.gemm.call(child, self._weights_spec(layer, rows), x, dy, dw, None, self.lane)

    def backward_by_library(self, layer: Layer, rows: int) -> bool:
        """Whether the library makes dX and dW. Measured the first time: not legal inside a capture."""
        own, library = (partial(self._backward_time, layer, rows, by) for by in (False, True))
        return self._choose(f"backward R {rows}", layer, rows, own, library)

    def backward(self, child: Child, layer: Layer, w: Buffer, x: Buffer, dy: Buffer, dx: Buffer, part: Buffer) -> None:
        """Records dX = dy W', dW and db by the library: from the start of ``part`` that of dW as `weight_gradient` has it, then
        `adam_grad.sum_splits` sums (Np,) for db."""
        (rows, columns), k_padded = dy.shape, layer.k_padded
        spec = ProductSpec(rows, k_padded, columns, columns, columns, k_padded, b_transposed=True, compute=self.compute)
        self.gemm.call(child, spec, dy, w, dx, None, self.lane)
        self.weight_gradient(child, layer, x, dy, part)
        at, n = weight_splits(rows) * layer.weight.size, adam_grad.sum_splits(rows)
        adam_grad.gradient_rows(child, dy, None, None, part[at : at + n * columns].view((n, columns)))

    @staticmethod
    def backward_parts(layer: Layer, rows: int) -> tuple[dict[str, tuple[int, int, int]], int]:
        """What `backward` leaves: place, distance and number of the parts of ``weight`` and ``bias``; and floats in all."""
        size, n, m = layer.weight.size, weight_splits(rows), adam_grad.sum_splits(rows)
        return {"weight": (0, size, n), "bias": (n * size, layer.n_padded, m)}, n * size + m * layer.n_padded

    def _weights_spec(self, layer: Layer, rows: int) -> ProductSpec:
        n, (k_padded, columns) = weight_splits(rows), layer.weight.padded_shape
        depth = rows // n
        return ProductSpec(k_padded, columns, depth, k_padded, columns, columns, a_transposed=True, compute=self.compute,
                           batch=n, stride_a=depth * k_padded, stride_b=depth * columns,
                           stride_out=k_padded * columns)  # fmt: skip

    def _choose(
        self, what: str, layer: Layer, rows: int, own: Callable[[], float], library: Callable[[], float]
    ) -> bool:
        flops = 2 * rows * layer.weight.size
        key = f"beside {what} {self.compute} K {layer.k}/{layer.k_padded} N {layer.n_padded}{' relu' if layer.relu else ''}"
        return not self.gemm.small(key, flops) and self.gemm.choose(key, own, library, flops) == LIBRARY

    def _forward_time(self, layer: Layer, rows: int, by_library: bool) -> float:
        rt, n = self.gemm.runtime, layer.weight.size
        x, y = _random(rt, (rows, layer.k_padded), "x"), _random(rt, (rows, layer.n_padded), "y")
        theta = _random(rt, (n + layer.n_padded,), "theta")
        weights = LayerWeights(theta[:n], theta[n:])
        return microseconds(rt, lambda child: self.forward(child, layer, x, weights, y, by_library), [x, theta],
                            [y, *self.scratch(by_library)])  # fmt: skip

    def _weights_time(self, layer: Layer, rows: int, by_library: bool) -> float:
        rt, n = self.gemm.runtime, layer.weight.size
        x, dy = _random(rt, (rows, layer.k_padded), "x"), _random(rt, (rows, layer.n_padded), "dy")
        n_splits = weight_splits(rows) if by_library else adam_grad.splits(rows)
        stride = n if by_library else n + layer.n_padded
        part = _random(rt, (n_splits * stride,), "part")

        def record(child: Child) -> None:
            if by_library:
                self.weight_gradient(child, layer, x, dy, part)
            else:
                adam_grad.own_layer(child, layer, dy, x, dy, None, (part, part[n:]), stride, n_splits, None)

        return microseconds(rt, record, [x, dy], [part, *self.scratch(by_library)])

    def _backward_time(self, layer: Layer, rows: int, by_library: bool) -> float:
        rt, n = self.gemm.runtime, layer.weight.size
        x, dx = (_random(rt, (rows, layer.k_padded), label) for label in ("x", "dx"))
        dy, w = _random(rt, (rows, layer.n_padded), "dy"), _random(rt, (n,), "w")
        n_splits, stride = adam_grad.splits(rows), n + layer.n_padded
        size = self.backward_parts(layer, rows)[1] if by_library else n_splits * stride
        part = _random(rt, (size,), "part")

        def record(child: Child) -> None:
            if by_library:
                self.backward(child, layer, w, x, dy, dx, part)
            else:
                adam_grad.own_layer(child, layer, w, x, dy, dx, (part, part[n:]), stride, n_splits, None, relu=False)

        return microseconds(rt, record, [x, dy, w], [dx, part, *self.scratch(by_library)])


def weight_splits(rows: int) -> int:
    """Into how many products of equal depth the library's dW of so many rows is cut: a power of two that divides them."""
    n = 1
    while 2 * n <= _MOST_BATCH and rows % (2 * n) == 0 and rows // (2 * n) >= _DEPTH:
        n *= 2
    return n


def _random(rt: Runtime, shape: tuple[int, ...], label: str) -> Buffer:
    view: Buffer = random_buffer(rt, int(np.prod(shape)), "f32", f"beside.{label}").view(shape)
    return view


__all__ = ["SideProducts", "weight_splits"]
