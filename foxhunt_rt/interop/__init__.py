"""Other libraries' memory, streams and graphs, and ours for them, without copies: docs/interop.md.

x = interop.wrap(rt, tensor, "features")          # PyTorch, CuPy, JAX, NumPy, cuda.core: a buffer over the same memory
array = numpy.from_dlpack(buffer)                 # ours for others: __dlpack__, __cuda_array_interface__
step.launch(stream=torch.cuda.current_stream())   # __cuda_stream__, in both directions
plan.child_from_graph("head", torch_graph, reads=[x], writes=[y])
"""

from foxhunt_rt.driver.stream import stream_handle
from foxhunt_rt.graph.foreign import ForeignGraphError, raw_graph
from foxhunt_rt.interop.memory import ForeignMemoryError, from_cuda_array_interface, from_dlpack, to_numpy, wrap

__all__ = [
    "ForeignGraphError", "ForeignMemoryError", "from_cuda_array_interface", "from_dlpack", "raw_graph", "stream_handle",
    "to_numpy", "wrap",
]  # fmt: skip
