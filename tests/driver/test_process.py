"""What happens at the edges of a process: exit, fork, a dead context, the wrong driver. Each in a process of its
own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from foxhunt_rt.driver import DriverError, FoxhuntError, OutOfMemory
from foxhunt_rt.driver.module import architecture


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    prelude = "import numpy as np, foxhunt_rt as fx, os\n"
    return subprocess.run([sys.executable, "-c", prelude + code], env={**os.environ, **env}, text=True,
                          capture_output=True, timeout=60)  # fmt: skip


def own_lines(text: str) -> list[str]:
    """stderr without the line that names the driver in use."""
    return [line for line in text.splitlines() if not line.startswith("foxhunt-rt: using")]


def test_exit_with_live_objects_is_quiet():
    done = run("rt = fx.Runtime(); x = rt.zeros(4, np.float32, 'x'); m = rt.mapped(4, np.float32, 'm')\n"
               "p = rt.plan()\n"
               "with p.child('a', reads=[], writes=[x]) as c: c.memset(x, 1)\n"
               "s = p.build(); s.launch(); print('launched')")  # fmt: skip
    assert (done.returncode, done.stdout, own_lines(done.stderr)) == (0, "launched\n", [])


def test_a_dead_context_reports_its_first_cause_and_the_process_lives():
    done = run("from foxhunt_rt.driver import DriverError, ContextDead\n"
               "from foxhunt_rt import kernels\n"
               "rt = fx.Runtime(); x = rt.zeros(4, np.float32, 'x')\n"
               "class Wild:\n"
               "    ptr = 1 << 46; nbytes = 1 << 20; dtype = np.dtype(np.float32); label = 'wild'; alive = True\n"
               "try:\n"
               "    rt.ungraphed('t').launch('add_scalar', (1,), (32,), dict(x=Wild(), value=1.0, n=32))\n"
               "    rt.synchronize()\n"
               "except DriverError as e: print(type(e).__name__, e.sticky)\n"
               "try: x.to_numpy()\n"
               "except ContextDead as e: print('later:', e.call)\n"
               "print('alive')")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "DriverError True", done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("later: cu") and done.stdout.endswith("alive\n")
    assert own_lines(done.stderr) == []


@pytest.mark.parametrize(("value", "text"), [("metal", "use auto, cuda or hostsim")])
def test_an_unknown_driver_is_refused(value, text):
    done = run("fx.Runtime()", FOXHUNT_DRIVER=value)
    assert done.returncode == 1 and text in done.stderr


def test_import_initializes_nothing():
    done = run("import foxhunt_rt.graph, sys; print('cuda.bindings.driver' in sys.modules, 'pynvml' in sys.modules)")
    assert done.stdout == "False False\n" and done.stderr == ""


def test_no_module_loads_a_driver_or_changes_the_environment_when_imported():
    done = run("import importlib, pkgutil, signal, sys\n"
               "before = dict(os.environ)\n"
               "handlers = [signal.getsignal(n) for n in signal.valid_signals()]\n"
               "names = [m.name for m in pkgutil.walk_packages(fx.__path__, 'foxhunt_rt.') if not m.name.endswith('__main__')]\n"
               "for name in names: importlib.import_module(name)\n"
               "maps = open('/proc/self/maps').read()\n"
               "assert 'libcuda.so' not in maps and 'hostsim' not in maps and 'nvidia-ml' not in maps\n"
               "assert dict(os.environ) == before\n"
               "assert [signal.getsignal(n) for n in signal.valid_signals()] == handlers\n"
               "print(len(names) > 80)")  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_image_for_another_architecture_names_both(runtime):
    from foxhunt_rt.driver import Module
    from foxhunt_rt.kernels import images

    here = runtime.device.architecture
    shipped = images.find("add_scalar", here).read()
    assert architecture(shipped) in (here, f"ptx {here}")
    # A cubin for a device that there will never be: the header of a real one, with another number in its flags.
    elf = bytearray(b"\x7fELF\2\1\1A\x08" + bytes(55))
    elf[18:20], elf[48:52] = (190).to_bytes(2, "little"), (0x06000004 | 31 << 8).to_bytes(4, "little")
    for image, name in ((bytes(elf), "sm_31"), (b"\n.version 8.0\n.target sm_999\n.address_size 64\n\0", "ptx sm_999")):
        with pytest.raises(DriverError, match=rf"image for {name}, device {here}"):
            Module(runtime.context, image, "foreign")


def test_errors_are_picklable():
    error = DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access", "cuStreamSynchronize").at(
        child="adam"
    )
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.where == {"child": "adam"} and again.sticky
    assert isinstance(OutOfMemory(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", "cuMemAlloc"), FoxhuntError)


def test_a_device_that_is_not_there():
    done = run("fx.Runtime(device=99)")
    assert done.returncode == 1 and "there is no device 99: give one that this process sees: 0 (GPU-" in done.stderr
