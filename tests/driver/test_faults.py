"""The fault plan of hostsim: chosen calls and kernels fail by count, and a sticky failure kills the context as on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.hostsim
Script = Callable[..., str]


def test_the_nth_call_of_an_entry_point_fails_and_the_next_works(script: Script) -> None:
    code = "cu = RawDriver()\nprint([cu.status('cuMemAlloc', 4) for _ in range(4)])"
    out = script(code, FOXHUNT_FAULTS="cuMemAlloc@3=OUT_OF_MEMORY")
    assert out == "['CUDA_SUCCESS', 'CUDA_SUCCESS', 'OUT_OF_MEMORY', 'CUDA_SUCCESS']"


def test_any_allocation_counts_for_alloc(script: Script) -> None:
    code = """
cu = RawDriver()
print(cu.status("cuMemAlloc", 4), cu.status("cuMemHostAlloc", 4, 0), cu.status("cuMemAllocAsync", 4, 0))
print(cu.report())
"""
    out = script(code, FOXHUNT_FAULTS="alloc@2=OUT_OF_MEMORY;alloc@3=CUDA_ERROR_INVALID_VALUE")
    assert out == ("CUDA_SUCCESS OUT_OF_MEMORY INVALID_VALUE\n"
                   "fault plan: alloc@3=CUDA_ERROR_INVALID_VALUE, in cuMemAllocAsync")  # fmt: skip


@pytest.mark.parametrize("graphed", [False, True])
@pytest.mark.parametrize("deferred", [0, 1])
def test_the_nth_run_of_a_kernel_fails_asynchronously_and_kills_the_context(
    script: Script, graphed: bool, deferred: int
) -> None:
    code = f"""
cu = RawDriver()
x = cu.array([0.0])
add, empty = cu.function("basic", "add_scalar"), cu.function("basic", "empty")
graph = cu.cuGraphCreate(0)
cu.add_kernel(graph, [], add, 1, 32, add_scalar(x, 1.0, 1))
replay = cu.instantiate(graph)
launches = []
for _ in range(3):
    cu.launch(empty, 1, 32, bytes(8))
    if {graphed}: launches.append(cu.status("cuGraphLaunch", replay, 0))
    else: cu.launch(add, 1, 32, add_scalar(x, 1.0, 1)); launches.append("CUDA_SUCCESS")
    if len(launches) < 3: cu.cuCtxSynchronize()
print(launches[-1], cu.status("cuCtxSynchronize"), cu.status("cuMemAlloc", 4), cu.status("cuMemFree", x))
print(cu.report())
"""
    out = script(code, hostsim=f"deferred={deferred}", FOXHUNT_FAULTS="launch:add_scalar@3=ILLEGAL_ADDRESS")
    assert out == ("CUDA_SUCCESS ILLEGAL_ADDRESS ILLEGAL_ADDRESS ILLEGAL_ADDRESS\n"
                   "fault plan: launch:add_scalar@3=ILLEGAL_ADDRESS, in kernel add_scalar")  # fmt: skip


def test_a_sticky_error_of_a_call_kills_the_context_and_another_does_not(script: Script) -> None:
    code = "cu = RawDriver()\nprint(cu.status('cuCtxSynchronize'), cu.status('cuMemAlloc', 4))"
    assert script(code, FOXHUNT_FAULTS="cuCtxSynchronize@1=LAUNCH_FAILED") == "LAUNCH_FAILED LAUNCH_FAILED"
    assert script(code, FOXHUNT_FAULTS="cuCtxSynchronize@1=NOT_SUPPORTED") == "NOT_SUPPORTED CUDA_SUCCESS"


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("cuMemAlloc=OUT_OF_MEMORY", "it is not WHAT@COUNT=ERROR"),
        ("cuMemAlloc@0=OUT_OF_MEMORY", "the count is not a number from 1"),
        ("cuMemAlloc@2x=OUT_OF_MEMORY", "the count is not a number from 1"),
        ("cuMemAlloc@1=OUT_OF_MERMORY", "there is no such error"),
        ("memAlloc@1=OUT_OF_MEMORY", "what fails is an entry point of hostsim"),
        ("launch:adam@1=OUT_OF_MEMORY", "a kernel that fails kills its context"),
    ],
)
def test_a_plan_that_is_not_understood_stops_the_program(script: Script, plan: str, why: str) -> None:
    code = "try: RawDriver()\nexcept Status as e: print(e.name)"
    said, refused = script(code, FOXHUNT_FAULTS=plan).splitlines()
    assert said.startswith(f"hostsim: fault plan: {plan}: {why}") and refused.startswith("INVALID_VALUE")


def test_a_plan_can_be_set_by_a_program(script: Script) -> None:
    code = """
cu = RawDriver()
cu.cuMemAlloc(4)
print(cu.hostsim.fxHostsimFaults(b"cuMemAlloc@2=OUT_OF_MEMORY"), cu.status("cuMemAlloc", 4), cu.status("cuMemAlloc", 4))
print(cu.hostsim.fxHostsimFaults(b"nonsense"), cu.hostsim.fxHostsimFaults(b""))
"""
    out = script(code).splitlines()  # and one line on stderr about the nonsense
    assert [line for line in out if "fault plan" not in line] == ["0 CUDA_SUCCESS OUT_OF_MEMORY", "1 0"]
