// Memory entry points: allocation, copies, fills, information.
#include <algorithm>
#include <cstring>

#include "hostsim/driver.h"
#include "hostsim/graph.h"

namespace hostsim {

namespace {

// What one side of a copy touches: rows of `width` bytes.
struct Side {
    char *base;
    size_t pitch, height;  // bytes between rows, rows between planes
};

Side source(const CUDA_MEMCPY3D &p) {
    char *b = p.srcMemoryType == CU_MEMORYTYPE_HOST ? (char *)p.srcHost : (char *)p.srcDevice;
    size_t pitch = p.srcPitch ? p.srcPitch : p.WidthInBytes, height = p.srcHeight ? p.srcHeight : p.Height;
    return {b + p.srcXInBytes + p.srcY * pitch + p.srcZ * pitch * height, pitch, height};
}
Side destination(const CUDA_MEMCPY3D &p) {
    char *b = p.dstMemoryType == CU_MEMORYTYPE_HOST ? (char *)p.dstHost : (char *)p.dstDevice;
    size_t pitch = p.dstPitch ? p.dstPitch : p.WidthInBytes, height = p.dstHeight ? p.dstHeight : p.Height;
    return {b + p.dstXInBytes + p.dstY * pitch + p.dstZ * pitch * height, pitch, height};
}

// Device pointers must lie in one allocation; host pointers are the caller's business.
bool side_is_known(CUmemorytype type, const Side &s, const CUDA_MEMCPY3D &p) {
    if (type == CU_MEMORYTYPE_HOST) return s.base != nullptr;
    size_t bytes = ((p.Depth - 1) * s.height + (p.Height - 1)) * s.pitch + p.WidthInBytes;
    if (type == CU_MEMORYTYPE_UNIFIED && !find(s.base)) return s.base != nullptr;  // pageable host memory
    if (find(s.base, bytes)) return true;
    char what[300];
    describe_address((CUdeviceptr)s.base, what, sizeof(what));
    report("a copy or fill of %zu bytes at %p does not lie in one allocation: %s", bytes, (void *)s.base, what);
    return false;
}

CUresult copy(const CUDA_MEMCPY3D &p, CUstream stream, bool async, const char *call) {
    if (!p.WidthInBytes || !p.Height || !p.Depth) return CUDA_SUCCESS;
    FX_TRY(check_copy(p));
    Stream *s;
    FX_TRY(find_stream(stream, s));
    bool capturing;
    FX_TRY(check_stream(s, call, &capturing));
    if (capturing) {
        return capture_node(s, CU_GRAPH_NODE_TYPE_MEMCPY, [&](Node &n) { n.copy = p; });
    }
    Side from = source(p), to = destination(p);
    bool pageable_source = !find(from.base), pageable_target = !find(to.base);
    if (options.deferred && async && pageable_source && !pageable_target) {  // staged: the caller may reuse it at once
        auto staged = std::make_shared<std::vector<char>>();
        CUDA_MEMCPY3D in = p;
        staged->resize(p.WidthInBytes * p.Height * p.Depth);
        in.dstMemoryType = CU_MEMORYTYPE_HOST;
        in.dstHost = staged->data();
        in.dstPitch = p.WidthInBytes;
        in.dstHeight = p.Height;
        in.dstXInBytes = in.dstY = in.dstZ = 0;
        run_copy(in);
        CUDA_MEMCPY3D out = p;
        out.srcMemoryType = CU_MEMORYTYPE_HOST;
        out.srcHost = staged->data();
        out.srcPitch = p.WidthInBytes;
        out.srcHeight = p.Height;
        out.srcXInBytes = out.srcY = out.srcZ = 0;
        return submit(s, [out, staged] { return run_copy(out); });
    }
    FX_TRY(submit(s, [p] { return run_copy(p); }));
    if (!async || pageable_target) drain(s);  // an asynchronous copy to pageable memory returns when it is done
    return async ? CUDA_SUCCESS : s->context->sticky;
}

CUresult fill(const CUDA_MEMSET_NODE_PARAMS &p, CUstream stream, const char *call) {
    if (!p.width || !p.height) return CUDA_SUCCESS;
    FX_TRY(check_fill(p));
    Stream *s;
    FX_TRY(find_stream(stream, s));
    bool capturing;
    FX_TRY(check_stream(s, call, &capturing));
    if (capturing) {
        return capture_node(s, CU_GRAPH_NODE_TYPE_MEMSET, [&](Node &n) { n.fill = p; });
    }
    return submit(s, [p] { return run_fill(p); });
}

CUDA_MEMCPY3D widen(const CUDA_MEMCPY2D &p) {
    CUDA_MEMCPY3D q{};
    q.srcXInBytes = p.srcXInBytes, q.srcY = p.srcY, q.srcMemoryType = p.srcMemoryType, q.srcHost = p.srcHost,
    q.srcDevice = p.srcDevice, q.srcPitch = p.srcPitch;
    q.dstXInBytes = p.dstXInBytes, q.dstY = p.dstY, q.dstMemoryType = p.dstMemoryType, q.dstHost = p.dstHost,
    q.dstDevice = p.dstDevice, q.dstPitch = p.dstPitch;
    q.WidthInBytes = p.WidthInBytes, q.Height = p.Height, q.Depth = 1;
    return q;
}

CUDA_MEMCPY3D linear(CUmemorytype to, const void *dst, CUmemorytype from, const void *src, size_t bytes) {
    CUDA_MEMCPY3D p{};
    p.dstMemoryType = to, p.dstHost = const_cast<void *>(dst), p.dstDevice = (CUdeviceptr)dst;
    p.srcMemoryType = from, p.srcHost = src, p.srcDevice = (CUdeviceptr)src;
    p.WidthInBytes = bytes, p.Height = p.Depth = 1;
    return p;
}

CUresult set(CUdeviceptr dst, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
             CUstream stream, const char *call) {
    if (dst % element) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMSET_NODE_PARAMS p{};
    p.dst = dst, p.pitch = pitch, p.value = value, p.elementSize = element, p.width = width, p.height = height;
    return fill(p, stream, call);
}

constexpr CUmemorytype H = CU_MEMORYTYPE_HOST, D = CU_MEMORYTYPE_DEVICE, U = CU_MEMORYTYPE_UNIFIED;

}  // namespace

CUresult check_copy(const CUDA_MEMCPY3D &p) {
    if (p.srcMemoryType == CU_MEMORYTYPE_ARRAY || p.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        report_once("hostsim: CUDA arrays are not supported");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return side_is_known(p.srcMemoryType, source(p), p) && side_is_known(p.dstMemoryType, destination(p), p)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}
CUresult run_copy(const CUDA_MEMCPY3D &p) {
    Side from = source(p), to = destination(p);
    if ((p.srcMemoryType != H && find(from.base) == nullptr && p.srcMemoryType == D) ||
        (p.dstMemoryType == D && !find(to.base))) {
        report("a queued copy touches memory that has been freed meanwhile");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (size_t z = 0; z < p.Depth; ++z)
        for (size_t y = 0; y < p.Height; ++y)
            memmove(to.base + (z * to.height + y) * to.pitch, from.base + (z * from.height + y) * from.pitch,
                    p.WidthInBytes);
    return CUDA_SUCCESS;
}
CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS &p) {
    if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D q{};
    q.WidthInBytes = p.width * p.elementSize, q.Height = p.height, q.Depth = 1;
    return side_is_known(D, {(char *)p.dst, p.height > 1 ? p.pitch : q.WidthInBytes, p.height}, q)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}
CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS &p) {
    if (!find((void *)p.dst)) {
        report("a queued fill touches memory that has been freed meanwhile");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (size_t y = 0; y < p.height; ++y) {
        char *row = (char *)p.dst + y * p.pitch;
        if (p.elementSize == 1) memset(row, (int)p.value, p.width);
        else if (p.elementSize == 2) std::fill_n((uint16_t *)row, p.width, (uint16_t)p.value);
        else if (p.value == 0) memset(row, 0, p.width * 4);
        else std::fill_n((uint32_t *)row, p.width, p.value);
    }
    return CUDA_SUCCESS;
}

}  // namespace hostsim

using namespace hostsim;

// ---------------------------------------------------------------- allocation
FX_API cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    FX_ENTER(context);
    FX_TRY(forbid_in_capture("cuMemAlloc"));
    return allocate(bytes, MemoryKind::device, 0, current_context(), (void **)out);
}
FX_API cuMemAllocPitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned) {
    FX_ENTER(context);
    FX_TRY(forbid_in_capture("cuMemAllocPitch"));
    *pitch = (width + 511) / 512 * 512;
    return allocate(*pitch * height, MemoryKind::device, 0, current_context(), (void **)out);
}
FX_API cuMemFree(CUdeviceptr p) {
    FX_ENTER(any);
    if (!p) return CUDA_SUCCESS;
    FX_TRY(forbid_in_capture("cuMemFree"));
    drain(current_context());  // synchronizes, as on hardware
    FX_TRY(release((void *)p, MemoryKind::device));
    return current_context()->sticky;
}
FX_API cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    FX_ENTER_STREAM(stream);
    bool capturing;
    FX_TRY(check_stream(s, "cuMemAllocAsync", &capturing));
    if (capturing) {
        report_once("hostsim: allocation nodes are not supported (cuMemAllocAsync in a capture)");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return allocate(bytes, MemoryKind::device, 0, current_context(), (void **)out);
}
FX_API cuMemFreeAsync(CUdeviceptr p, CUstream stream) {
    FX_ENTER_STREAM(stream);
    bool capturing;
    FX_TRY(check_stream(s, "cuMemFreeAsync", &capturing));
    if (capturing) {
        report_once("hostsim: free nodes are not supported (cuMemFreeAsync in a capture)");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!find_start((void *)p)) return CUDA_ERROR_INVALID_VALUE;
    return submit(s, [p] { return release((void *)p, MemoryKind::device); });
}
FX_API cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    FX_ENTER(context);
    FX_TRY(forbid_in_capture("cuMemHostAlloc"));
    if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
    return allocate(bytes, MemoryKind::host, flags, current_context(), out);
}
FX_API cuMemAllocHost(void **out, size_t bytes) {
    FX_ENTER(context);
    FX_TRY(forbid_in_capture("cuMemAllocHost"));
    return allocate(bytes, MemoryKind::host, 0, current_context(), out);
}
FX_API cuMemFreeHost(void *p) {
    FX_ENTER(any);
    if (!p) return CUDA_SUCCESS;
    FX_TRY(forbid_in_capture("cuMemFreeHost"));
    drain(current_context());
    FX_TRY(release(p, MemoryKind::host));
    return current_context()->sticky;
}
FX_API cuMemHostRegister(void *p, size_t bytes, unsigned flags) {
    FX_ENTER(context);
    return register_host(p, bytes, flags, current_context());
}
FX_API cuMemHostUnregister(void *p) {
    FX_ENTER(any);
    drain(current_context());
    return release(p, MemoryKind::registered) == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
FX_API cuMemHostGetDevicePointer(CUdeviceptr *out, void *p, unsigned flags) {
    FX_ENTER(context);
    const Allocation *a = find(p);
    if (flags || !out || !a || a->kind == MemoryKind::device) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}
FX_API cuMemHostGetFlags(unsigned *flags, void *p) {
    FX_ENTER(context);
    const Allocation *a = find(p);
    if (!a || a->kind == MemoryKind::device) return CUDA_ERROR_INVALID_VALUE;
    *flags = a->flags | CU_MEMHOSTALLOC_DEVICEMAP;  // always mapped under unified addressing
    return CUDA_SUCCESS;
}
FX_API cuMemGetInfo(size_t *free, size_t *total) {
    FX_ENTER(context);
    if (free) *free = device_bytes_total() - device_bytes_used(current_context()->device);
    if (total) *total = device_bytes_total();
    return CUDA_SUCCESS;
}
FX_API cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr p) {
    FX_ENTER(context);
    const Allocation *a = find((void *)p);
    if (!a) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = (CUdeviceptr)a->data;
    if (size) *size = a->size;
    return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *out, CUpointer_attribute attribute, CUdeviceptr p) {
    const Allocation *a = find((void *)p);
    if (!a) return CUDA_ERROR_INVALID_VALUE;
    bool host = a->kind == MemoryKind::host || a->kind == MemoryKind::registered;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(void **)out = a->context; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(CUmemorytype *)out = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = p; break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!host) return CUDA_ERROR_INVALID_VALUE;
            *(void **)out = (void *)p;
            break;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)out = 0; break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = a->id; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = a->context ? a->context->device : 0; break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned *)out = 0; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = (CUdeviceptr)a->data; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = a->size; break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)out = 1; break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
