"""Which image is chosen for which device."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from foxhunt_rt.kernels import ArchitectureError, Images, KernelNotFound
from foxhunt_rt.kernels import images as images_module


def make(folder: Path, *archs: str) -> Images:
    """A kernel `sum` of image `basic`, built for these architectures."""
    index = {"sum": {"image": "basic", "args": "sum_args", "form": "anyblock"}}
    (folder / "kernels.json").write_text(json.dumps(index))
    (folder / "abi").mkdir()
    (folder / "abi" / "basic.h").touch()
    for arch in archs:
        suffix = {"h": "so", "s": "cubin", "p": "ptx"}[arch[0]]
        (folder / arch).mkdir()
        (folder / arch / f"basic.{suffix}").write_text(arch)
    return Images(folder)


@pytest.mark.parametrize(
    ("archs", "device", "chosen"),
    [
        (["sm_80", "sm_90"], "sm_90", "sm_90"),
        (["sm_80", "sm_86"], "sm_89", "sm_86"),  # same major, the highest minor that is not above
        (["sm_80", "sm_89"], "sm_86", "sm_80"),
        (["sm_80", "sm_90", "ptx_80", "ptx_120"], "sm_121", "ptx_120"),
        (["sm_100", "sm_120", "ptx_80"], "sm_90", "ptx_80"),
        (["sm_80", "ptx_80", "ptx_90"], "sm_80", "sm_80"),  # a cubin before PTX
        (["sm_90", "ptx_80", "ptx_90"], "sm_100", "ptx_90"),
        (["sm_100"], "sm_103", "sm_100"),
    ],
)
def test_the_best_image_for_a_device(tmp_path: Path, archs: list[str], device: str, chosen: str) -> None:
    image = make(tmp_path, *archs).find("sum", device)
    assert (image.stem, image.arch) == ("basic", chosen)
    assert image.read() == chosen.encode() + (b"\0" if chosen.startswith("ptx") else b"")


@pytest.mark.parametrize(
    ("archs", "device"),
    [(["sm_90"], "sm_80"), (["sm_89"], "sm_86"), (["sm_90"], "sm_100"), (["ptx_90"], "sm_80"), (["host"], "sm_90")],
)
def test_no_image_fits(tmp_path: Path, archs: list[str], device: str) -> None:
    with pytest.raises(ArchitectureError) as info:
        make(tmp_path, *archs).find("sum", device)
    number = device.removeprefix("sm_")
    assert str(info.value) == (
        f"sum: no image for {device}; on hand: {archs[0]}; rebuild with `FOXHUNT_CUDA_ARCHS={number} pip install -e .`"
    )
    assert str(pickle.loads(pickle.dumps(info.value))) == str(info.value)


@pytest.mark.parametrize(("wide", "chosen"), [(True, "host"), (False, "host-baseline")])
def test_an_old_processor_takes_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide: bool, chosen: str
) -> None:
    monkeypatch.setattr(images_module, "runs_host_images", lambda: wide)
    assert make(tmp_path, "host", "host-baseline").find("sum", "host").arch == chosen


def test_an_old_processor_without_a_baseline_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "runs_host_images", lambda: False)
    with pytest.raises(ArchitectureError, match=r"no image for host; on hand: host; rebuild with `.*--baseline"):
        make(tmp_path, "host").find("sum", "host")


def test_unknown_kernel(tmp_path: Path) -> None:
    images = make(tmp_path, "host")
    with pytest.raises(KernelNotFound, match=r"no kernel summ: did you mean sum\?"):
        images.kernel("summ")
    with pytest.raises(KernelNotFound, match=r"no kernel zebra: build it"):
        images.find("zebra", "host")


def test_nothing_built(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound, match=r"holds no kernels: build them with `python tools/build.py`"):
        Images(tmp_path)


def test_every_kernel_of_the_package_has_an_image_and_a_struct() -> None:
    from foxhunt_rt.kernels import abi

    for info in images_module.kernels().values():
        assert images_module.find(info.name, "host").path.is_file()
        assert abi.struct(info.args).size > 0
        assert info.form in ("anyblock", "threads")
    assert "add_scalar" in images_module.kernels()
