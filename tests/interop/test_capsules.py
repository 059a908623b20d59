"""What a consumer does to an exported capsule at a bad moment: while an exception is set, from a thread of its own, without the
GIL, after the interpreter's end. The exception stays what it was, the memory is let go of once, and nothing crashes.

A consumer in C++ stands for the libraries that do so: it calls the deleter as they would.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.driver import dlpack
from foxhunt_rt.graph import Runtime

ROOT = Path(__file__).resolve().parents[2]

CONSUMER = r"""
#include <pthread.h>
#include <unistd.h>
extern "C" {
void PyErr_SetString(void *type, const char *text);
typedef void (*Deleter)(void *);
void with_exception(void *type, const char *text, Deleter deleter, void *managed) {  // with the GIL
    PyErr_SetString(type, text);
    deleter(managed);
}
struct Call { Deleter deleter; void *managed; };
static void *body(void *call) {
    ((Call *)call)->deleter(((Call *)call)->managed);
    return nullptr;
}
void in_a_thread(Deleter deleter, void *managed) {  // without the GIL, in a thread that Python has never seen
    Call call{deleter, managed};
    pthread_t thread;
    pthread_create(&thread, nullptr, body, &call);
    pthread_join(thread, nullptr);
}
static Call last;
void at_the_very_end(Deleter deleter, void *managed) { last = {deleter, managed}; }
__attribute__((destructor)) static void end() {  // the interpreter is gone
    if (!last.deleter) return;
    last.deleter(last.managed);
    (void)!write(1, "deleted\n", 8);
}
}
"""


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++ for the consumer")
    folder = tmp_path_factory.mktemp("consumer")
    (folder / "consumer.cpp").write_text(CONSUMER)
    library = folder / "libconsumer.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-pthread", "-o", library, folder / "consumer.cpp"], check=True)
    return library


class Producer:
    """Memory of a device that no library has, which every consumer refuses when it has the capsule."""

    def __init__(self, versioned: bool, released: Callable[[], None]) -> None:
        self.versioned, self.released = versioned, released

    def __dlpack_device__(self) -> tuple[int, int]:
        return 99, 0

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack.export(4096, (4,), np.dtype(np.float32), (99, 0), versioned=self.versioned, read_only=False, keep=None,
                             released=self.released)  # fmt: skip


class OldProducer:
    """One from before DLPack 1.0, whose `__dlpack__` knows no versions."""

    def __init__(self, released: Callable[[], None]) -> None:
        self.new = Producer(False, released)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.new.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.new.__dlpack__()


def managed(capsule: Any) -> tuple[int, int]:
    """Takes a capsule over as a consumer does: its deleter and managed tensor."""
    address = dlpack._pointer(capsule, b"dltensor_versioned")
    dlpack._rename(capsule, b"used_dltensor_versioned")
    return dlpack._ManagedVersioned.from_address(address).deleter, address


@pytest.fixture
def released() -> list[str]:
    """Names of the threads that called back."""
    return []


@pytest.fixture
def taken(released: list[str]) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    capsule = Producer(True, lambda: released.append(threading.current_thread().name)).__dlpack__()
    deleter, address = managed(capsule)
    return ctypes.c_void_p(deleter), ctypes.c_void_p(address)


@pytest.mark.parametrize("versioned", [True, False])
def test_a_capsule_dropped_while_an_exception_is_set(versioned: bool, released: list[str]) -> None:
    producer = Producer(versioned, lambda: released.append("now"))
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        print(producer.__dlpack__(), 1 / 0)  # the interpreter drops what it has on its stack with the exception set
    assert released == ["now"]


@pytest.mark.parametrize("old", [False, True])
def test_numpys_own_error_comes_out(old: bool, released: list[str]) -> None:
    """It sets the error, then drops the capsule."""
    producer: Any = (
        OldProducer(lambda: released.append("now")) if old else Producer(True, lambda: released.append("now"))
    )
    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):  # the former until NumPy 2.4 at least
        np.from_dlpack(producer)
    assert released == ["now"]


@pytest.mark.gpu
def test_numpy_refuses_device_memory(runtime: Runtime) -> None:
    buffer = runtime.zeros(4, np.float32, "x")
    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
        np.from_dlpack(buffer)
    buffer.free()  # nobody holds it


def test_a_deleter_called_while_an_exception_is_set(consumer: Path, released: list[str], taken: Any) -> None:
    function = ctypes.PyDLL(str(consumer)).with_exception
    with pytest.raises(ValueError, match="theirs"):
        function(ctypes.py_object(ValueError), b"theirs", *taken)
    assert released == [threading.current_thread().name]


def test_an_exception_of_ours_does_not_replace_theirs(consumer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise KeyError("ours")

    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    deleter, address = managed(Producer(True, fails).__dlpack__())
    with pytest.raises(ValueError, match="theirs"):
        ctypes.PyDLL(str(consumer)).with_exception(
            ctypes.py_object(ValueError), b"theirs", ctypes.c_void_p(deleter), ctypes.c_void_p(address)
        )
    assert [type(s.exc_value) for s in seen] == [KeyError]


def test_a_deleter_called_without_the_gil(released: list[str], taken: Any) -> None:
    deleter, address = taken
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter.value)(address)  # ctypes lets go of the GIL
    assert released == [threading.current_thread().name]


def test_a_deleter_called_by_a_foreign_thread(consumer: Path, released: list[str], taken: Any) -> None:
    ctypes.CDLL(str(consumer)).in_a_thread(*taken)
    assert len(released) == 1 and released[0] != threading.current_thread().name


AT_EXIT = """
import atexit, ctypes, sys
library = ctypes.PyDLL(sys.argv[1])
def export(name):
    return dlpack.export(4096, (4,), np.dtype("f4"), (99, 0), versioned=True, read_only=False, keep=None,
                         released=lambda: print(name, flush=True))
def take(name):
    capsule = export(name)
    address = dlpack._pointer(capsule, b"dltensor_versioned")
    dlpack._rename(capsule, b"used_dltensor_versioned")
    return ctypes.c_void_p(dlpack._ManagedVersioned.from_address(address).deleter), ctypes.c_void_p(address)
import numpy as np
from foxhunt_rt.driver import dlpack
"""


def at_exit(consumer: Path, code: str) -> tuple[int, str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", AT_EXIT + code, consumer], text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_deleter_called_when_the_interpreter_is_gone(consumer: Path) -> None:
    """By a destructor of another library, which Python no longer knows of; the tensor is there to the end."""
    assert at_exit(consumer, "library.at_the_very_end(*take('never'))") == (0, "deleted\n", "")


def test_capsules_of_programs_that_end(consumer: Path) -> None:
    """What is dropped by the program's own atexit functions is let go of; what outlives the modules is left to the end."""
    code = """
atexit.register(list.clear, [export("dropped at exit")])
held = take("deleted at exit")
atexit.register(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(held[0].value), held[1])
import builtins
builtins.left = export("never")
"""
    assert at_exit(consumer, code) == (0, "deleted at exit\ndropped at exit\n", "")


def test_a_thread_that_deletes_while_the_interpreter_ends(consumer: Path) -> None:
    code = """
import threading, time
def forever():
    while True:
        deleter, address = take_quietly()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter.value)(address)
def take_quietly():
    taken = take("x")
    dlpack._exported[taken[1].value] = (*dlpack._exported[taken[1].value][:-1], lambda: None)
    return taken
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
"""
    assert at_exit(consumer, code) == (0, "", "")
