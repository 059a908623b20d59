"""The matrix products of a block in front of the trunk, none of which has a bias: one launch each, there and back.

`forward_product` records a product for all passes. `BlockGradients` places the weight gradients of several, each in splits of its
rows, in one buffer of parts, which `grad_reduce` adds: see `Groups.record_squares`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.extension import GroupView
from foxhunt_rt.dqn.layout import Layer, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi


def layers_of(layout: NetworkLayout, group: str, names: Sequence[str]) -> dict[str, Layer]:
    """Weights of a group as layers. Their bias is a stand-in of the right width: there is none."""
    found = {s.name.removeprefix(f"{group}."): s for s in layout.group_segments[group]}
    return {name: Layer(found[name], found[name], relu=False) for name in names}


def forward_product(child: Child, layer: Layer, rows: int, x: Sequence[Buffer], theta: Buffer, target: Buffer | None,
                    zeros: Buffer, y: Buffer, *, residual: bool = False) -> None:  # fmt: skip
    """Records y = x W by ``theta``, and the third of three passes by ``target``, both flat; with ``residual`` added to y.

    ``zeros``, f32, at least as many as a row of y has, stand in for the bias.
    """
    begin, stop, bias = layer.weight.offset, layer.weight.stop, zeros[: layer.n_padded]
    weights = LayerWeights(theta[begin:stop], bias, None if target is None else target[begin:stop],
                           None if target is None else bias)  # fmt: skip
    forward.own_layer(child, layer, rows, x, weights, y, residual=residual)


class BlockGradients:
    """Where the partial weight gradients of a block's products lie.

    Parameters
    ----------
    layers : mapping of str to Layer
    rows : mapping of str to int
        Rows of each product's input.

    Attributes
    ----------
    size : int
        Floats that they take together.
    """

    def __init__(self, layers: Mapping[str, Layer], rows: Mapping[str, int]) -> None:
        self.layers = layers
        self.splits = {name: adam_grad.splits(rows[name]) for name in layers}
        # behind each gradient a place for that of the bias, which linear_backward writes and nobody reads
        self.strides = {name: layer.weight.size + layer.n_padded for name, layer in layers.items()}
        self.places, self.size = dict[str, int](), 0
        for name in layers:
            self.places[name] = self.size
            self.size += self.splits[name] * self.strides[name]

    def runs(self, rt: Runtime, group: GroupView, more: Mapping[str, tuple[int, int, int]] | None = None) -> Buffer:
        """grad_run of every tensor of the group. ``more``: for those that are no product, place, stride and number of parts."""
        name, start = group.group.name, group.segments[0].offset
        parts = {n: (self.places[n], self.strides[n], self.splits[n]) for n in self.layers} | dict(more or {})
        rows = [(s.offset - start, s.stop - start, *parts[s.name.removeprefix(f"{name}.")], 0) for s in group.segments]
        return rt.array(np.array(rows, abi.dtype("grad_run")), f"{name}.runs")

    def part(self, name: str, partial: Buffer) -> Buffer:
        """Where a product's gradients lie in ``partial``: what the child that records it declares as written."""
        view: Buffer = partial[self.places[name] : self.places[name] + self.splits[name] * self.strides[name]]
        return view

    def record(self, child: Child, name: str, theta: Buffer, partial: Buffer, x: Buffer, dy: Buffer, dx: Buffer | None = None,
               more: Buffer | None = None) -> None:  # fmt: skip
        """Records dW into its place in ``partial``, and dx = dy W' (+ ``more``, f32 (1, R, Kp)) where wanted."""
        layer, at = self.layers[name], self.places[name]
        to: Any = partial[at:], partial[at + layer.weight.size :]
        adam_grad.own_layer(child, layer, theta[layer.weight.offset : layer.weight.stop], x, dy, dx, to, self.strides[name],
                            self.splits[name], None, more, relu=False)  # fmt: skip


__all__ = ["BlockGradients", "forward_product", "layers_of"]
