// Initialization, the device, contexts, the driver lock, call counters.
#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <new>

#include "hostsim/driver.h"
#include "hostsim/faults.h"
#include "hostsim/graph.h"

namespace hostsim {

namespace {
std::recursive_mutex lock;
bool initialized = false, forked = false;
Context primaries[kMostDevices];
CUresult died_of[kMostDevices];  // what killed a device's primary context: for the rest of the process, as on a GPU
std::set<Context *> contexts;
thread_local std::vector<Context *> *context_stack;  // freed with its thread's last use: never
unsigned long long next_context = 1;

std::vector<Counter *> &counters() {
    static auto *all = new std::vector<Counter *>;
    return *all;
}

std::vector<Context *> &stack() {
    if (!context_stack) context_stack = new std::vector<Context *>;
    return *context_stack;
}

// Only cuda-python, ctypes and programs of ours see the device. Everything else that finds this library as
// libcuda.so.1 (the CUDA runtime inside torch, JAX plugins, NCCL, ...) brings kernels that cannot run here.
bool caller_is_known(const void *return_address) {
    Dl_info info;
    if (!dladdr(return_address, &info) || !info.dli_fname) return true;
    const char *known[] = {"/cuda/bindings/", "libffi", "_ctypes", "foxhunt"};
    for (const char *k : known)
        if (strstr(info.dli_fname, k)) {
            return !strstr(info.dli_fname, "/cuda/bindings/runtime") && !strstr(info.dli_fname, "runtime.cpython");
        }
    return false;
}

void open_context(Context *c) {
    c->sticky = CUDA_SUCCESS;
    c->id = next_context++;
    c->legacy = new Stream;
    c->legacy->context = c;
    c->legacy->legacy = true;
    c->streams = {c->legacy};
    contexts.insert(c);
}

bool is_device(CUdevice device) { return device >= 0 && device < options.devices; }

void close_context(Context *c) {
    drain(c);
    if (c->primary && died_of[c->device] == CUDA_SUCCESS) died_of[c->device] = c->sticky;
    for (Stream *s : c->streams) streams.remove(s);
    c->streams.clear();
    release_all(c);
    unload_all(c);
    contexts.erase(c);
    c->legacy = nullptr;
}

}  // namespace

bool in_host_function = false;

Counter::Counter(const char *n) : name(n) { counters().push_back(this); }

unsigned long long count_calls(const char *name) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    for (auto [what, live] :
         std::initializer_list<std::pair<const char *, size_t>>{{"live.allocations", allocation_count()},
                                                                {"live.modules", modules.live.size()},
                                                                {"live.streams", streams.live.size()},
                                                                {"live.events", events.live.size()},
                                                                {"live.graphs", graphs.live.size()},
                                                                {"live.graph_execs", graph_execs.live.size()}})
        if (!strcmp(name, what)) return live;
    unsigned long long n = count_findings(name);
    bool any = !strcmp(name, "call");
    for (Counter *c : counters())
        if (any ? c->name[0] == 'c' && !is_entry_point(c->name, "cuGetProcAddress") : is_entry_point(c->name, name))
            n += c->calls.load();
    return n;
}

bool is_entry_point(const char *function, const char *base_name) {
    size_t n = strlen(base_name);
    return !strncmp(function, base_name, n) && (!function[n] || (function[n] == '_' && function[n + 1] == 'v'));
}

const std::set<Context *> &all_contexts() { return contexts; }

Context *current_context() { return stack().empty() ? nullptr : stack().back(); }

