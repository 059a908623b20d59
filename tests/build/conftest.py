"""A project of two kernels with its own copy of the build, so that a test may break it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HOSTSIM = """\
#include <cuda.h>
extern "C" __attribute__((visibility("default"))) CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
"""
TYPES = "typedef struct {\n    uint64_t step; /* counts */\n    float lr;\n    uint32_t due;\n} step_block;\n"
ARGS = """\
typedef struct {
    float *x;   //@ inout f32[n]
    int32_t n;  //@ elements
    float a;    //@ factor
} scale_args;
"""
# Plain C++: how a .cu becomes a host kernel is hostsim's own business and test.
KERNEL = """\
#include <stdint.h>
#include "abi/types.h"
#include "abi/scale.h"
#define FX_KERNEL(name) extern "C" __attribute__((visibility("default"))) void name(name##_args a)
FX_KERNEL(scale) { for (int i = 0; i < a.n; ++i) a.x[i] *= a.a; }
"""


class Project:
    """A copy of the build in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.native = root / "foxhunt_rt" / "_native"
        for name in ("CMakeLists.txt", "cmake", "tools"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, root / name)
        (root / "foxhunt_rt" / "kernels").mkdir(parents=True)
        for name in ("header.py", "expression.py"):
            shutil.copy(ROOT / "foxhunt_rt" / "kernels" / name, root / "foxhunt_rt" / "kernels" / name)
        for name in ("trace", "dlpack"):
            shutil.copytree(ROOT / "cuda_src" / name, root / "cuda_src" / name)
        self.write("cuda_src/hostsim/driver.cpp", HOSTSIM)
        self.write("cuda_src/abi/types.h", TYPES)
        self.write("cuda_src/abi/scale.h", ARGS)
        self.write("cuda_src/math/scale.cu", KERNEL)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tools/build.py without architectures; output and errors together in stdout."""
        command = [sys.executable, "tools/build.py", "-j", "2", *arguments]
        environment = os.environ | {"FOXHUNT_CUDA_ARCHS": ""}
        return subprocess.run(
            command,
            cwd=self.root,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[[], Project]:
    return lambda: Project(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
