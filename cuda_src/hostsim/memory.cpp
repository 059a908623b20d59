// Memory of the simulated device; see memory.h.
//
// With red zones every allocation has pages of its own between two inaccessible ones and ends as close to the second
// as 256-byte alignment allows; the slack on both sides holds a pattern that is checked after each launch. Freed
// memory becomes inaccessible and stays so until the quarantine is full. So the first access outside faults at once,
// with the kernel and thread that did it, except for writes into the slack, which are found when the launch ends.
#include "hostsim/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "hostsim/driver.h"
#include "hostsim/options.h"

namespace hostsim {

namespace {
constexpr size_t kPage = 4096, kAlign = 512, kGuardedAlign = 256;
constexpr unsigned char kPattern = 0xfd;
constexpr size_t kQuarantineBytes = 1ull << 30;  // of address space, not of memory
constexpr size_t kLarge = 1 << 16;

std::map<const char *, Allocation> allocations;  // by start, the quarantined ones included
// Those that are not freed, by start: a launch looks through them all, and the quarantined may be thousands.
std::vector<const Allocation *> live;
std::deque<const char *> quarantine;
size_t quarantined = 0, used[kMostDevices] = {};  // used: bytes on each device
unsigned long long next_id = 1;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

bool map_guarded(Allocation &a) {
    size_t body = round_up(round_up(a.size, kGuardedAlign), kPage);
    a.map_size = body + 2 * kPage;
    a.map = static_cast<char *>(
        mmap(nullptr, a.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (a.map == MAP_FAILED) return false;
    mprotect(a.map, kPage, PROT_NONE);
    mprotect(a.map + a.map_size - kPage, kPage, PROT_NONE);
    a.data = a.map + kPage + body - round_up(a.size, kGuardedAlign);
    a.guarded = true;
    memset(a.map + kPage, kPattern, (size_t)(a.data - (a.map + kPage)));
    memset(a.data + a.size, kPattern, round_up(a.size, kGuardedAlign) - a.size);
    return true;
}

bool map_plain(Allocation &a) {
    if (a.size < kLarge) {
        a.data = static_cast<char *>(aligned_alloc(kAlign, round_up(a.size, kAlign)));
        return a.data != nullptr;
    }
    a.map_size = round_up(a.size, kPage);
    a.map = static_cast<char *>(
        mmap(nullptr, a.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (a.map == MAP_FAILED) return false;
    if (a.map_size >= (2u << 20)) madvise(a.map, a.map_size, MADV_HUGEPAGE);
    a.data = a.map;
    return true;
}

void unmap(const Allocation &a) {
    if (a.map) munmap(a.map, a.map_size);
    else if (a.kind == MemoryKind::device || a.kind == MemoryKind::host) free(a.data);
}

std::map<const char *, Allocation>::iterator around(const void *p) {
    auto it = allocations.upper_bound(static_cast<const char *>(p));
    return it == allocations.begin() ? allocations.end() : --it;
}

std::vector<const Allocation *>::iterator live_from(const char *start) {
    return std::lower_bound(live.begin(), live.end(), start,
                            [](const Allocation *a, const char *p) { return a->data < p; });
}

const Allocation &keep(Allocation &&a) {
    Allocation &kept = allocations[a.data] = std::move(a);
    live.insert(live_from(kept.data), &kept);
    return kept;
}
void no_longer_live(const Allocation &a) {
    if (auto it = live_from(a.data); it != live.end() && *it == &a) live.erase(it);
}

// The first byte of [begin, end) that is not the pattern, or end. Runs after every launch, over up to a page an allocation:
// memcmp with itself, one byte on, is some ten times as fast as a loop.
const char *first_change(const char *begin, const char *end) {
    auto as_it_was = [](char c) { return (unsigned char)c == kPattern; };
    if (begin == end || (as_it_was(*begin) && !memcmp(begin, begin + 1, (size_t)(end - begin) - 1))) return end;
    return std::find_if_not(begin, end, as_it_was);
}

const char *name_of(const Allocation &a) { return a.label.empty() ? "an allocation without label" : a.label.c_str(); }
}  // namespace

void fill_poison(void *p, size_t size) {
    // NaN as float, double and bfloat16; signalling as double and, in every other word, as float.
    uint32_t *w = static_cast<uint32_t *>(p);
    for (size_t i = 0; i < size / 4; ++i) w[i] = i & 1 ? 0x7ff47fa1u : 0x7fa17fa1u;
    memset(static_cast<char *>(p) + size / 4 * 4, 0xa1, size % 4);
}

CUresult allocate(size_t size, MemoryKind kind, unsigned flags, Context *context, void **out) {
    if (!size || !out) return CUDA_ERROR_INVALID_VALUE;
    if (kind == MemoryKind::device && size > device_bytes_total() - used[context->device])
        return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation a;
    a.size = size;
    a.kind = kind;
    a.flags = flags;
    a.context = context;
    a.id = next_id++;
    if (!(options.redzones ? map_guarded(a) : map_plain(a))) return CUDA_ERROR_OUT_OF_MEMORY;
    if (options.poison && kind == MemoryKind::device) fill_poison(a.data, size);
    if (kind == MemoryKind::host && !a.map) memset(a.data, 0, size);
    if (kind == MemoryKind::device) used[context->device] += size;
    *out = keep(std::move(a)).data;
    return CUDA_SUCCESS;
}

CUresult register_host(void *p, size_t size, unsigned flags, Context *context) {
    if (!p || !size) return CUDA_ERROR_INVALID_VALUE;
    if (find(p)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    Allocation a;
    a.data = static_cast<char *>(p);
    a.size = size;
    a.kind = MemoryKind::registered;
    a.flags = flags;
    a.context = context;
    a.id = next_id++;
    keep(std::move(a));
    return CUDA_SUCCESS;
}

void register_global(void *p, size_t size, Context *context) {
    Allocation a;
    a.data = static_cast<char *>(p);
    a.size = size;
    a.kind = MemoryKind::global;
    a.context = context;
    a.id = next_id++;
    a.label = "a module variable";
    keep(std::move(a));
}
void forget_global(void *p) {
    auto it = allocations.find(static_cast<char *>(p));
    if (it == allocations.end()) return;
    no_longer_live(it->second);
    allocations.erase(it);
}

CUresult release(void *p, MemoryKind kind) {
    auto it = allocations.find(static_cast<char *>(p));
    if (it == allocations.end() || it->second.freed || it->second.kind != kind) return CUDA_ERROR_INVALID_VALUE;
    Allocation &a = it->second;
    if (kind == MemoryKind::device) used[a.context->device] -= a.size;
    no_longer_live(a);
    if (!a.guarded) {
        unmap(a);
        allocations.erase(it);
        return CUDA_SUCCESS;
    }
    a.freed = true;
    mprotect(a.map, a.map_size, PROT_NONE);
    madvise(a.map, a.map_size, MADV_DONTNEED);  // gives the memory back, keeps the addresses
    quarantine.push_back(a.data);
    quarantined += a.map_size;
    while (quarantined > kQuarantineBytes || quarantine.size() > 8192) {
        auto old = allocations.find(quarantine.front());
        quarantined -= old->second.map_size;
        unmap(old->second);
        allocations.erase(old);
        quarantine.pop_front();
    }
    return CUDA_SUCCESS;
}

void release_all(Context *context) {
    std::deque<std::pair<char *, MemoryKind>> mine;
    for (const Allocation *a : live)
        if (a->context == context) mine.emplace_back(a->data, a->kind);
    for (auto [p, kind] : mine) release(p, kind);
}

const Allocation *find(const void *p, size_t size) {
    auto it = around(p);
    if (it == allocations.end()) return nullptr;
    const Allocation &a = it->second;
    size_t offset = (size_t)(static_cast<const char *>(p) - a.data);
    return !a.freed && offset < a.size && size <= a.size - offset ? &a : nullptr;
}

Allocation *find_start(const void *p) {
    auto it = allocations.find(static_cast<const char *>(p));
    return it == allocations.end() || it->second.freed ? nullptr : &it->second;
}

size_t device_bytes_total() {
    static size_t total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return total;
}
size_t device_bytes_used(int device) { return used[device]; }

const std::vector<const Allocation *> &live_allocations() { return live; }
size_t allocation_count() {
    size_t n = 0;
    for (const Allocation *a : live) n += a->kind == MemoryKind::device || a->kind == MemoryKind::host;
    return n;
}

bool check_redzones(const char *after) {
    bool good = true;
    for (const Allocation *a : live) {
        if (!a->guarded) continue;
        const char *behind = a->data + a->size, *end = a->data + round_up(a->size, kGuardedAlign);
        const char *p = first_change(a->map + kPage, a->data);
        bool before = p != a->data;
        if (!before && (p = first_change(behind, end)) == end) continue;
        report("kernel %s: wrote %zu bytes %s %s (%zu bytes)", after, (size_t)(before ? a->data - p : p - behind),
               before ? "before" : "behind", name_of(*a), a->size);
        *const_cast<char *>(p) = (char)kPattern;
        good = false;
    }
    return good;
}

void describe_address(CUdeviceptr address, char *text, size_t size) {
    const char *p = reinterpret_cast<const char *>(address);
    auto it = around(p);
    const Allocation *before = it == allocations.end() ? nullptr : &it->second;
    auto next = allocations.upper_bound(p);
    const Allocation *behind = next == allocations.end() ? nullptr : &next->second;
    if (before && before->freed && p < before->map + before->map_size)
        snprintf(text, size, "offset %zu of %s (%zu bytes), which has been freed", (size_t)(p - before->data),
                 name_of(*before), before->size);
    else if (before && p < before->data + before->size)
        snprintf(text, size, "offset %zu of %s (%zu bytes)", (size_t)(p - before->data), name_of(*before),
                 before->size);
    else if (before && p - (before->data + before->size) < (1 << 24) &&
             (!behind || p - (before->data + before->size) <= behind->data - p))
        snprintf(text, size, "%zu bytes behind %s (%zu bytes)", (size_t)(p - (before->data + before->size)),
                 name_of(*before), before->size);
    else if (behind && behind->data - p < (1 << 24))
        snprintf(text, size, "%zu bytes before %s (%zu bytes)", (size_t)(behind->data - p), name_of(*behind),
                 behind->size);
    else snprintf(text, size, "%s", address < 65536 ? "a null pointer" : "in no allocation");
}

}  // namespace hostsim
