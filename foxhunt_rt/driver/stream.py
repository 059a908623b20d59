"""Stream and Event."""

from __future__ import annotations

import ctypes
from types import TracebackType

from foxhunt_rt.driver import captures, loader
from foxhunt_rt.driver.context import Context
from foxhunt_rt.driver.errors import CaptureError, FoxhuntError, OtherRuntime


def _destroy(context: Context, destroy_name: str, handle: object) -> None:
    if context.usable:
        with context.current():  # without one the driver refuses, and the stream stays
            getattr(context.cu, destroy_name)(handle)  # a destructor never raises; a dead context owns nothing any more


class Stream:
    """A non-blocking stream: it never waits for the legacy default stream.

    In a capture: legal. Synchronizes: no. Allocates: yes.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        with context.current():
            self.handle = context.call(context.cu.cuStreamCreate, context.cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self._finalizer = context.finalize(self, _destroy, "cuStreamDestroy", self.handle)
        self._fence: object | None = None

    def synchronize(self) -> None:
        """Waits until all work queued so far is done.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        if self.capturing:
            raise CaptureError("a stream that is capturing cannot be synchronized: end the capture first")
        captures.refuse("waiting for a stream")
        with self.context.current():
            self.context.call(self.context.cu.cuStreamSynchronize, self.handle)

    @property
    def done(self) -> bool:
        """Whether all queued work is done. Does not wait.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        captures.refuse("asking whether a stream is done")
        cu = self.context.cu
        with self.context.current():
            status = cu.cuStreamQuery(self.handle)[0]
        if status == cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self.context.raise_for(status, "cuStreamQuery")
        return True

    @property
    def capturing(self) -> bool:
        """Whether a capture of this stream is under way, valid or not, whoever began it."""
        cu = self.context.cu
        with self.context.current():
            status = self.context.call(cu.cuStreamIsCapturing, self.handle)
        return bool(status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def wait(self, other: object) -> None:
        """Work queued in this stream from now on waits for all that is queued in another one so far.

        In a capture: refused, unless both streams are in that capture. Synchronizes: no. Allocates: may, an event the first
        time.

        Parameters
        ----------
        other : Stream, or whatever `stream_handle` takes
        """
        self._check_own(other)
        self._order(self.context.cu.CUstream(stream_handle(other)), self.handle)

    def before(self, other: object) -> None:
        """Work queued in another stream from now on waits for all that is queued in this one so far. Does not block the host.

        In a capture: legal, the other stream joins the capture. Synchronizes: no. Allocates: may, an event the first time.
        """
        self._check_own(other)
        self._order(self.handle, self.context.cu.CUstream(stream_handle(other)))

    def _check_own(self, other: object) -> None:
        """A stream of ours on another device is refused: the event between two streams belongs to one context."""
        if isinstance(other, Stream) and other.context.device.ordinal != self.context.device.ordinal:
            raise OtherRuntime(f"a stream of device {other.context.device.ordinal} cannot be ordered with one of device "
                               f"{self.context.device.ordinal}: synchronize the first on the host")  # fmt: skip

    def _order(self, first: object, second: object) -> None:
        context = self.context
        with context.current():
            if self._fence is None:
                flag = context.cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
                self._fence = context.call(context.cu.cuEventCreate, flag)
                context.finalize(self, _destroy, "cuEventDestroy", self._fence)
            context.call(context.cu.cuEventRecord, self._fence, first)
            context.call(context.cu.cuStreamWaitEvent, second, self._fence, 0)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol of cuda.core: version and handle."""
        return 0, int(self.handle)

    def close(self) -> None:
        """Destroys the stream. Idempotent. In a capture: legal. Synchronizes: no. Allocates: yes."""
        self._finalizer()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def stream_handle(stream: object) -> int:
    """The CUstream behind a `Stream`, an object with ``__cuda_stream__`` (cuda.core, CuPy) or ``cuda_stream`` (PyTorch), or an
    integer: 0 or 1 for the legacy default stream, 2 for the per-thread one, else a handle."""
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found = protocol() if callable(protocol) else protocol
        if found[0] != 0:
            raise FoxhuntError(f"__cuda_stream__ of version {found[0]} is not supported: give one of version 0")
        return int(found[1])
    handle = getattr(stream, "cuda_stream", None)
    if isinstance(handle, int):
        return handle
    raise FoxhuntError(f"{type(stream).__name__} is no stream: give one with __cuda_stream__, or its handle as an int")


class Event:
    """An event that can time: `elapsed_ms` between two of them has a resolution of about half a microsecond.

    In a capture: legal. Synchronizes: no. Allocates: yes.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        with context.current():
            self.handle = context.call(context.cu.cuEventCreate, context.cu.CUevent_flags.CU_EVENT_DEFAULT)
            self._finalizer = context.finalize(self, _destroy, "cuEventDestroy", self.handle)

    def record(self, stream: Stream) -> None:
        """Records the event in a stream. In a capture: legal. Synchronizes: no. Allocates: no."""
        with self.context.current():
            self.context.call(self.context.cu.cuEventRecord, self.handle, stream.handle)

    def synchronize(self) -> None:
        """Waits for the event. In a capture: refused. Synchronizes: yes. Allocates: no."""
        captures.refuse("waiting for an event")
        with self.context.current():
            self.context.call(self.context.cu.cuEventSynchronize, self.handle)

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds from ``start`` to this event, both recorded and done."""
        context = self.context
        with context.current():
            if context.features.has("event_timing"):
                return float(context.call(context.cu.cuEventElapsedTime, start.handle, self.handle))
            found = ctypes.c_float()
            status = loader.libcuda().cuEventElapsedTime(ctypes.byref(found), ctypes.c_void_p(int(start.handle)),
                                                         ctypes.c_void_p(int(self.handle)))  # fmt: skip
            context.raise_for(status, "cuEventElapsedTime")
            return found.value
