"""What hostsim finds and a GPU does not: each strict mode catches the mistake it is made for, and names it.

Every script runs in a process of its own, because the modes are read when the library is loaded and most findings end
the context.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.hostsim
Script = Callable[..., str]
Program = Callable[..., Any]


def test_a_divergent_barrier_is_an_error_that_names_the_kernel(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
y = cu.array([0])
cu.launch(cu.function("conformance", "divergent_barrier"), 1, 64, struct.pack("QiI", y, 5, 0))
print(cu.status("cuCtxSynchronize"), cu.status("cuMemAlloc", 4))
print(cu.report())
"""
    )
    status, report = out.splitlines()
    assert status == "LAUNCH_FAILED LAUNCH_FAILED"
    assert "kernel divergent_barrier, block (0,0,0)" in report
    assert "of 64 threads 59 wait at __syncthreads(), 0 at a warp function, 5 have exited" in report


def test_the_same_barrier_reached_by_all_is_none(script: Script) -> None:
    assert (
        script(
            """
cu = RawDriver()
y = cu.array([0])
cu.launch(cu.function("conformance", "divergent_barrier"), 1, 64, struct.pack("QiI", y, 0, 0))
print(cu.read(y, 1)[0])
"""
        )
        == "63.0"
    )


OUT_OF_BOUNDS = """
cu = RawDriver()
x, y = cu.array(np.arange(64)), cu.array(np.zeros(64))
cu.hostsim.fxHostsimLabel(x, b"weights")
cu.hostsim.fxHostsimLabel(y, b"gradient")
cu.launch(cu.function("conformance", "copy_element"), 2, 32, copy_element(x, y, {from_}, {to}))
print(cu.status("cuCtxSynchronize"))
print(cu.report())
"""


@pytest.mark.parametrize(
    ("from_", "to", "finding"),
    [
        (64, 0, "0 bytes behind weights (256 bytes)"),
        (70, 0, "24 bytes behind weights (256 bytes)"),
        (-1000, 0, "4000 bytes before weights (256 bytes)"),
        (0, 64, "0 bytes behind gradient (256 bytes)"),
    ],
)
def test_guard_pages_catch_accesses_out_of_bounds(script: Script, from_: int, to: int, finding: str) -> None:
    out = script(OUT_OF_BOUNDS.format(from_=from_, to=to), hostsim="redzones=1")
    status, report = out.splitlines()
    assert status == "ILLEGAL_ADDRESS"
    assert finding in report
    assert report.startswith("kernel copy_element, block (0,0,0), thread (0,0,0): illegal address")


def test_a_write_into_the_slack_is_found_after_the_launch(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
x, y = cu.array(np.arange(5)), cu.array(np.zeros(5))
cu.hostsim.fxHostsimLabel(y, b"gradient")
cu.launch(cu.function("conformance", "copy_element"), 1, 32, copy_element(x, y, 0, 6))
print(cu.status("cuCtxSynchronize"))
print(cu.report())
""",
        hostsim="redzones=1",
    )
    assert out == "ILLEGAL_ADDRESS\nkernel copy_element: wrote 4 bytes behind gradient (20 bytes)"


def test_a_use_after_free_is_caught(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
x, y = cu.array(np.arange(64)), cu.array(np.zeros(64))
cu.hostsim.fxHostsimLabel(x, b"batch")
cu.cuMemFree(x)
cu.launch(cu.function("conformance", "copy_element"), 1, 32, copy_element(x, y, 3, 0))
print(cu.status("cuCtxSynchronize"))
print(cu.report())
""",
        hostsim="redzones=1",
    )
    assert "offset 12 of batch (256 bytes), which has been freed" in out


def test_fresh_memory_holds_signalling_nans(script: Script) -> None:
    code = """
cu = RawDriver()
x = int(cu.cuMemAlloc(40))
print(np.isnan(cu.read(x, 10)).all(), np.isnan(cu.read(x, 5, np.float64)).all(), np.unique(cu.read(x, 10, np.uint32)))
"""
    assert script(code, hostsim="poison=1") == f"True True [{0x7FA17FA1} {0x7FF47FA1}]"


MISSING_SYNC = """
cu = RawDriver()
s = cu.stream()
host, p = cu.mapped(2, np.uint64)
f = cu.function("conformance", "publish_word")
cu.launch(f, 1, 1, struct.pack("QQQ", p, p + 8, 9), s)
early = host.tolist()
{wait}
print(early, host.tolist())
"""


def test_deferred_mode_shows_a_read_without_a_synchronization(script: Script) -> None:
    assert script(MISSING_SYNC.format(wait="cu.cuStreamSynchronize(s)"), hostsim="deferred=1") == "[0, 0] [9, 9]"
    assert script(MISSING_SYNC.format(wait="cu.hostsim.fxHostsimPoll()"), hostsim="deferred=1") == "[0, 0] [9, 9]"
    assert script(MISSING_SYNC.format(wait="cu.status('cuStreamQuery', s)"), hostsim="deferred=1") == "[0, 0] [9, 9]"
    assert script(MISSING_SYNC.format(wait=""), hostsim="deferred=1") == "[0, 0] [0, 0]"
    assert script(MISSING_SYNC.format(wait=""), hostsim="deferred=0") == "[9, 9] [9, 9]"


