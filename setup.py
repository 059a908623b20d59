"""Drives the native build (CMakeLists.txt, through tools/build.py) from pip. Everything declarative: pyproject.toml.

A development install (``pip install -e .``) builds for the GPUs of this machine, and hostsim alone where there are none; a
wheel carries every supported architecture and PTX. FOXHUNT_CUDA_ARCHS overrides both ("90", "80,90", "all", "" for none).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.editable_wheel import editable_wheel
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import toolkit  # noqa: E402

import build as native  # noqa: E402


class BuildNative(Command):
    """The subcommand of `build` that makes foxhunt_rt/_native, in the source tree or in the wheel's staging folder."""

    description = "build hostsim, kernel images and cubins"
    user_options: ClassVar[list[tuple[str, str, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        assert self.build_lib is not None
        try:
            if self.editable_mode:
                native.build(archs=native.default_archs())
                return
            archs = native.archs_from_environment()
            archs = list(toolkit.ALL_ARCHS) if archs is None else archs
            ptx_archs = sorted({archs[0], archs[-1]}, key=int) if archs else []
            native_dir = Path(self.build_lib) / "foxhunt_rt" / "_native"
            native.build(native_dir, archs, ptx_archs, build_dir=ROOT / "build" / "wheel", baseline=True)
        except (native.BuildError, toolkit.ToolkitError) as error:
            raise SystemExit(f"error: {error}") from None

    def get_source_files(self) -> list[str]:
        """What a source distribution needs for this command."""
        folders = [path for name in ("cuda_src", "cmake", "tools") for path in (ROOT / name).rglob("*")]
        found = [path for path in folders if path.is_file() and "__pycache__" not in path.parts]
        return [str(path.relative_to(ROOT)) for path in (ROOT / "CMakeLists.txt", *sorted(found))]

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands: ClassVar = [*build.sub_commands, ("build_native", None)]


class Wheel(bdist_wheel):
    """No Python extension is in it: one wheel for every Python 3, bound to the platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=NativeDistribution,
    cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": Wheel, "editable_wheel": editable_wheel},
)
