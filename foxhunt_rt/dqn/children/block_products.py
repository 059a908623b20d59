"""The matrix products of a block in front of the trunk, none of which has a bias: one launch each, there and back.

`forward_product` records a product for all passes. `BlockGradients` places the weight gradients of several, each in splits of its
rows, in one buffer of parts, which `grad_reduce` adds: see `Groups.record_squares`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights, matrices
from foxhunt_rt.dqn.children.side_products import SideProducts, weight_splits
from foxhunt_rt.dqn.extension import GroupView
from foxhunt_rt.dqn.layout import Layer, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime


def layers_of(layout: NetworkLayout, group: str, names: Sequence[str]) -> dict[str, Layer]:
    """Weights of a group as layers. Their bias is a stand-in of the right width: there is none."""
    found = {s.name.removeprefix(f"{group}."): s for s in layout.group_segments[group]}
    return {name: Layer(found[name], found[name], relu=False) for name in names}


def forward_product(child: Child, layer: Layer, rows: int, x: Sequence[Buffer], theta: Buffer, target: Buffer | None,
                    zeros: Buffer, y: Buffer, *, residual: bool = False, side: SideProducts | None = None) -> None:  # fmt: skip
    """Records y = x W by ``theta``, and the third of three passes by ``target``, both flat; with ``residual`` added to y.

    ``zeros``, f32, at least as many as a row of y has, stand in for the bias. With ``side`` the library may make it, and
    `forward_scratch` is the child's scratch.
    """
    begin, stop, bias = layer.weight.offset, layer.weight.stop, zeros[: layer.n_padded]
    weights = LayerWeights(theta[begin:stop], bias, None if target is None else target[begin:stop],
                           None if target is None else bias)  # fmt: skip
    if side is not None and side.forward_by_library(layer, rows):
        assert not residual
        for p, inputs in enumerate(x):
            side.forward(child, layer, inputs, weights.of_pass(p), matrices(y, p, 1), True)
    else:
        forward.own_layer(child, layer, rows, x, weights, y, residual=residual)


def forward_scratch(layout: NetworkLayout, block: str, product: str, rows: int, side: SideProducts) -> list[Buffer]:
    """What a child declares as scratch that records a product with ``side``."""
    return side.scratch(side.forward_by_library(layers_of(layout, block, [product])[product], rows))


class BlockGradients:
    """Where the partial weight gradients of a block's products lie.

    Parameters
    ----------
    layers : mapping of str to Layer
    rows : mapping of str to int
        Rows of each product's input.
    side : SideProducts
        Who makes a weight gradient that stands alone.
    alone : collection of str
        Of which products no input gradient is wanted. Of the others our kernel makes both at once.

    Attributes
    ----------
    size : int
        Floats that they take together.
    most_parts : int
        Parts that one of them has at most.
    scratch : list of Buffer
        What a child that records them declares as scratch.
    """

    def __init__(self, layers: Mapping[str, Layer], rows: Mapping[str, int], side: SideProducts,
                 alone: Collection[str]) -> None:  # fmt: skip
        self.layers, self.side = layers, side
        self.by_library = {name for name in alone if side.weights_by_library(layers[name], rows[name])}
        self.scratch = side.scratch(bool(self.by_library))
        self.splits = {
            name: (weight_splits if name in self.by_library else adam_grad.splits)(rows[name]) for name in layers
        }
        self.most_parts = max(self.splits.values())
        # behind each gradient a place for that of the bias, which linear_backward writes and nobody reads
        self.strides = {name: layer.weight.size + (0 if name in self.by_library else layer.n_padded)
                        for name, layer in layers.items()}  # fmt: skip
        self.places, self.size = dict[str, int](), 0
        for name in layers:
            self.places[name] = self.size
            self.size += self.splits[name] * self.strides[name]

    def runs(self, rt: Runtime, group: GroupView, more: Mapping[str, tuple[int, int, int]] | None = None) -> Buffer:
        """grad_run of every tensor of the group. ``more``: for those that are no product, place, stride and number of parts."""
        parts = {n: (self.places[n], self.strides[n], self.splits[n]) for n in self.layers}
        return group.runs(rt, parts | dict(more or {}))

    def part(self, name: str, partial: Buffer) -> Buffer:
        """Where a product's gradients lie in ``partial``: what the child that records it declares as written."""
        view: Buffer = partial[self.places[name] : self.places[name] + self.splits[name] * self.strides[name]]
        return view

    def record(self, child: Child, name: str, theta: Buffer, partial: Buffer, x: Buffer, dy: Buffer, dx: Buffer | None = None,
               more: Buffer | None = None) -> None:  # fmt: skip
        """Records dW into its place in ``partial``, and dx = dy W' (+ ``more``, f32 (1, R, Kp)) where wanted."""
        layer, at = self.layers[name], self.places[name]
        if name in self.by_library:
            assert dx is None and more is None
            self.side.weight_gradient(child, layer, x, dy, self.part(name, partial))
            return
        to: Any = partial[at:], partial[at + layer.weight.size :]
        adam_grad.own_layer(child, layer, theta[layer.weight.offset : layer.weight.stop], x, dy, dx, to, self.strides[name],
                            self.splits[name], None, more, relu=False)  # fmt: skip


__all__ = ["BlockGradients", "forward_product", "layers_of"]