def test_deferred_mode_runs_the_oldest_work_when_enough_is_queued(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
cu.hostsim.fxHostsimConfigure(b"depth", 3)
s = cu.stream()
host, p = cu.mapped(2, np.uint64)
f = cu.function("conformance", "publish_word")
seen = []
for k in range(1, 7):
    cu.launch(f, 1, 1, struct.pack("QQQ", p, p + 8, k), s)
    seen.append(int(host[0]))
print(seen)
""",
        hostsim="deferred=1",
    )
    assert out == "[0, 0, 0, 1, 2, 3]"


@pytest.mark.parametrize(("edge", "expected"), [(True, 1.0), (False, 0.0)])
def test_deferred_mode_shows_a_missing_event_edge(script: Script, edge: bool, expected: float) -> None:
    out = script(
        f"""
cu = RawDriver()
a, b = cu.stream(), cu.stream()
event = cu.cuEventCreate(0)
x, y = cu.array([0.0]), cu.array([9.0])
cu.launch(cu.function("basic", "add_scalar"), 1, 32, add_scalar(x, 1.0, 1), a)
cu.cuEventRecord(event, a)
if {edge}: cu.cuStreamWaitEvent(b, event, 0)
cu.cuMemcpyDtoDAsync(y, x, 4, b)
cu.cuStreamSynchronize(b)
cu.cuStreamSynchronize(a)
print(cu.read(y, 1)[0])
""",
        hostsim="deferred=1",
    )
    assert float(out) == expected


LAST_WRITER = """
cu = RawDriver()
out = cu.array([-1], np.int32)
f = cu.function("conformance", "last_writer")
def last(grid, block):
    cu.launch(f, grid, block, struct.pack("Q", out))
    return int(cu.read(out, 1, np.int32)[0])
"""


def test_a_seed_shuffles_threads_and_blocks(script: Script) -> None:
    natural = script(LAST_WRITER + "print(last(1, 64), last(1, 64), last(9, 1))", hostsim="workers=1")
    assert natural == "63 63 8"
    code = LAST_WRITER + "print([last(1, 64) % 64 for _ in range(6)], [last(64, 1) for _ in range(6)])"
    first, again, other = (script(code, hostsim=f"seed={seed}") for seed in (1, 1, 2))
    assert first == again != other
    threads, blocks = re.findall(r"\[.*?\]", first)
    assert len(set(eval(threads))) > 2 and len(set(eval(blocks))) > 2


def test_a_seed_changes_no_result_of_a_right_kernel(script: Script) -> None:
    code = """
cu = RawDriver()
values = np.random.default_rng(0).standard_normal((7, 96)).astype(np.float32)
x, y = cu.array(values), cu.array(np.zeros_like(values))
cu.launch(cu.function("basic", "reverse_rows"), 7, 96, reverse_rows(x, y, 7, 96), shared=4 * 96)
assert (cu.read(y, 7 * 96).reshape(7, 96) == values[:, ::-1]).all()
cu.launch(cu.function("basic", "warp_sum"), 7, 96, sum_args(x, y, 7 * 96))
print(cu.read(y, 21).tobytes().hex())
"""
    assert len({script(code, hostsim=f"seed={seed}") for seed in (0, 1, 2, 3)}) == 1


def test_a_seed_shuffles_graph_nodes_without_an_edge(script: Script) -> None:
    code = """
cu = RawDriver()
f = cu.function("basic", "add_scalar")
found = set()
for _ in range(20):
    x, y = cu.array([0.0]), cu.array([9.0])
    graph = cu.cuGraphCreate(0)
    a = cu.add_kernel(graph, [], f, 1, 32, add_scalar(x, 1.0, 1))
    cu.add_kernel(graph, [a] if EDGE else [], cu.function("conformance", "copy_element"), 1, 32, copy_element(x, y, 0, 0))
    cu.cuGraphLaunch(cu.instantiate(graph), 0)
    found.add(float(cu.read(y, 1)[0]))
print(sorted(found))
"""
    assert script(code.replace("EDGE", "True"), hostsim="seed=5") == "[1.0]"
    assert script(code.replace("EDGE", "False"), hostsim="seed=5") == "[0.0, 1.0]"


def test_blocks_spread_over_workers_give_the_same_bits(script: Script) -> None:
    code = """
cu = RawDriver()
values = np.random.default_rng(0).standard_normal((3000, 256)).astype(np.float32)
x, y = cu.array(values), cu.array(np.zeros_like(values))
for _ in range(3):
    cu.launch(cu.function("basic", "reverse_rows"), 3000, 256, reverse_rows(x, y, 3000, 256), shared=1024)
print((cu.read(y, values.size).reshape(3000, 256) == values[:, ::-1]).all())
"""
    assert script(code, hostsim="workers=4") == "True"


def test_a_fault_on_a_worker_thread_is_reported(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
x = cu.array(np.zeros(3000 * 256))
cu.launch(cu.function("basic", "reverse_rows"), 4000, 256, reverse_rows(x, x, 4000, 256), shared=1024)
print(cu.status("cuCtxSynchronize"), "kernel reverse_rows, block (3000,0,0)" in cu.report() or cu.report())
""",
        hostsim="workers=4,redzones=1",
    )
    assert out.startswith("ILLEGAL_ADDRESS")


