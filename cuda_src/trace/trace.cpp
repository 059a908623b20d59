// A libcuda.so.1 that counts every call by name, logs it, and forwards it to the driver: docs/testing.md, "From outside".
//
// It has the driver's SONAME, so whoever loads libcuda.so.1 after it is given this one: cuda-python, the CUDA runtime inside
// PyTorch, JAX and cuBLASLt. Whatever the name and the signature, an entry point is a trampoline of two instructions: it puts
// its slot into a scratch register and jumps to `fx_trace_common`, which counts, logs, and jumps on with every argument where
// the caller left it. A name exported here has the slot of its place in entry_points.inc; a pointer that cuGetProcAddress
// answers gets one of the free slots behind those.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#if !defined(__x86_64__)
#error "the call trace is written for x86-64: leave it out of the build on this architecture (cmake/trace.cmake)"
#endif

#define SLOTS 4096        // exported names (634 in CUDA 13.0) and pointers given out
#define LOGGED (1 << 16)  // calls that the ring remembers
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

// Shared with the assembly below.
#define SHARED extern "C" __attribute__((visibility("hidden")))
SHARED uint64_t fx_trace_counts[SLOTS], fx_trace_total;
SHARED void *fx_trace_targets[SLOTS];
SHARED uint16_t fx_trace_ring[LOGGED];
SHARED const char fx_trace_trampolines[];  // 16 bytes each
uint64_t fx_trace_counts[SLOTS], fx_trace_total;
void *fx_trace_targets[SLOTS];
uint16_t fx_trace_ring[LOGGED];

