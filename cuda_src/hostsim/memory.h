// Device, host-mapped and registered memory of the simulated device; red zones, quarantine, poison.
// All of it is memory of this process: device pointer = host pointer (unified addressing).
#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hostsim {

struct Context;

enum class MemoryKind { device, host, registered, global };

struct Allocation {
    char *data = nullptr;
    size_t size = 0;
    MemoryKind kind = MemoryKind::device;
    unsigned flags = 0;
    Context *context = nullptr;
    unsigned long long id = 0;
    std::string label;
    char *map = nullptr;  // mmap'ed region, null: from malloc
    size_t map_size = 0;
    bool guarded = false;  // guard pages at both ends, pattern in the slack
    bool freed = false;    // in quarantine
};

CUresult allocate(size_t size, MemoryKind kind, unsigned flags, Context *context, void **out);
// A variable of a loaded module; forgotten when that is unloaded.
void register_global(void *p, size_t size, Context *context);
void forget_global(void *p);
CUresult register_host(void *p, size_t size, unsigned flags, Context *context);
// kind: what the caller may free with this function.
CUresult release(void *p, MemoryKind kind);
void release_all(Context *context);

// The live allocation that holds [p, p + size), or null.
const Allocation *find(const void *p, size_t size = 1);
Allocation *find_start(const void *p);
size_t device_bytes_total();
size_t device_bytes_used(int device);
size_t allocation_count();  // device and host memory that the driver gave and that is not freed
// Every piece of memory that kernels may touch, in the order of addresses.
const std::vector<const Allocation *> &live_allocations();

void fill_poison(void *p, size_t size);                         // signalling NaN patterns
bool check_redzones(const char *after);                         // false: a pattern was overwritten; reported
void describe_address(CUdeviceptr p, char *text, size_t size);  // "40 bytes behind theta (1024 bytes)"

}  // namespace hostsim
