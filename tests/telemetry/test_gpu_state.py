"""NVML readings and NVTX ranges, against stand-ins for both libraries: no GPU and no profiler is needed to test what we ask."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from foxhunt_rt._optional import MissingExtra
from foxhunt_rt.telemetry import nvml, nvtx

BUS = "0000:3B:00.0"


class NotSupported(Exception):
    pass


class Error(Exception):
    pass


def stand_in(**values: Any) -> SimpleNamespace:
    """What nvidia-ml-py looks like for one GPU."""

    def handle(bus: bytes) -> str:
        if bus != BUS.encode():
            raise Error("Not Found")
        return "handle"

    def unsupported(*_: Any) -> int:
        raise NotSupported

    calls = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: shut.append(1), "nvmlDeviceGetHandleByPciBusId": handle,
        "nvmlDeviceGetName": lambda h: b"Test GPU", "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetClockInfo": lambda h, kind: {1: 1410, 2: 3201}[kind], "nvmlDeviceGetMaxClockInfo": lambda h, kind: 1980,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 0x45,
        "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=2**30, total=8 * 2**30),
        "nvmlDeviceGetPowerUsage": lambda h: 312_500, "nvmlDeviceGetEnforcedPowerLimit": unsupported,
        "nvmlDeviceGetTemperature": lambda h, kind: 71,
    }  # fmt: skip
    shut: list[int] = []
    return SimpleNamespace(NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, NVMLError=Error,
                           NVMLError_NotSupported=NotSupported, shut=shut, **{**calls, **values})  # fmt: skip


def test_a_reading_says_what_holds_the_clock_down(monkeypatch):
    fake = stand_in()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with nvml.opened(BUS) as opened:
        state = opened.read()
    assert fake.shut == [1]
    assert (state.sm_mhz, state.sm_max_mhz, state.memory_mhz) == (1410, 1980, 3201)
    assert state.throttled == ("software power cap", "hardware thermal slowdown")
    assert state.to_dict()["clock_reasons"] == ["idle", "software power cap", "hardware thermal slowdown"]
    assert (state.power_w, state.power_limit_w, state.temperature_c) == (312.5, None, 71)
    assert str(state) == ("Test GPU, driver 580.1: SM clock 1410 of 1980 MHz, slowed by software power cap, hardware thermal "
                          "slowdown, memory 1.0 of 8.0 GiB, 312 W")  # fmt: skip


def test_idle_and_application_clocks_are_no_slowdown(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", stand_in(nvmlDeviceGetCurrentClocksEventReasons=lambda h: 0x3))
    with nvml.opened(BUS) as opened:
        assert opened.read().throttled == ()


def test_no_library_and_no_such_gpu(monkeypatch):
    def fails() -> None:
        raise Error("Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", stand_in(nvmlInit=fails))
    with pytest.raises(nvml.NvmlUnavailable, match=r"Library Not Found.*install NVIDIA's driver"), nvml.opened(BUS):
        pass
    fake = stand_in()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with pytest.raises(nvml.NvmlUnavailable, match="no GPU at 0000:01:00.0"), nvml.opened("0000:01:00.0"):
        pass
    assert fake.shut == [1]


def test_the_names_asked_for_are_those_of_nvidia_ml_py():
    import pynvml

    for name in vars(stand_in()):
        assert name == "shut" or hasattr(pynvml, name), name
    assert {
        pynvml.nvmlClocksEventReasonSwPowerCap: "software power cap",
        pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hardware power brake",
    } == nvml.SLOWDOWN


@pytest.mark.gpu
def test_the_gpu_in_use_is_the_one_that_is_read(runtime):
    with nvml.opened(runtime.device.pci_bus_id) as opened:
        state = opened.read()
    assert state.name == runtime.device.name
    assert state.sm_mhz > 0 and 0 < state.memory_used <= state.memory_total


def test_ranges_carry_name_and_domain(monkeypatch):
    seen: list[tuple[str, str]] = []

    class Annotate:
        def __init__(self, message: str, domain: str) -> None:
            seen.append((message, domain))

        def __enter__(self) -> None:
            seen.append(("enter", ""))

        def __exit__(self, *_: object) -> None:
            seen.append(("leave", ""))

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=Annotate))
    with nvtx.ranges()("adam"):
        pass
    assert seen == [("adam", "foxhunt_rt"), ("enter", ""), ("leave", "")]


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foxhunt-rt\[profile\]'"):
        nvtx.ranges()