Guard::Guard(Counter &counter, Need need) {
    const int hooked = call_hook && counter.name[0] == 'c' ? call_hook(counter.name) : 0;
    lock.lock();
    counter.calls.fetch_add(1, std::memory_order_relaxed);
    if (need == Need::nothing) status = CUDA_SUCCESS;
    else if (!initialized || forked) status = CUDA_ERROR_NOT_INITIALIZED;
    else if (in_host_function && need != Need::init) status = CUDA_ERROR_NOT_PERMITTED;
    else if (need != Need::init) {
        Context *c = current_context();
        if (!c || !contexts.count(c)) status = c ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
        else if (need == Need::context) status = c->sticky;
    }
    if (faults_armed && status == CUDA_SUCCESS) status = planned_call_fault(counter.name);
    if (hooked && status == CUDA_SUCCESS) status = hooked_call_fault(counter.name, hooked);
}
Guard::~Guard() { lock.unlock(); }

CUresult fail(Context *c, CUresult error) {
    if (c && c->sticky == CUDA_SUCCESS) c->sticky = error;
    return error;
}

}  // namespace hostsim

using namespace hostsim;

// Lets the child of a fork go on with the driver as its parent left it. For tests that fork a process in the middle: there
// must be no other thread (option workers = 1), and nothing is shared with the parent but what was mapped as shared.
extern "C" __attribute__((visibility("default"))) void fxHostsimContinueAfterFork(void) { forked = false; }

FX_API cuInit(unsigned flags) {
    FX_ENTER(nothing);
    if (!caller_is_known(__builtin_return_address(0))) return CUDA_ERROR_NO_DEVICE;
    if (flags || fault_plan_is_broken()) return CUDA_ERROR_INVALID_VALUE;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (!initialized)
        pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); },
                       [] {
                           new (&lock) std::recursive_mutex;  // the child is not the thread that locked it
                           forked = true;
                       });
    initialized = true;
    return CUDA_SUCCESS;
}