FX_API cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr p) {
    FX_ENTER(context);
    return out ? pointer_attribute(out, attribute, p) : CUDA_ERROR_INVALID_VALUE;
}
FX_API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr p) {
    FX_ENTER(context);
    for (unsigned i = 0; i < count; ++i) {
        if (pointer_attribute(out[i], attributes[i], p) == CUDA_SUCCESS) continue;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)out[i] = -2;  // as documented for unknown pointers
        else memset(out[i], 0, attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 4 : 8);
    }
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- copies
FX_API cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) {
    FX_ENTER(context);
    return copy(linear(D, (void *)dst, H, src, n), nullptr, false, "cuMemcpyHtoD");
}
FX_API cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) {
    FX_ENTER(context);
    return copy(linear(H, dst, D, (void *)src, n), nullptr, false, "cuMemcpyDtoH");
}
FX_API cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
    FX_ENTER(context);
    return copy(linear(D, (void *)dst, D, (void *)src, n), nullptr, false, "cuMemcpyDtoD");
}
FX_API cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
    FX_ENTER(context);
    return copy(linear(U, (void *)dst, U, (void *)src, n), nullptr, false, "cuMemcpy");
}
FX_API cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream s) {
    FX_ENTER(context);
    return copy(linear(D, (void *)dst, H, src, n), s, true, "cuMemcpyHtoDAsync");
}
FX_API cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream s) {
    FX_ENTER(context);
    return copy(linear(H, dst, D, (void *)src, n), s, true, "cuMemcpyDtoHAsync");
}
FX_API cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
    FX_ENTER(context);
    return copy(linear(D, (void *)dst, D, (void *)src, n), s, true, "cuMemcpyDtoDAsync");
}
FX_API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s) {
    FX_ENTER(context);
    return copy(linear(U, (void *)dst, U, (void *)src, n), s, true, "cuMemcpyAsync");
}
FX_API cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) {
    FX_ENTER(context);
    return copy(widen(*p), nullptr, false, "cuMemcpy2D");
}
FX_API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) {
    FX_ENTER(context);
    return copy(widen(*p), nullptr, false, "cuMemcpy2DUnaligned");
}
FX_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream s) {
    FX_ENTER(context);
    return copy(widen(*p), s, true, "cuMemcpy2DAsync");
}
FX_API cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) {
    FX_ENTER(context);
    return copy(*p, nullptr, false, "cuMemcpy3D");
}
FX_API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream s) {
    FX_ENTER(context);
    return copy(*p, s, true, "cuMemcpy3DAsync");
}

