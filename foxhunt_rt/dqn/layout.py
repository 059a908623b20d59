"""Where each parameter of the network stands in the flat f32 buffer, and how it starts.

The network is a trunk of linear + ReLU layers and one head product that gives, per row, (1 + sum n_b) * atoms logits:
the value head's atoms first, then the advantages of branch 0, action by action, then branch 1 and so on (dueling, Wang
2016; branches, Tavakoli 2018). Gradient, moments and target share the layout.

Order: all weights, input side first, then all biases. So the weights that decay are the first `n_decay` floats, and one
comparison in the optimizer replaces a table. Every segment is a multiple of 16 floats long, without gaps between.

Heads beside the network, and what others add to the step, are `ParameterGroup`s that follow it in the same buffer, each
from a multiple of `GROUP_PAD` on, so that a block of the optimizer belongs to one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import FoxhuntError

if TYPE_CHECKING:
    from foxhunt_rt.dqn.blocks import InputBlock

STATE_PAD = 32  # floats: rows of the state start on 128 bytes
WIDTH_PAD = 16
GROUP_PAD = 4096  # floats: at least what a block of adam_update owns


class LayoutError(FoxhuntError):
    """The network's sizes are impossible, or an array does not fit the layout."""


def padded(width: int, to: int = WIDTH_PAD) -> int:
    """``width`` rounded up to a multiple of ``to``."""
    return -(-width // to) * to


@dataclass(frozen=True)
class Part:
    """Columns of a segment that form one tensor of the checkpoint and the oracle."""

    name: str  # "trunk.0.weight", "value.bias", "branch.2.weight", ...
    kind: str  # "trunk", "value", "branch", or the name of a group
    column: int
    width: int


@dataclass(frozen=True)
class Segment:
    """One matrix (input-major) or bias vector of the flat buffer."""

    name: str
    offset: int  # floats from the start of the buffer
    shape: tuple[int, ...]  # (in, out) or (out,), without padding
    padded_shape: tuple[int, ...]  # (Kp, Np) or (Np,)
    parts: tuple[Part, ...]
    decayed: bool  # decoupled weight decay applies
    in_norm: bool = True  # enters the global gradient norm
    has_target: bool = True  # the target network has a copy

    @property
    def size(self) -> int:
        return math.prod(self.padded_shape)

    @property
    def stop(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Tensor:
    """One tensor of a `ParameterGroup`.

    Parameters
    ----------
    name : str
    shape : tuple of int
        (in, out) of a weight, input-major, or (n,) of a vector. In the flat buffer every dimension is padded to 16.
    decayed : bool
        Decoupled weight decay applies.
    bound : float
        It starts as U(-bound, bound) + ``centre``.
    centre : float
    pads : tuple of int
        What each dimension is padded to a multiple of, where not 16: `STATE_PAD` for one that is a state's.
    """

    name: str
    shape: tuple[int, ...]
    decayed: bool
    bound: float
    centre: float = 0.0
    pads: tuple[int, ...] = ()

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Its shape in the flat buffer."""
        return tuple(
            padded(n, to) for n, to in zip(self.shape, self.pads or (WIDTH_PAD,) * len(self.shape), strict=True)
        )


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters beside the network's that one part of the step owns: a head, a loss's own table.

    Parameters
    ----------
    name : str
        Begins the names of its tensors: ``"iqn"`` gives ``"iqn.embed.weight"``.
    tensors : tuple of Tensor
    lr_factor : float
        On the step's learning rate, above 0.
    max_grad_norm : float or None
        None: the group is clipped together with the network, by the global norm of both. Else it has an optimizer of its own:
        its own norm and clip, and its own step counter, since a gradient of its own that is not finite skips its update, counts
        in its statistics, and stops nobody else.
    output_scaled : tuple of str
        The tensors to which the group's outputs, in units of the normalized return, are proportional: weight and bias of its
        last layer. When the unit changes (docs/step/popart.md) they change inversely, so the outputs mean the same.
    """

    name: str
    tensors: tuple[Tensor, ...]
    lr_factor: float
    max_grad_norm: float | None
    output_scaled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [t.name for t in self.tensors]
        if not names or len(set(names)) != len(names):
            raise LayoutError(
                f"parameter group {self.name} has tensors {names}: give at least one, each with a name of its own"
            )
        for t in self.tensors:
            if not 1 <= len(t.shape) <= 2 or min(t.shape) < 1:
                raise LayoutError(f"{self.name}.{t.name} has shape {t.shape}: give (in, out) or (n,), each at least 1")
        if unknown := [name for name in self.output_scaled if name not in names]:
            raise LayoutError(
                f"{self.name}.output_scaled names {', '.join(unknown)}: its tensors are {', '.join(names)}"
            )
        if self.lr_factor <= 0.0 or (self.max_grad_norm is not None and self.max_grad_norm <= 0.0):
            raise LayoutError(f"parameter group {self.name}: lr_factor and max_grad_norm must be above 0")


@dataclass(frozen=True)
class Layer:
    """One linear layer: y = x W + b, then ReLU when ``relu``; as a residual block y = x + relu(x W + b)."""

    weight: Segment
    bias: Segment
    relu: bool
    block: int | None = None  # which of the residual blocks it is: y = x + scale * relu(x W + b)

    @property
    def residual(self) -> bool:
        """Whether it is a residual block."""
        return self.block is not None

    @property
    def k(self) -> int:
        """Input width."""
        return self.weight.shape[0]

    @property
    def k_padded(self) -> int:
        """Input width with padding."""
        return self.weight.padded_shape[0]

    @property
    def n(self) -> int:
        """Output width."""
        return self.weight.shape[1]

    @property
    def n_padded(self) -> int:
        """Output width with padding."""
        return self.weight.padded_shape[1]


@dataclass(frozen=True)
class NetworkLayout:
    """The network's sizes and the flat buffer that holds its parameters.

    Parameters
    ----------
    state_dim : int
        S, without padding.
    hidden : tuple of int
        Widths of the trunk's layers, at least one.
    branches : tuple of int
        Choices per branch, n_b.
    atoms : int
        Points of the return support.
    groups : tuple of ParameterGroup
        Parameters beside the network's.
    blocks : tuple of InputBlock
        What stands between the states and the trunk, in this order; each has a group of its name (dqn/blocks.py).
    residual : bool
        A layer of the trunk behind the first is a residual block (He 2016) where it is as wide as the one before.

    Raises
    ------
    LayoutError
        A size is below 1, there is no trunk layer or no branch, two groups share a name, or no layer can be a residual block.
    """

    state_dim: int
    hidden: tuple[int, ...]
    branches: tuple[int, ...]
    atoms: int
    groups: tuple[ParameterGroup, ...] = ()
    blocks: tuple[InputBlock, ...] = ()
    residual: bool = False

    def __post_init__(self) -> None:
        if self.residual and not self._block_of:
            raise LayoutError(f"residual blocks in a trunk of widths {self.hidden}: give two equal widths in a row")
        names = [group.name for group in self.groups]
        if missing := [block.name for block in self.blocks if block.name not in names]:
            raise LayoutError(f"block {missing[0]} has no parameters: give a parameter group of its name")
        if len(set(names)) != len(names):
            raise LayoutError(f"parameter groups {', '.join(names)}: give each a name of its own")
        for name, sizes in (
            ("state_dim", (self.state_dim,)),
            ("hidden", self.hidden),
            ("branches", self.branches),
            ("atoms", (self.atoms,)),
        ):
            if not sizes or min(sizes) < 1:
                raise LayoutError(f"{name} = {getattr(self, name)}: give at least one size, each of at least 1")

    @property
    def state_padded(self) -> int:
        """Sp."""
        return padded(self.state_dim, STATE_PAD)

    @property
    def window(self) -> int:
        """L, states that the longest of the blocks in front of the trunk looks at; 0 without one."""
        return max((block.window for block in self.blocks), default=0)

    @property
    def forward_size(self) -> int:
        """The first so many floats of the flat buffer are all that a forward pass reads: the network's, and up to the last of
        its blocks' groups."""
        return max((self.group_range(block.name)[1] for block in self.blocks), default=self.network_size)

    @property
    def head_width(self) -> int:
        """Logits per row: (1 + sum n_b) * atoms."""
        return (1 + sum(self.branches)) * self.atoms

    @property
    def head_padded(self) -> int:
        """Floats per row of the logits buffers."""
        return padded(self.head_width)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Trunk layers, input side first, then the heads."""
        widths = (self.state_dim, *self.hidden, self.head_width)
        shapes = list(zip(widths[:-1], widths[1:], strict=True))
        kps = [self.state_padded, *map(padded, self.hidden)]
        layers, weight_at = [], 0
        bias_at = sum(kp * padded(n) for kp, (_, n) in zip(kps, shapes, strict=True))
        for i, (kp, (k, n)) in enumerate(zip(kps, shapes, strict=True)):
            is_head = i == len(self.hidden)
            name = "heads" if is_head else f"trunk.{i}"
            parts = self._head_parts() if is_head else ((name, "trunk", 0, n),)
            weight, bias = (
                tuple(Part(f"{part}.{what}", kind, column, width) for part, kind, column, width in parts)
                for what in ("weight", "bias")
            )
            layers.append(
                Layer(
                    Segment(f"{name}.weight", weight_at, (k, n), (kp, padded(n)), weight, decayed=True),
                    Segment(f"{name}.bias", bias_at, (n,), (padded(n),), bias, decayed=False),
                    relu=not is_head,
                    block=self._block_of.get(i),
                )
            )
            weight_at += kp * padded(n)
            bias_at += padded(n)
        return tuple(layers)

    @property
    def residual_blocks(self) -> int:
        """How many layers of the trunk are residual blocks."""
        return len(self._block_of)

    @property
    def _block_of(self) -> dict[int, int]:
        """Layers of the trunk that are residual blocks, and which block each is."""
        equal = [i for i in range(1, len(self.hidden)) if self.residual and self.hidden[i] == self.hidden[i - 1]]
        return {layer: block for block, layer in enumerate(equal)}

    def _head_parts(self) -> tuple[tuple[str, str, int, int], ...]:
        parts, column = [("value", "value", 0, self.atoms)], self.atoms
        for b, choices in enumerate(self.branches):
            parts.append((f"branch.{b}", "branch", column, choices * self.atoms))
            column += choices * self.atoms
        return tuple(parts)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """In the order of the buffer."""
        network = (*(layer.weight for layer in self.layers), *(layer.bias for layer in self.layers))
        return (*network, *(segment for group in self.group_segments.values() for segment in group))

    @cached_property
    def group_segments(self) -> dict[str, tuple[Segment, ...]]:
        """The segments of each group by its name, those that decay first, then in the order given."""
        found, at = {}, self.network_size
        for group in self.groups:
            at = padded(at, GROUP_PAD)
            segments = []
            for tensor in sorted(group.tensors, key=lambda t: not t.decayed):
                name = f"{group.name}.{tensor.name}"
                part = Part(name, group.name, 0, tensor.shape[-1])
                segments.append(Segment(name, at, tensor.shape, tensor.padded_shape, (part,), tensor.decayed,
                                        in_norm=group.max_grad_norm is None))  # fmt: skip
                at = segments[-1].stop
            found[group.name] = tuple(segments)
        return found

    def group_range(self, name: str) -> tuple[int, int]:
        """First float of a group, and one past its last."""
        segments = self.group_segments[name]
        return segments[0].offset, segments[-1].stop

    @property
    def network_size(self) -> int:
        """Floats of the network's parameters, without the groups', padding included; a multiple of 16."""
        return self.layers[-1].bias.stop

    @property
    def size(self) -> int:
        """Floats of the flat buffer, padding included; a multiple of 16."""
        return self.segments[-1].stop

    @property
    def n_decay(self) -> int:
        """The first so many floats are the network's weights: decoupled weight decay is for them alone."""
        return self.layers[0].bias.offset

    @property
    def parameters(self) -> int:
        """Parameters without padding."""
        return sum(math.prod(segment.shape) for segment in self.segments)

    def pack(self, tensors: Mapping[str, npt.ArrayLike]) -> npt.NDArray[np.float32]:
        """The flat f32 buffer, shape (size,), from plain tensors; pads are zero.

        Parameters
        ----------
        tensors : mapping of str to array
            One for each `Part` name: weights (in, out), biases (out,).

        Raises
        ------
        LayoutError
            A tensor is missing, unknown or of the wrong shape.
        """
        flat = np.zeros(self.size, np.float32)
        views = dict(self._views(flat))
        if unknown := sorted(set(tensors) - set(views)):
            raise LayoutError(f"{unknown[0]} is no parameter of this network: it has {', '.join(views)}")
        for name, view in views.items():
            if name not in tensors:
                raise LayoutError(f"{name} is missing: give an array of shape {view.shape}")
            tensor = np.asarray(tensors[name])
            if tensor.shape != view.shape:
                raise LayoutError(f"{name} has shape {tensor.shape}: this network takes {view.shape}")
            view[...] = tensor
        return flat

    def unpack(self, flat: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        """Copies of the plain tensors in a flat buffer of shape (size,), keyed as `pack` takes them."""
        if flat.shape != (self.size,):
            raise LayoutError(f"the flat buffer has shape {flat.shape}: this network takes ({self.size},)")
        return {name: view.copy() for name, view in self._views(flat)}

    def pads(self) -> npt.NDArray[np.bool_]:
        """True where the flat buffer holds padding, shape (size,)."""
        real = np.zeros(self.size, np.float32)  # the gaps between groups are padding too
        for _, view in self._views(real):
            view[...] = 1.0
        return real == 0.0

    def _views(self, flat: npt.NDArray[np.float32]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        for segment in self.segments:
            array = flat[segment.offset : segment.stop].reshape(segment.padded_shape)
            real = array[tuple(slice(0, n) for n in segment.shape)]
            for part in segment.parts:
                yield part.name, real[..., part.column : part.column + part.width]

    def init(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Initial tensors: PyTorch's default for `Linear`, U(-1/sqrt(in), 1/sqrt(in)) for weights and biases.

        Groups follow, tensor by tensor as given, each by its own bound: the network of a seed is the same with and without
        them. Drawn on the host by NumPy's Philox keyed with ``seed``, in f64, layer by layer, weight before bias, head by
        head, then rounded to f32: the same seed gives the same network on every device.
        """
        random = np.random.Generator(np.random.Philox(key=seed))
        tensors = {}
        for layer in self.layers:
            bound = 1.0 / math.sqrt(layer.k)
            for segment in (layer.weight, layer.bias):
                for part in segment.parts:
                    shape = (*segment.shape[:-1], part.width)
                    tensors[part.name] = random.uniform(-bound, bound, shape).astype(np.float32)
        for group in self.groups:
            for t in group.tensors:
                tensors[f"{group.name}.{t.name}"] = (
                    t.centre + random.uniform(-t.bound, t.bound, t.shape)).astype(np.float32)  # fmt: skip
        return tensors


__all__ = [
    "GROUP_PAD",
    "Layer",
    "LayoutError",
    "NetworkLayout",
    "ParameterGroup",
    "Part",
    "Segment",
    "Tensor",
    "padded",
]
