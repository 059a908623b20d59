"""Libraries that look for a GPU by themselves, imported before `foxhunt_rt` is used on hostsim and after: they find no device,
and work on the CPU; so does our runtime.

PyTorch and JAX where they are installed, and a stand-in that does what both do: it opens libcuda.so.1 by name, from a file of its
own, and asks for devices.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hostsim
ROOT = Path(__file__).resolve().parents[2]

OURS = """
import numpy as np, foxhunt_rt as fx
rt = fx.Runtime()
x = rt.array(np.arange(4, dtype=np.float32), "x")
plan = rt.plan("p")
with plan.child("a", reads=[], writes=[x]) as c:
    c.launch("add_scalar", (1,), (64,), dict(x=x, value=1.0, n=4))
step = plan.build()
step.launch()
assert x.to_numpy().tolist() == [1, 2, 3, 4]
assert rt.driver_kind == "hostsim"
"""
THEIRS = {
    "jax": """
import jax
assert {d.platform for d in jax.devices()} == {"cpu"}
assert float(jax.numpy.arange(4.0).sum()) == 6.0
""",
    "torch": """
import torch
assert not torch.cuda.is_available()
assert float(torch.arange(4.0).sum()) == 6.0
try: torch.zeros(1, device="cuda")
except (RuntimeError, AssertionError): pass  # the latter from a build without CUDA
else: raise SystemExit("torch has found a device")
""",
    "stand-in": """
import ctypes
library = ctypes.CDLL({path!r})
assert library.devices() in (-1, 100), library.devices()  # no libcuda.so.1, or CUDA_ERROR_NO_DEVICE
""",
}
UNASKED = """
import torch
assert torch.nn.Linear(4, 1)(torch.zeros(2, 4)).shape == (2, 1)
"""
REFUSED = """
import foxhunt_rt as fx
loaded = any("libcuda.so" in line for line in open("/proc/self/maps"))
assert loaded == (torch.version.cuda is not None)
try: fx.Runtime()
except fx.driver.DriverNotFound as error:
    assert loaded and "use foxhunt_rt before other CUDA libraries" in str(error), error
else: assert not loaded
"""
COUNTS = """
import ctypes, os, torch
def by_nvml():
    try: nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError: return 0
    n = ctypes.c_uint()
    found = nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(n)) == 0
    return n.value if found else 0
hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
assert torch.cuda.device_count() == (by_nvml() if torch.version.cuda and not hidden else 0), torch.cuda.device_count()
assert not torch.cuda.is_available()
"""
STAND_IN = r"""
#include <dlfcn.h>
extern "C" int devices(void) {  // what cuInit answers; -1 without a libcuda; 0 where there is a device
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda) return -1;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    return init ? init(0) : -2;
}
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("g++") is None:
        pytest.skip("no g++ for the stand-in")
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "finds_gpus.cpp").write_text(STAND_IN)
    path = folder / "libfinds_gpus.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", path, folder / "finds_gpus.cpp", "-ldl"], check=True)
    return str(path)


def run(code: str, **variables: str) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": ""}
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        environment.pop(name, None)  # the first of them tests set, and users do not
    environment |= variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, timeout=100,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ["before", "after", "before and after"])
@pytest.mark.parametrize("library", [pytest.param("jax", marks=pytest.mark.slow), "torch", "stand-in"])
def test_they_see_no_device_and_work(library: str, order: str, request: pytest.FixtureRequest) -> None:
    theirs = THEIRS[library]
    if "before" in order and _has_libcuda():
        pytest.skip("NVIDIA's libcuda is installed: whoever opens it first keeps it, and hostsim says so")
    if library == "stand-in":
        theirs = theirs.format(path=request.getfixturevalue("stand_in"))
    elif importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run({"before": theirs + OURS, "after": OURS + theirs, "before and after": theirs + OURS + theirs}[order])


def test_torch_that_was_not_asked_for_cuda_comes_first() -> None:
    """Importing it loads a libcuda that is there (2.11 for CUDA 13 does), and hostsim says so; otherwise it may come first."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    run(UNASKED + (REFUSED if _has_libcuda() else OURS + THEIRS["torch"]))


@pytest.mark.parametrize("visible", [None, ""])
def test_torch_counts_the_devices_that_nvml_counts(visible: str | None) -> None:
    """It does not ask the driver for their number, so on hostsim it counts the GPUs of the machine, unless they are hidden from
    it, and uses none."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    run(OURS + COUNTS, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))


def test_a_libcuda_that_somebody_loaded_is_named(stand_in: str, tmp_path: Path) -> None:
    """Where there is a real libcuda and another library was faster, hostsim cannot take its place, and says what to do."""
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(stand_in, folder / "libcuda.so.1")
    code = f"""
import ctypes
ctypes.CDLL({str(folder / "libcuda.so.1")!r})
import foxhunt_rt as fx
try:
    fx.Runtime()
except fx.driver.DriverNotFound as error:
    assert "is loaded in this process already" in str(error) and "use foxhunt_rt before" in str(error), error
else:
    raise SystemExit("hostsim was loaded beside another driver")
"""
    run(code)


def _has_libcuda() -> bool:
    """In a process of its own: in this one hostsim may have that name already."""
    opens = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    return subprocess.run(opens, capture_output=True, check=False).returncode == 0
