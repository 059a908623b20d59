"""How long recorded launches take: a chain of repetitions in a graph of its own, timed by events."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable

import numpy as np

from foxhunt_rt.driver import Buffer, DeviceBuffer, Event, Stream, capture
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi

_ROUNDS = 7
_TARGET_US = 500.0  # of one round: long beside the resolution of an event, short beside a build
_MOST = 20
_users = itertools.count()


def microseconds(
    rt: Runtime, record: Callable[[Child], None], reads: Iterable[Buffer], writes: Iterable[Buffer]
) -> float:
    """Median time of what ``record`` records, once, in a dependent chain. Loads, captures and synchronizes; not legal inside a
    capture. Its modules are unloaded again."""
    user = f"gemm/measure{next(_users)}"
    context = rt.context
    with Child("measure", reads, writes) as child:
        record(child)
    try:
        with context.current(), Stream(context) as stream:
            functions = {kernel: rt.modules.function(user, kernel) for kernel in child.kernels}
            child.run(context, stream, functions)  # loads what the library loads lazily
            begin, end = Event(context), Event(context)

            def round_of(repeats: int, rounds: int) -> float:
                with capture(stream) as recording:
                    for _ in range(repeats):
                        child.run(context, stream, functions)
                executable = recording.graph.instantiate(stream)
                executable.upload(stream)
                samples = []
                for _ in range(rounds + 1):  # the first warms up
                    begin.record(stream)
                    executable.launch(stream)
                    end.record(stream)
                    end.synchronize()
                    samples.append(end.elapsed_ms(begin) * 1e3 / repeats)
                executable.close()
                recording.graph.close()
                return statistics.median(samples[1:])

            once = max(round_of(1, 2), 0.1)
            return round_of(max(2, min(_MOST, int(_TARGET_US / once))), _ROUNDS)
    finally:
        rt.modules.drop(user)


def random_buffer(rt: Runtime, elements: int, kind: str, label: str) -> DeviceBuffer:
    """Normal numbers as f32 or bf16: constant operands draw less power, and so run faster, than those of a network."""
    block = np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)
    if kind == "bf16":
        block = (block.view(np.uint32) >> 16).astype(np.uint16).view(abi.bf16)
    buffer = rt.empty(elements, block.dtype, label)
    head = min(elements, block.size)
    buffer[:head].copy_from(block[:head])
    done = head
    while done < elements:
        more = min(done, elements - done)
        buffer[done : done + more].copy_from_device(buffer[:more])
        done += more
    return buffer


__all__ = ["microseconds", "random_buffer"]
