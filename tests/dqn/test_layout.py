"""The flat parameter buffer: offsets, flags, padding, packing, initialization."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.dqn.layout import LayoutError, NetworkLayout, padded

LAYOUTS = [
    NetworkLayout(48, (64, 64), (5, 3, 3, 3), 51),
    NetworkLayout(7, (5,), (3,), 11),
    NetworkLayout(33, (17, 40, 9), (2, 4), 13),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_tile_the_buffer_without_gap(layout: NetworkLayout) -> None:
    at = 0
    for segment in layout.segments:
        assert segment.offset == at
        assert segment.size % 16 == 0
        assert segment.in_norm and segment.has_target
        assert segment.decayed == segment.name.endswith(".weight") == (segment.offset < layout.n_decay)
        at = segment.stop
    assert layout.size == at


def test_benchmark_network_has_its_documented_sizes() -> None:
    layout = LAYOUTS[0]
    assert (layout.state_padded, layout.head_width, layout.head_padded) == (64, 765, 768)
    assert [layer.weight.padded_shape for layer in layout.layers] == [(64, 64), (64, 64), (64, 768)]
    assert [layer.relu for layer in layout.layers] == [True, True, False]
    assert layout.parameters == 48 * 64 + 64 + 64 * 64 + 64 + 64 * 765 + 765
    kinds = [(part.name, part.kind, part.column, part.width) for part in layout.layers[-1].weight.parts]
    assert kinds == [
        ("value.weight", "value", 0, 51),
        ("branch.0.weight", "branch", 51, 255),
        ("branch.1.weight", "branch", 306, 153),
        ("branch.2.weight", "branch", 459, 153),
        ("branch.3.weight", "branch", 612, 153),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pack_and_unpack_are_inverse_and_pads_are_zero(layout: NetworkLayout) -> None:
    random = np.random.default_rng(0)
    tensors = {name: random.standard_normal(value.shape).astype(np.float32) for name, value in layout.init(0).items()}
    flat = layout.pack(tensors)
    assert flat.dtype == np.float32 and flat.shape == (layout.size,)
    assert np.count_nonzero(flat) == layout.parameters
    pads = layout.pads()
    assert pads.sum() == layout.size - layout.parameters and not flat[pads].any()
    back = layout.unpack(flat)
    assert back.keys() == tensors.keys()
    for name in tensors:
        np.testing.assert_array_equal(back[name], tensors[name])


def test_pack_places_elements_where_the_kernels_look() -> None:
    """Weight [k][n] of a layer stands at offset + k*Np + n: the convention of cuda_src/abi/network.h, spelled out."""
    layout = LAYOUTS[2]
    tensors = layout.init(3)
    flat = layout.pack(tensors)
    heads = layout.layers[-1].weight
    assert flat[heads.offset + 4 * padded(layout.head_width) + 13 + 2] == tensors["branch.0.weight"][4, 2]
    second = layout.layers[1]
    assert flat[second.weight.offset + 16 * padded(40) + 39] == tensors["trunk.1.weight"][16, 39]
    assert flat[second.bias.offset + 39] == tensors["trunk.1.bias"][39]


def test_pack_refuses_what_does_not_fit() -> None:
    layout = LAYOUTS[1]
    tensors = layout.init(0)
    with pytest.raises(LayoutError, match=r"trunk.0.weight has shape \(5, 7\): this network takes \(7, 5\)"):
        layout.pack({**tensors, "trunk.0.weight": tensors["trunk.0.weight"].T})
    with pytest.raises(LayoutError, match="branch.1.bias is no parameter"):
        layout.pack({**tensors, "branch.1.bias": tensors["value.bias"]})
    with pytest.raises(LayoutError, match="value.bias is missing"):
        layout.pack({name: value for name, value in tensors.items() if name != "value.bias"})
    with pytest.raises(LayoutError, match="flat buffer has shape"):
        layout.unpack(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    "sizes", [(0, (4,), (2,), 3), (4, (), (2,), 3), (4, (0,), (2,), 3), (4, (4,), (), 3), (4, (4,), (2,), 0)]
)
def test_impossible_sizes_are_refused(sizes: tuple[int, tuple[int, ...], tuple[int, ...], int]) -> None:
    with pytest.raises(LayoutError, match="give at least one size"):
        NetworkLayout(*sizes)


def test_init_is_uniform_by_fan_in_and_repeatable() -> None:
    layout = LAYOUTS[0]
    tensors = layout.init(7)
    for name, value in tensors.items():
        bound = 1 / np.sqrt(48 if name.startswith("trunk.0") else 64)
        assert np.abs(value).max() <= bound
        if (
            value.size > 1000
        ):  # standard error of the mean of n uniforms: bound / sqrt(3n); of the variance, about 0.9/sqrt(n)
            assert abs(value.mean()) < 4 * bound / np.sqrt(3 * value.size)
            assert abs(value.var() / (bound**2 / 3) - 1) < 4 / np.sqrt(value.size)
    assert all(np.array_equal(tensors[name], value) for name, value in layout.init(7).items())
    assert not np.array_equal(tensors["value.weight"], layout.init(8)["value.weight"])