def test_an_unloaded_module_in_a_graph_is_an_error(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
module = cu.module("basic")
graph = cu.cuGraphCreate(0)
cu.add_kernel(graph, [], cu.cuModuleGetFunction(module, b"empty"), 1, 32, bytes(8))
launched = cu.instantiate(graph)
cu.cuModuleUnload(module)
cu.cuGraphLaunch(launched, 0)
print(cu.status("cuCtxSynchronize"))
print(cu.report())
"""
    )
    assert out == "LAUNCH_FAILED\na graph launches kernel empty of a module that has been unloaded"


def test_a_missing_entry_point_says_which(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
print(cu.status("cuArrayDestroy", 0), "|", cu.report())
"""
    )
    printed, answer = out.splitlines()  # once on stderr, and in the report
    assert printed == "hostsim: cuArrayDestroy is not supported" and answer == f"NOT_SUPPORTED | {printed}"


def test_calls_are_counted(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
launched = cu.instantiate(cu.cuGraphCreate(0))
before = cu.hostsim.fxHostsimCounter(b"cuGraphLaunch")
for _ in range(3): cu.cuGraphLaunch(launched, 0)
print(cu.hostsim.fxHostsimCounter(b"cuGraphLaunch") - before, cu.hostsim.fxHostsimCounter(b"cuMemAlloc"))
"""
    )
    assert out == "3 0"


def test_options_are_checked(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
print([cu.hostsim.fxHostsimConfigure(k, v) for k, v in [(b"deferred", 1), (b"deferrred", 1), (b"depth", 0), (b"seed", 3)]])
"""
    )
    assert out == "[0, 1, 1, 0]"


def test_a_host_function_may_not_call_the_driver(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
seen = []
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append(cu.status("cuMemAlloc", 16)))
cu.cuLaunchHostFunc(0, cu.api.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), 0)
cu.cuCtxSynchronize()
print(seen)
"""
    )
    assert out == "['NOT_PERMITTED']"


def test_use_after_fork_is_refused(script: Script) -> None:
    out = script(
        """
cu = RawDriver()
pid = os.fork()
if pid == 0:
    print(cu.status("cuMemAlloc", 16), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(cu.status("cuMemAlloc", 16))
"""
    )
    assert out == "NOT_INITIALIZED\nCUDA_SUCCESS"


HANDLERS = """
import faulthandler
cu = RawDriver()
x, y = cu.array(np.arange(64)), cu.array(np.zeros(64))
def works(): cu.launch(cu.function("conformance", "copy_element"), 1, 32, copy_element(x, y, 0, 0)); cu.cuCtxSynchronize()
def fails():
    cu.launch(cu.function("conformance", "copy_element"), 1, 32, copy_element(x, y, 70, 0))
    print(cu.status("cuCtxSynchronize"))
quiet = open(os.devnull, "w")
"""


@pytest.mark.parametrize("order", [
    "faulthandler.enable(quiet); works(); faulthandler.disable(); fails()",  # puts back what stood before hostsim's
    "works(); faulthandler.enable(quiet); fails()",
    "works(); faulthandler.enable(quiet); works(); faulthandler.disable(); fails()",
])  # fmt: skip
def test_a_handler_put_back_by_others_does_not_unarm_hostsim(script: Script, order: str) -> None:
    """pytest's faulthandler is disabled before the last garbage collection, in which queued kernels may run: they killed it."""
    assert script("import os\n" + HANDLERS + order, hostsim="redzones=1,deferred=1") == "ILLEGAL_ADDRESS"


@pytest.mark.parametrize("order", [
    "works()",
    "faulthandler.enable(quiet); works()",
    "works(); faulthandler.enable(quiet)",
    "works(); faulthandler.enable(quiet); works()",
])  # fmt: skip
def test_a_fault_outside_a_kernel_ends_the_process_as_ever(program: Program, order: str) -> None:
    ended = program("import ctypes, os\nfrom raw_driver import *\n" + HANDLERS + order + "; ctypes.string_at(8)")
    assert (ended.status, ended.output) == (-signal.SIGSEGV, ""), ended