namespace {
const char *const exported[] = {
#define ENTRY(name) #name,
#include "entry_points.inc"
#undef ENTRY
};
constexpr int kExported = sizeof exported / sizeof *exported;
static_assert(kExported < SLOTS / 2);

// System V x86-64: r10 and r11 carry no argument. rax does in a call with variable arguments.
__asm__(
    ".text\n.p2align 4\n"
    "fx_trace_common:\n"
    "  lea fx_trace_counts(%rip), %r10\n"
    "  lock incq (%r10,%r11,8)\n"
    "  mov $1, %r10d\n"
    "  lock xadd %r10, fx_trace_total(%rip)\n"
    "  and $(" TEXT(LOGGED) " - 1), %r10d\n"
    "  push %rax\n"
    "  lea fx_trace_ring(%rip), %rax\n"
    "  mov %r11w, (%rax,%r10,2)\n"
    "  pop %rax\n"
    "  lea fx_trace_targets(%rip), %r10\n"
    "  jmp *(%r10,%r11,8)\n"
    ".hidden fx_trace_trampolines\n.p2align 4\n"
    "fx_trace_trampolines:\n"
    ".set slot, 0\n"
    ".rept " TEXT(SLOTS) "\n"
    "  .p2align 4\n"
    "  mov $slot, %r11d\n"
    "  jmp fx_trace_common\n"
    "  .set slot, slot + 1\n"
    ".endr\n");

// The exported names are symbols at their trampolines.
#define ENTRY(name)                          \
    __asm__(".globl " #name "\n.type " #name \
            ",@function\n"                   \
            ".set " #name ", fx_trace_trampolines + 16 * next_slot\n.set next_slot, next_slot + 1\n");
__asm__(".set next_slot, 0\n");
#include "entry_points.inc"
#undef ENTRY

std::mutex lock;
std::map<std::pair<std::string, void *>, int> slots;  // base name and the driver's pointer -> slot
std::string names[SLOTS];
int used = 0;

int missing() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED: this driver is older than the headers

std::string base_name(std::string name) {
    for (const char *suffix : {"_ptds", "_ptsz"})
        if (name.size() > 5 && name.compare(name.size() - 5, 5, suffix) == 0) name.resize(name.size() - 5);
    size_t digits = name.find_last_not_of("0123456789");
    if (digits != std::string::npos && digits + 1 < name.size() && digits >= 1 && name[digits] == 'v' &&
        name[digits - 1] == '_')
        name.resize(digits - 1);
    return name;
}

void *trampoline(int slot) { return (void *)(fx_trace_trampolines + 16 * slot); }

// What a caller gets instead of the driver's pointer for `symbol`; null when every slot is taken.
void *traced(const char *symbol, void *pointer) {
    std::lock_guard<std::mutex> guard(lock);
    std::string base = base_name(symbol);
    auto found = slots.find({base, pointer});
    if (found != slots.end()) return trampoline(found->second);
    if (used == SLOTS) return nullptr;
    int slot = used++;
    names[slot] = base;
    fx_trace_targets[slot] = pointer;
    slots[{base, pointer}] = slot;
    return trampoline(slot);
}

// cuGetProcAddress answers with traced pointers, itself among them.
using GetProc1 = int (*)(const char *, void **, int, uint64_t);
using GetProc2 = int (*)(const char *, void **, int, uint64_t, int *);
GetProc1 get_proc1;
GetProc2 get_proc2;

int answer(int status, const char *symbol, void **pointer) {
    if (status || !symbol || !pointer || !*pointer) return status;
    *pointer = traced(symbol, *pointer);
    if (*pointer) return status;
    fprintf(stderr, "foxhunt-rt trace: no slot left for %s\n", symbol);
    return 2;  // CUDA_ERROR_OUT_OF_MEMORY: an entry point that is not seen would be worse
}
int get_proc_address1(const char *symbol, void **pointer, int version, uint64_t flags) {
    return answer(get_proc1(symbol, pointer, version, flags), symbol, pointer);
}
int get_proc_address2(const char *symbol, void **pointer, int version, uint64_t flags, int *query) {
    return answer(get_proc2(symbol, pointer, version, flags, query), symbol, pointer);
}
}  // namespace

#define FX_TRACE extern "C" __attribute__((visibility("default")))

// Loads the driver at `path`; null, or what went wrong. DEEPBIND: its own calls of its exported functions stay its own.
FX_TRACE const char *fxTraceOpen(const char *path) {
    void *driver = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_DEEPBIND);
    if (!driver) return dlerror();
    std::lock_guard<std::mutex> guard(lock);
    for (used = 0; used < kExported; ++used) {
        void *pointer = dlsym(driver, exported[used]);
        names[used] = base_name(exported[used]);
        if (names[used] == "cuGetProcAddress" && pointer) {
            bool second = exported[used] == std::string("cuGetProcAddress_v2");
            if (second) get_proc2 = (GetProc2)pointer;
            else get_proc1 = (GetProc1)pointer;
            slots[{names[used], pointer}] = used;
            fx_trace_targets[used] = second ? (void *)get_proc_address2 : (void *)get_proc_address1;
            continue;
        }
        fx_trace_targets[used] = pointer ? pointer : (void *)missing;
        if (pointer) slots.insert({{names[used], pointer}, used});
    }
    return nullptr;
}
FX_TRACE int fxTraceSlots() {
    std::lock_guard<std::mutex> guard(lock);
    return used;
}
FX_TRACE const char *fxTraceName(int slot) { return names[slot].c_str(); }
FX_TRACE uint64_t fxTraceCount(int slot) { return __atomic_load_n(&fx_trace_counts[slot], __ATOMIC_RELAXED); }
FX_TRACE uint64_t fxTraceTotal() { return __atomic_load_n(&fx_trace_total, __ATOMIC_RELAXED); }

// Slot of the call number `position` (from 0), or -1 when the ring no longer, or not yet, holds it.
FX_TRACE int fxTraceAt(uint64_t position) {
    uint64_t total = fxTraceTotal();
    return position < total && total - position <= LOGGED ? fx_trace_ring[position & (LOGGED - 1)] : -1;
}
