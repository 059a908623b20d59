"""What an install needs and carries."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from foxhunt_rt import _optional
from foxhunt_rt._optional import MissingExtra, require

from .conftest import ROOT


def test_importing_the_runtime_needs_no_extra_and_loads_no_driver() -> None:
    """The bare install: cuda-python, numpy, nvidia-ml-py, cffi."""
    code = (
        "import sys, foxhunt_rt, foxhunt_rt.driver, foxhunt_rt.kernels, foxhunt_rt.graph\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "extras = {'pyarrow', 'rich', 'typer', 'safetensors', 'tomli_w', 'jax', 'scipy', 'torch', 'pytest'}\n"
        "print(sorted(tops & extras))\n"
        "print('libcuda' in open('/proc/self/maps').read())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[:2] == ["[]", "False"]


def test_a_missing_extra_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_optional.EXTRAS, "no_such_package", "train")
    expected = r"^--parquet needs no_such_package, which is not installed: pip install 'foxhunt-rt\[train\]'$"
    with pytest.raises(MissingExtra, match=expected):
        require("no_such_package.parquet", "--parquet")
    with pytest.raises(ImportError, match="nothing_at_all, which is not installed: pip install 'nothing_at_all'"):
        require("nothing_at_all")


def test_a_broken_package_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import its_own_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="its_own_dependency") as info:
        require("half_installed")
    assert not isinstance(info.value, MissingExtra)


def test_an_installed_package_is_returned() -> None:
    import numpy

    assert require("numpy") is numpy


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_carries_the_native_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOXHUNT_CUDA_ARCHS", "")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
    ]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "foxhunt_rt/_native/libfoxhunt_hostsim.so", "foxhunt_rt/_native/libfoxhunt_dlpack.so", "foxhunt_rt/_native/host/basic.so",
        "foxhunt_rt/_native/host-baseline/basic.so", "foxhunt_rt/_native/kernels.json",
        "foxhunt_rt/_native/abi/types.h", "foxhunt_rt/py.typed", "foxhunt_rt/kernels/header.py",
    ):  # fmt: skip
        assert wanted in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "cuda_src/"))]
