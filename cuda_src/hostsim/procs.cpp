// cuGetProcAddress: the symbols that exist, stubs for those that do not, error names.
//
// cuda-python asks for every entry point by base name and the CUDA version whose form it wants; a name that is not
// here gets a stub that answers CUDA_ERROR_NOT_SUPPORTED and says which function was called.
#include <array>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostsim/driver.h"
#include "hostsim/faults.h"

using namespace hostsim;

namespace {

struct Entry {
    const char *name;
    void *function;
    int since;  // an older form with other parameters exists below this version, and is not here
};
#define P(name) Entry{#name, (void *)(name), 0}
#define SINCE(name, version) \
    Entry { #name, (void *)(name), version }
const std::vector<Entry> &entries();

// Stubs are instances of one template, since each must know its own name.
constexpr int kStubs = 640;
std::vector<std::string> stub_names;

template <int I>
CUresult stub() {
    report_once("hostsim: %s is not supported", stub_names[I].c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
}
template <int... I>
constexpr std::array<void *, sizeof...(I)> make_stubs(std::integer_sequence<int, I...>) {
    return {(void *)stub<I>...};
}
const std::array<void *, kStubs> stubs = make_stubs(std::make_integer_sequence<int, kStubs>());

void *stub_for(const char *name) {
    static std::unordered_map<std::string, int> index;
    auto it = index.find(name);
    if (it == index.end()) {
        if (stub_names.empty()) stub_names.reserve(kStubs);  // stub() reads without the lock
        if ((int)stub_names.size() == kStubs) return nullptr;
        it = index.emplace(name, (int)stub_names.size()).first;
        stub_names.push_back(name);
    }
    return stubs[(size_t)it->second];
}

struct ErrorName {
    CUresult code;
    const char *name, *text;
};
#define E(name, text) \
    ErrorName { name, #name, text }
const ErrorName errors[] = {
    E(CUDA_SUCCESS, "no error"),
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    E(CUDA_ERROR_DEINITIALIZED, "deinitialized"),
    E(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled"),
    E(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"),
    E(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    E(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    E(CUDA_ERROR_STUB_LIBRARY, "stub library"),
    E(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "call requires newer driver"),
    E(CUDA_ERROR_DEVICE_UNAVAILABLE, "device unavailable"),
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(CUDA_ERROR_DEVICE_NOT_LICENSED, "device not licensed"),
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    E(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    E(CUDA_ERROR_MAP_FAILED, "map failed"),
    E(CUDA_ERROR_UNMAP_FAILED, "unmap failed"),
    E(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    E(CUDA_ERROR_ALREADY_MAPPED, "already mapped"),
    E(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    E(CUDA_ERROR_ALREADY_ACQUIRED, "already acquired"),
    E(CUDA_ERROR_NOT_MAPPED, "not mapped"),
    E(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "not mapped as array"),
    E(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "not mapped as pointer"),
    E(CUDA_ERROR_ECC_UNCORRECTABLE, "ecc uncorrectable"),
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "unsupported limit"),
    E(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context already in use"),
    E(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access unsupported"),
    E(CUDA_ERROR_INVALID_PTX, "invalid ptx"),
    E(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context"),
    E(CUDA_ERROR_NVLINK_UNCORRECTABLE, "nvlink uncorrectable"),
    E(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "jit compiler not found"),
    E(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "unsupported ptx version"),
    E(CUDA_ERROR_JIT_COMPILATION_DISABLED, "jit compilation disabled"),
    E(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "unsupported exec affinity"),
    E(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "unsupported devside sync"),
    E(CUDA_ERROR_CONTAINED, "contained"),
    E(CUDA_ERROR_INVALID_SOURCE, "invalid source"),
    E(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    E(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    E(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object init failed"),
    E(CUDA_ERROR_OPERATING_SYSTEM, "operating system"),
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    E(CUDA_ERROR_LOSSY_QUERY, "lossy query"),
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    E(CUDA_ERROR_NOT_READY, "device not ready"),
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    E(CUDA_ERROR_LAUNCH_TIMEOUT, "launch timeout"),
    E(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch incompatible texturing"),
    E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access already enabled"),
    E(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access not enabled"),
    E(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context active"),
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(CUDA_ERROR_ASSERT, "assert"),
    E(CUDA_ERROR_TOO_MANY_PEERS, "too many peers"),
    E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory already registered"),
    E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory not registered"),
    E(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    E(CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal instruction"),
    E(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    E(CUDA_ERROR_INVALID_ADDRESS_SPACE, "invalid address space"),
    E(CUDA_ERROR_INVALID_PC, "invalid pc"),
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    E(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "cooperative launch too large"),
    E(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory leak"),
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    E(CUDA_ERROR_SYSTEM_NOT_READY, "system not ready"),
    E(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system driver mismatch"),
    E(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "compat not supported on device"),
    E(CUDA_ERROR_MPS_CONNECTION_FAILED, "mps connection failed"),
    E(CUDA_ERROR_MPS_RPC_FAILURE, "mps rpc failure"),
    E(CUDA_ERROR_MPS_SERVER_NOT_READY, "mps server not ready"),
    E(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "mps max clients reached"),
    E(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "mps max connections reached"),
    E(CUDA_ERROR_MPS_CLIENT_TERMINATED, "mps client terminated"),
    E(CUDA_ERROR_CDP_NOT_SUPPORTED, "cdp not supported"),
    E(CUDA_ERROR_CDP_VERSION_MISMATCH, "cdp version mismatch"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
      "operation would make the legacy stream depend on a capturing blocking stream"),
    E(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
      "attempt to terminate a thread-local capture sequence from another thread"),
    E(CUDA_ERROR_TIMEOUT, "timeout"),
    E(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
      "the graph update was not performed because it included changes which violated constraints specific to "
      "instantiated graph update"),
    E(CUDA_ERROR_EXTERNAL_DEVICE, "external device"),
    E(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size"),
    E(CUDA_ERROR_FUNCTION_NOT_LOADED, "function not loaded"),
    E(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type"),
    E(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
    E(CUDA_ERROR_KEY_ROTATION, "key rotation"),
    E(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const ErrorName *find_error(CUresult code) {
    for (const ErrorName &e : errors)
        if (e.code == code) return &e;
    return nullptr;
}

}  // namespace

CUresult hostsim::error_by_name(const char *name) {
    constexpr const char *prefix = "CUDA_ERROR_";
    if (!strncmp(name, prefix, strlen(prefix))) name += strlen(prefix);
    for (const ErrorName &e : errors)
        if (e.code != CUDA_SUCCESS && !strcmp(e.name + strlen(prefix), name)) return e.code;
    return CUDA_SUCCESS;
}

FX_API cuGetErrorName(CUresult code, const char **out) {
    const ErrorName *e = find_error(code);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = e ? e->name : nullptr;
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FX_API cuGetErrorString(CUresult code, const char **out) {
    const ErrorName *e = find_error(code);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = e ? e->text : nullptr;
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// CUDA version that brought an entry point, for those younger than the oldest driver that `version` can stand for.
static int introduced(const char *symbol) {
    static const std::unordered_map<std::string, int> young = {
        {"cuGraphAddNode", 12020},
        {"cuGraphExecNodeSetParams", 12020},
        {"cuFuncGetName", 12030},
        {"cuGraphConditionalHandleCreate", 12030},
        {"cuStreamBeginCaptureToGraph", 12030},
        {"cuFuncGetParamInfo", 12040},
        {"cuFuncIsLoaded", 12040},
        {"cuFuncLoad", 12040},
        {"cuModuleGetFunctionCount", 12040},
        {"cuStreamGetDevice", 12080},
    };
    auto it = young.find(symbol);
    return it == young.end() ? 0 : it->second;
}

// NVIDIA's private tables, which the CUDA runtime wants: nothing of the kind exists here.
FX_API cuGetExportTable(const void **table_out, const CUuuid *) {
    if (table_out) *table_out = nullptr;
    return CUDA_ERROR_NOT_SUPPORTED;
}

FX_API cuGetProcAddress_v2(const char *symbol, void **out, int version, cuuint64_t,
                           CUdriverProcAddressQueryResult *status) {
    FX_ENTER(nothing);
    if (!symbol || !out) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    static const auto *by_name = [] {
        auto *m = new std::unordered_map<std::string, const Entry *>;
        for (const Entry &e : entries()) (*m)[e.name] = &e;
        return m;
    }();
    auto it = by_name->find(symbol);
    if (options.version && version > options.version) return CUDA_ERROR_INVALID_VALUE;  // as driver 580 on an H200
    if (options.version && introduced(symbol) > options.version) {
        // An older driver: the entry point is not there.
    } else if (!strcmp(symbol, "cuCtxSynchronize") && version >= 13000) *out = (void *)cuCtxSynchronize_v2;
    else if (it != by_name->end() && version >= it->second->since) *out = it->second->function;
    else if (!strncmp(symbol, "cu", 2)) *out = stub_for(symbol);
    if (*out) return CUDA_SUCCESS;
    if (status) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}
// The form before CUDA 12: the same without the status.
#undef cuGetProcAddress
FX_API cuGetProcAddress(const char *symbol, void **out, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, out, version, flags, nullptr);
}
#define cuGetProcAddress cuGetProcAddress_v2

namespace {
const std::vector<Entry> &entries() {
    // clang-format off
    static const auto *all = new std::vector<Entry>{
    SINCE(cuCtxCreate, 12050), P(cuCtxDestroy), P(cuCtxGetApiVersion), P(cuCtxGetCurrent), P(cuCtxGetDevice),
    P(cuCtxGetFlags), P(cuCtxGetId), P(cuCtxGetLimit), P(cuCtxGetStreamPriorityRange), P(cuCtxPopCurrent),
    P(cuCtxPushCurrent), P(cuCtxSetCurrent), P(cuCtxSetLimit), P(cuCtxSynchronize), P(cuDeviceCanAccessPeer),
    P(cuDeviceGet), P(cuDeviceGetAttribute), P(cuDeviceGetCount), P(cuDeviceGetName), P(cuDeviceGetPCIBusId),
    P(cuDeviceGetUuid), P(cuDevicePrimaryCtxGetState), P(cuDevicePrimaryCtxRelease), P(cuDevicePrimaryCtxReset),
    P(cuDevicePrimaryCtxRetain), P(cuDevicePrimaryCtxSetFlags), P(cuDeviceTotalMem), P(cuDriverGetVersion),
    P(cuEventCreate), P(cuEventDestroy), P(cuEventElapsedTime), P(cuEventQuery), P(cuEventRecord),
    P(cuEventRecordWithFlags), P(cuEventSynchronize), P(cuFuncGetAttribute), P(cuFuncGetModule), P(cuFuncGetName),
    P(cuFuncGetParamInfo), P(cuFuncIsLoaded), P(cuFuncLoad), P(cuFuncSetAttribute), P(cuFuncSetCacheConfig),
    P(cuGetErrorName), P(cuGetErrorString), P(cuGetExportTable), SINCE(cuGetProcAddress, 12000),
    P(cuGraphAddChildGraphNode), SINCE(cuGraphAddDependencies, 12030), P(cuGraphAddEmptyNode),
    P(cuGraphAddEventRecordNode), P(cuGraphAddEventWaitNode), P(cuGraphAddHostNode),
    SINCE(cuGraphAddKernelNode, 12000), P(cuGraphAddMemcpyNode), P(cuGraphAddMemsetNode),
    SINCE(cuGraphAddNode, 12030), P(cuGraphChildGraphNodeGetGraph), P(cuGraphClone),
    P(cuGraphConditionalHandleCreate), P(cuGraphCreate), P(cuGraphDebugDotPrint), P(cuGraphDestroy),
    P(cuGraphDestroyNode), P(cuGraphEventRecordNodeGetEvent), P(cuGraphEventWaitNodeGetEvent), P(cuGraphExecDestroy),
    P(cuGraphExecEventRecordNodeSetEvent), P(cuGraphExecGetFlags), P(cuGraphExecHostNodeSetParams),
    SINCE(cuGraphExecKernelNodeSetParams, 12000), P(cuGraphExecMemcpyNodeSetParams),
    P(cuGraphExecMemsetNodeSetParams), P(cuGraphExecNodeSetParams), SINCE(cuGraphExecUpdate, 12000),
    SINCE(cuGraphGetEdges, 12030), P(cuGraphGetNodes), P(cuGraphGetRootNodes), P(cuGraphHostNodeGetParams),
    P(cuGraphInstantiateWithFlags), P(cuGraphInstantiateWithParams), SINCE(cuGraphKernelNodeGetParams, 12000),
    SINCE(cuGraphKernelNodeSetParams, 12000), P(cuGraphLaunch), P(cuGraphMemcpyNodeGetParams),
    P(cuGraphMemcpyNodeSetParams), P(cuGraphMemsetNodeGetParams), P(cuGraphMemsetNodeSetParams),
    P(cuGraphNodeFindInClone), SINCE(cuGraphNodeGetDependencies, 12030), SINCE(cuGraphNodeGetDependentNodes, 12030),
    P(cuGraphNodeGetType), SINCE(cuGraphRemoveDependencies, 12030), P(cuGraphUpload), P(cuInit), P(cuLaunchHostFunc),
    P(cuLaunchKernel), P(cuLaunchKernelEx), P(cuMemAlloc), P(cuMemAllocAsync), P(cuMemAllocHost), P(cuMemAllocPitch),
    P(cuMemFree), P(cuMemFreeAsync), P(cuMemFreeHost), P(cuMemGetAddressRange), P(cuMemGetInfo), P(cuMemHostAlloc),
    P(cuMemHostGetDevicePointer), P(cuMemHostGetFlags), P(cuMemHostRegister), P(cuMemHostUnregister), P(cuMemcpy),
    P(cuMemcpy2D), P(cuMemcpy2DAsync), P(cuMemcpy2DUnaligned), P(cuMemcpy3D), P(cuMemcpy3DAsync), P(cuMemcpyAsync),
    P(cuMemcpyDtoD), P(cuMemcpyDtoDAsync), P(cuMemcpyDtoH), P(cuMemcpyDtoHAsync), P(cuMemcpyHtoD),
    P(cuMemcpyHtoDAsync), P(cuMemsetD16), P(cuMemsetD16Async), P(cuMemsetD2D32), P(cuMemsetD2D32Async),
    P(cuMemsetD2D8), P(cuMemsetD2D8Async), P(cuMemsetD32), P(cuMemsetD32Async), P(cuMemsetD8), P(cuMemsetD8Async),
    P(cuModuleGetFunction), P(cuModuleGetFunctionCount), P(cuModuleGetGlobal), P(cuModuleGetLoadingMode),
    P(cuModuleLoadData), P(cuModuleLoadDataEx), P(cuModuleUnload), P(cuOccupancyMaxActiveBlocksPerMultiprocessor),
    P(cuPointerGetAttribute), P(cuPointerGetAttributes), P(cuStreamBeginCapture), P(cuStreamBeginCaptureToGraph),
    P(cuStreamCreate), P(cuStreamCreateWithPriority), P(cuStreamDestroy), P(cuStreamEndCapture),
    SINCE(cuStreamGetCaptureInfo, 12030), P(cuStreamGetCtx), P(cuStreamGetDevice), P(cuStreamGetFlags),
    P(cuStreamGetId), P(cuStreamGetPriority), P(cuStreamIsCapturing), P(cuStreamQuery), P(cuStreamSynchronize),
    SINCE(cuStreamUpdateCaptureDependencies, 12030), P(cuStreamWaitEvent), P(cuThreadExchangeStreamCaptureMode),
    };
    // clang-format on
    return *all;
}
}  // namespace

bool hostsim::entry_point_exists(const char *prefix) {
    size_t n = strlen(prefix);
    for (const Entry &e : entries())
        if (!strncmp(e.name, prefix, n) && (!e.name[n] || !strncmp(e.name + n, "With", 4))) return true;
    return false;
}