FX_API cuDriverGetVersion(int *version) {
    FX_ENTER(nothing);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = options.version ? (int)options.version : CUDA_VERSION;
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- the device
FX_API cuDeviceGetCount(int *count) {
    FX_ENTER(init);
    *count = (int)options.devices;
    return CUDA_SUCCESS;
}
FX_API cuDeviceGet(CUdevice *device, int ordinal) {
    FX_ENTER(init);
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
FX_API cuDeviceGetName(char *name, int length, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    strncpy(name, "foxhunt hostsim", (size_t)length);
    name[length - 1] = 0;
    return CUDA_SUCCESS;
}
FX_API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "foxhunt-hostsim0", 16);
    uuid->bytes[15] = (char)("0123456789abcdef"[device]);
    return CUDA_SUCCESS;
}
FX_API cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device_bytes_total();
    return CUDA_SUCCESS;
}
FX_API cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!id || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", (unsigned)device);
    return CUDA_SUCCESS;
}
FX_API cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) {
    FX_ENTER(init);
    *can = 0;
    return CUDA_SUCCESS;
}
FX_API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    static const std::map<int, int> values = {
        // shaped like compute capability 9.0; what is not here is 0
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 33554432},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
        {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1},
        {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
        {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    };
    auto it = values.find(attribute);
    *value = it == values.end() ? 0 : it->second;
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- contexts
FX_API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (died_of[device] != CUDA_SUCCESS) return died_of[device];
    Context &primary = primaries[device];
    if (primary.retained++ == 0) {
        primary.primary = true;
        primary.device = device;
        open_context(&primary);
    }
    *out = reinterpret_cast<CUcontext>(&primary);
    return CUDA_SUCCESS;
}
FX_API cuDevicePrimaryCtxRelease(CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    Context &primary = primaries[device];
    if (!primary.retained) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary.retained == 0) close_context(&primary);
    return CUDA_SUCCESS;
}
FX_API cuDevicePrimaryCtxReset(CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    Context &primary = primaries[device];
    if (contexts.count(&primary)) {
        close_context(&primary);
        if (primary.retained) open_context(&primary);
    }
    return CUDA_SUCCESS;
}
FX_API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    primaries[device].flags = flags;
    return CUDA_SUCCESS;
}
FX_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = primaries[device].flags;
    *active = primaries[device].retained > 0;
    return CUDA_SUCCESS;
}
FX_API cuCtxCreate(CUcontext *out, CUctxCreateParams *, unsigned flags, CUdevice device) {
    FX_ENTER(init);
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    auto *c = new Context;
    c->flags = flags;
    c->device = device;
    open_context(c);
    stack().push_back(c);
    *out = reinterpret_cast<CUcontext>(c);
    return CUDA_SUCCESS;
}
FX_API cuCtxDestroy(CUcontext handle) {
    FX_ENTER(init);
    auto *c = reinterpret_cast<Context *>(handle);
    if (!contexts.count(c) || c->primary) return CUDA_ERROR_INVALID_CONTEXT;
    close_context(c);
    if (!stack().empty() && stack().back() == c) stack().pop_back();
    return CUDA_SUCCESS;
}
FX_API cuCtxPushCurrent(CUcontext handle) {
    FX_ENTER(init);
    auto *c = reinterpret_cast<Context *>(handle);
    if (!contexts.count(c)) return CUDA_ERROR_INVALID_CONTEXT;
    stack().push_back(c);
    return CUDA_SUCCESS;
}
FX_API cuCtxPopCurrent(CUcontext *out) {
    FX_ENTER(init);
    if (stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (out) *out = reinterpret_cast<CUcontext>(stack().back());
    stack().pop_back();
    return CUDA_SUCCESS;
}
FX_API cuCtxSetCurrent(CUcontext handle) {
    FX_ENTER(init);
    auto *c = reinterpret_cast<Context *>(handle);
    if (c && !contexts.count(c)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack().empty()) stack().pop_back();
    if (c) stack().push_back(c);
    return CUDA_SUCCESS;
}
FX_API cuCtxGetCurrent(CUcontext *out) {
    FX_ENTER(init);
    *out = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
}
FX_API cuCtxGetDevice(CUdevice *device) {
    FX_ENTER(any);
    *device = current_context()->device;
    return CUDA_SUCCESS;
}
FX_API cuCtxGetFlags(unsigned *flags) {
    FX_ENTER(any);
    *flags = current_context()->flags;
    return CUDA_SUCCESS;
}
FX_API cuCtxGetId(CUcontext handle, unsigned long long *id) {
    FX_ENTER(init);
    auto *c = handle ? reinterpret_cast<Context *>(handle) : current_context();
    if (!c || !contexts.count(c)) return CUDA_ERROR_INVALID_CONTEXT;
    *id = c->id;
    return CUDA_SUCCESS;
}
FX_API cuCtxGetApiVersion(CUcontext, unsigned *version) {
    FX_ENTER(init);
    *version = 3020;
    return CUDA_SUCCESS;
}
FX_API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    FX_ENTER(any);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
static size_t limits[CU_LIMIT_MAX] = {1024, 1048576, 8388608};  // stack, printf, heap
FX_API cuCtxSetLimit(CUlimit limit, size_t value) {
    FX_ENTER(context);
    if ((unsigned)limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    limits[limit] = value;
    return CUDA_SUCCESS;
}
FX_API cuCtxGetLimit(size_t *value, CUlimit limit) {
    FX_ENTER(context);
    if ((unsigned)limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = limits[limit];
    return CUDA_SUCCESS;
}
FX_API cuCtxSynchronize(void) {
    FX_ENTER(context);
    FX_TRY(forbid_while_capturing(current_context(), "cuCtxSynchronize"));
    drain(current_context());
    return current_context()->sticky;
}
FX_API cuCtxSynchronize_v2(CUcontext handle) {
    FX_ENTER(context);
    auto *c = handle ? reinterpret_cast<Context *>(handle) : current_context();
    if (!contexts.count(c)) return CUDA_ERROR_INVALID_CONTEXT;
    FX_TRY(forbid_while_capturing(c, "cuCtxSynchronize"));
    drain(c);
    return c->sticky;
}
