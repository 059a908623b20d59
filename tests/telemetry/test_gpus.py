"""Which GPUs there are, what CUDA sees of them, who uses them: against a stand-in for NVML, and the driver on a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from foxhunt_rt.driver import Device, call, load
from foxhunt_rt.graph import Runtime
from foxhunt_rt.telemetry.gpus import Gpu, gpus, visible, who_uses_what
from foxhunt_rt.telemetry.nvml import NvmlUnavailable, opened

GIB = 2**30


class Error(Exception):
    pass


def stand_in(mig: dict[int, list[int | None]]) -> SimpleNamespace:
    """Two GPUs as nvidia-ml-py shows them; `mig`: places of each that is split, None for an empty one."""
    uuids = ["GPU-aaaa-0", "GPU-aaba-1"]

    def mode(h: Any) -> list[int]:
        if h[0] not in mig:
            raise Error("Not Supported")
        return [1, 1]

    def place(h: Any, i: int) -> Any:
        if mig[h[0]][i] is None:
            raise Error("Not Found")
        return (h[0], i)

    def processes(h: Any) -> list[Any]:
        if h == (1,):
            raise Error("Insufficient Permissions")
        return [SimpleNamespace(pid=71, usedGpuMemory=3 * 2**20), SimpleNamespace(pid=72, usedGpuMemory=None)]

    return SimpleNamespace(
        NVMLError=Error, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: (i,), nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetUUID=lambda h: uuids[h[0]] if len(h) == 1 else f"MIG-{h[0]}{h[1]}bb",
        nvmlDeviceGetPciInfo=lambda h: SimpleNamespace(busId=f"00000000:{h[0]:02X}:00.0".encode()),
        nvmlDeviceGetName=lambda h: b"Test GPU" if len(h) == 1 else b"Test GPU MIG 1g.18gb",
        nvmlDeviceGetCudaComputeCapability=lambda h: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(total=(80 if len(h) == 1 else 18) * GIB, used=GIB),
        nvmlDeviceGetMaxMigDeviceCount=lambda h: len(mig[h[0]]), nvmlDeviceGetMigDeviceHandleByIndex=place,
        nvmlDeviceGetComputeRunningProcesses=processes,
    )  # fmt: skip


def test_gpus_and_mig_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", stand_in({0: [0, None, 2]}))
    first, second = gpus()
    assert (first.uuid, first.bus_id, first.architecture, first.memory_total) == (
        "GPU-aaaa-0",
        "0000:00:00.0",
        "sm_90",
        80 * GIB,
    )
    assert [(m.uuid, m.index, m.bus_id, m.memory_total) for m in first.instances] == [
        ("MIG-00bb", 0, "0000:00:00.0", 18 * GIB),
        ("MIG-02bb", 2, "0000:00:00.0", 18 * GIB),
    ]
    assert first.processes == ((71, 3 * 2**20), (72, None)) and second.processes == ()
    assert (
        str(first) == "GPU-aaaa-0 at 0000:00:00.0: Test GPU, sm_90, 1.0 of 80.0 GiB used, by processes 71 (3 MiB), 72"
    )


def gpu(index: int, uuid: str, name: str = "A", instances: tuple[Gpu, ...] = ()) -> Gpu:
    return Gpu(index, uuid, f"0000:{index:02X}:00.0", name, (9, 0), GIB, 0, (), instances)


A, B, C = gpu(0, "GPU-aaaa"), gpu(1, "GPU-aabb"), gpu(2, "GPU-cccc")
M, K = gpu(0, "MIG-1111"), gpu(1, "MIG-2222")
SPLIT = gpu(3, "GPU-dddd", instances=(M, K))


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, [A, B, C]),
        ("2,0", [C, A]),
        ("GPU-cc, GPU-aaaa", [C, A]),
        ("1,7,0", [B]),
        ("GPU-aa,2", []),
        ("0,0", [A]),
        ("", []),
        ("-1", []),
        ("0,GPU-ffff,1", [A]),
    ],
)
def test_what_cuda_visible_devices_leaves(chosen: str | None, expected: list[Gpu]) -> None:
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible([A, B, C], environment) == expected


def test_of_mig_instances_one_is_seen() -> None:
    assert visible([A, SPLIT], {"CUDA_VISIBLE_DEVICES": "MIG-2222"}) == [K]
    assert visible([SPLIT], {}) == [M]
    assert visible([A, SPLIT], {"CUDA_VISIBLE_DEVICES": "0"}) == [A]


def test_several_kinds_of_gpu_have_no_known_order() -> None:
    mixed = [A, gpu(1, "GPU-eeee", name="B")]
    assert visible(mixed, {}) is None and visible(mixed, {"CUDA_VISIBLE_DEVICES": "1"}) is None
    assert visible(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-eeee"}) == [mixed[1]]
    assert visible(mixed, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == mixed


def test_a_mig_instance_has_its_own_memory_and_its_gpu_s_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def of(name: str, answer: Any) -> Any:
        def call(h: Any, *_: Any) -> Any:
            asked.append((name, h))
            return answer

        return call

    fake = SimpleNamespace(
        NVMLError=Error, NVMLError_NotSupported=Error, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByUUID=lambda u: "instance",
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda h: "whole", nvmlSystemGetDriverVersion=lambda: "580",
        nvmlDeviceGetName=of("name", "A MIG"), nvmlDeviceGetMemoryInfo=of("memory", SimpleNamespace(used=1, total=2)),
        nvmlDeviceGetClockInfo=of("clock", 1), nvmlDeviceGetMaxClockInfo=of("clock", 1),
        nvmlDeviceGetCurrentClocksEventReasons=of("clock", 0), nvmlDeviceGetPowerUsage=of("power", 1000),
        nvmlDeviceGetEnforcedPowerLimit=of("power", 1000), nvmlDeviceGetTemperature=of("power", 1),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with opened("MIG-1111") as nvml:
        assert nvml.read().memory_total == 2
    assert {h for name, h in asked if name in ("name", "memory")} == {"instance"}
    assert {h for name, h in asked if name in ("clock", "power")} == {"whole"}


def test_names_asked_for_are_those_of_nvidia_ml_py() -> None:
    import pynvml

    for name in [*vars(stand_in({})), "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
                 "nvmlSystemGetCudaDriverVersion"]:  # fmt: skip
        assert hasattr(pynvml, name), name


def test_without_nvml_the_rest_is_known(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise Error("Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=Error, nvmlInit=fails))
    x = runtime.zeros(1000, "f4", "x")
    before = who_uses_what([runtime])[0]["own_bytes"]
    x.free()
    (row,) = who_uses_what([runtime])
    assert (row["uuid"], row["nvml_index"], row["memory_used"]) == (runtime.device.uuid, None, None)
    assert before - row["own_bytes"] == 4000
    with pytest.raises(NvmlUnavailable, match="Library Not Found"):
        gpus()


@pytest.mark.gpu
def test_the_driver_numbers_what_nvml_says_is_visible() -> None:
    count = int(call(load().cuDeviceGetCount))
    seen = visible(gpus())
    if seen is None:
        pytest.skip("several kinds of GPU in CUDA's own order")
    assert [g.uuid for g in seen] == [Device(i).uuid for i in range(count)]
    runtimes = [Runtime(g.uuid) for g in reversed(seen)]
    held = [rt.zeros(2**28, "u1", "held") for rt in runtimes]
    rows = who_uses_what(runtimes)
    assert [r["own_bytes"] for r in rows] == [b.nbytes for b in held]
    for row, g in zip(rows, reversed(seen)):
        assert (row["uuid"], row["bus_id"].lower(), row["nvml_index"]) == (g.uuid, g.bus_id.lower(), g.index)
        assert row["memory_used"] > g.memory_used + 2**27
    for rt in runtimes:
        rt.close()
