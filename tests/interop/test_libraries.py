"""PyTorch, CuPy and JAX on the GPU: the same memory both ways, in stream order; a torch graph as a child."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.graph import Runtime
from foxhunt_rt.interop import ForeignGraphError, raw_graph, wrap

pytestmark = pytest.mark.gpu
N = 1 << 20
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def adder(runtime: Runtime, x: Any) -> Any:
    plan = runtime.plan("adder")
    with plan.child("add", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (N // 256,), (256,), dict(x=x, value=1.0, n=N))
    return plan.build()


def test_torch_both_ways_in_stream_order(runtime: Runtime) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(N, device="cuda")
    step = adder(runtime, wrap(runtime, tensor, "torch"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            tensor.mul_(2)
            step.launch(stream=stream)
        result = tensor.clone()
        first, same = (
            float(result[0].item()),
            bool((result == result[0]).all()),
        )  # on that stream: no other waits for it
    assert first == 2**20 - 1 and same
    step.close()
    buffer = runtime.array(np.arange(N, dtype=np.float32), "ours")
    ours = torch.from_dlpack(buffer)
    assert ours.data_ptr() == buffer.ptr and float(ours[-1]) == N - 1
    assert torch.as_tensor(buffer, device="cuda").data_ptr() == buffer.ptr  # the CUDA array interface


def test_torch_bfloat16_is_named(runtime: Runtime) -> None:
    torch = pytest.importorskip("torch")
    buffer = wrap(runtime, torch.ones(8, dtype=torch.bfloat16, device="cuda"), "bf16")
    assert (buffer.to_numpy().view(np.uint16) == 0x3F80).all()
    assert torch.from_dlpack(buffer).dtype == torch.bfloat16


def test_cupy_and_jax_both_ways(runtime: Runtime) -> None:
    cupy = pytest.importorskip("cupy")
    array = cupy.zeros(N, cupy.float32)
    step = adder(runtime, wrap(runtime, array, "cupy"))
    step.launch(stream=cupy.cuda.get_current_stream().ptr)
    assert float(array[0]) == 1
    step.close()
    buffer = runtime.array(np.arange(8, dtype=np.float32), "ours")
    assert cupy.asarray(buffer).data.ptr == buffer.ptr and float(cupy.from_dlpack(buffer).sum()) == 28


def test_a_torch_graph_that_was_not_kept_says_so(runtime: Runtime) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
    with pytest.raises(ForeignGraphError, match="keep_graph=True"):
        raw_graph(graph)


def test_a_torch_module_trains_inside_our_step_graph(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("torch_child", EXAMPLES / "torch_child.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main() > 0.9
    assert "bitwise equal" in capsys.readouterr().out