// ---------------------------------------------------------------- fills
FX_API cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) {
    FX_ENTER(context);
    return set(p, n, v, 1, n, 1, nullptr, "cuMemsetD8");
}
FX_API cuMemsetD16_v2(CUdeviceptr p, unsigned short v, size_t n) {
    FX_ENTER(context);
    return set(p, n * 2, v, 2, n, 1, nullptr, "cuMemsetD16");
}
FX_API cuMemsetD32_v2(CUdeviceptr p, unsigned v, size_t n) {
    FX_ENTER(context);
    return set(p, n * 4, v, 4, n, 1, nullptr, "cuMemsetD32");
}
FX_API cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
    FX_ENTER(context);
    return set(p, n, v, 1, n, 1, s, "cuMemsetD8Async");
}
FX_API cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) {
    FX_ENTER(context);
    return set(p, n * 2, v, 2, n, 1, s, "cuMemsetD16Async");
}
FX_API cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) {
    FX_ENTER(context);
    return set(p, n * 4, v, 4, n, 1, s, "cuMemsetD32Async");
}
FX_API cuMemsetD2D8_v2(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h) {
    FX_ENTER(context);
    return set(p, pitch, v, 1, w, h, nullptr, "cuMemsetD2D8");
}
FX_API cuMemsetD2D32_v2(CUdeviceptr p, size_t pitch, unsigned v, size_t w, size_t h) {
    FX_ENTER(context);
    return set(p, pitch, v, 4, w, h, nullptr, "cuMemsetD2D32");
}
FX_API cuMemsetD2D8Async(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s) {
    FX_ENTER(context);
    return set(p, pitch, v, 1, w, h, s, "cuMemsetD2D8Async");
}
FX_API cuMemsetD2D32Async(CUdeviceptr p, size_t pitch, unsigned v, size_t w, size_t h, CUstream s) {
    FX_ENTER(context);
    return set(p, pitch, v, 4, w, h, s, "cuMemsetD2D32Async");
}
