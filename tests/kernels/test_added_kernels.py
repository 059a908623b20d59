"""Kernels of one's own beside those of the package: names, structs, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from foxhunt_rt import kernels
from foxhunt_rt.kernels import AbiError, KernelNotFound, images

HEADER = """
typedef struct {
    const step_block *step; //@ in step_block[1]
    float *x;               //@ inout f32[n]
    int32_t n;              //@ elements
    uint32_t pad0_;         //@ pad
} own_scale_args;
"""


@pytest.fixture
def restored() -> Iterator[None]:
    before = list(images._added), list(kernels.abi._added)
    yield
    images._added[:], kernels.abi._added[:] = before
    kernels.abi.default.cache_clear()


def folder(path: Path, name: str = "own_scale", image: str = "own", header: str = HEADER) -> Path:
    (path / "abi").mkdir(parents=True)
    (path / "abi" / "own.h").write_text(header)
    (path / "kernels.json").write_text(json.dumps({name: {"image": image, "args": f"{name}_args", "form": "threads"}}))
    (path / "sm_90").mkdir()
    (path / "sm_90" / f"{image}.cubin").write_bytes(b"\x7fELF")
    return path


@pytest.mark.usefixtures("restored")
def test_names_structs_and_images_are_found(tmp_path: Path) -> None:
    path = folder(tmp_path / "own")
    assert kernels.add(path) == ["own_scale"]
    assert kernels.add(path) == ["own_scale"]  # again is the same
    assert kernels.abi.struct("own_scale_args")["step"].element == "step_block"
    assert kernels.abi.struct("adam_update_args").size > 0
    assert images.find("own_scale", "sm_90").path == path / "sm_90" / "own.cubin"
    assert {"own_scale", "adam_update"} <= set(images.kernels())
    assert images.find("add_scalar", "host").stem == "basic"


@pytest.mark.usefixtures("restored")
def test_two_folders_may_name_their_headers_alike(tmp_path: Path) -> None:
    kernels.add(folder(tmp_path / "own"))
    other = HEADER.replace("own_scale_args", "own_shift_args")
    assert kernels.add(folder(tmp_path / "other", "own_shift", "shift", other)) == ["own_shift"]
    assert kernels.abi.struct("own_scale_args").size == kernels.abi.struct("own_shift_args").size > 0


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": "add_scalar"}, KernelNotFound, "has the name of another"),
        ({"image": "adam"}, KernelNotFound, "has the name of another"),
        ({"header": HEADER.replace("//@ elements", "")}, None, ""),
        ({"header": HEADER.replace("[n]", "[m]")}, AbiError, "names m"),
        ({"header": HEADER.replace("uint32_t pad0_;         //@ pad\n", "")}, AbiError, "hidden padding"),
    ],
)
def test_what_is_refused_adds_nothing(
    tmp_path: Path, changes: dict[str, str], error: type[Exception] | None, text: str
) -> None:
    path = folder(tmp_path / "own", **changes)
    before = set(images.kernels())
    if error is None:
        assert kernels.add(path)
        return
    with pytest.raises(error, match=text):
        kernels.add(path)
    assert set(images.kernels()) == before
    assert "own_scale_args" not in kernels.abi.default().structs


def test_a_folder_without_an_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound, match="holds no kernels"):
        kernels.add(tmp_path)
