// Scheduling of the threads of one block; see fibers.h.
#include "hostsim/fibers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "hostsim/options.h"
#include "hostsim/sanitizers.h"
#include "hostsim/switch.h"

// Initial-exec costs one instruction instead of a call. These few bytes fit into the room that the dynamic linker
// keeps for libraries loaded late; kernel images must not ask for the same, their shared memory would exhaust it.
#define FX_FAST_TLS __attribute__((tls_model("initial-exec")))

extern "C" {
__thread uint3 threadIdx FX_FAST_TLS;
__thread uint3 blockIdx FX_FAST_TLS;
__thread dim3 blockDim FX_FAST_TLS;
__thread dim3 gridDim FX_FAST_TLS;
__thread void *fx_host_dynamic_shared FX_FAST_TLS;
}

namespace hostsim {

namespace {
constexpr size_t kGuard = 4096;

bool is_ready(const Engine &e, const Context *c) {
    return c->at_warp ? e.warps[c->index >> 5].released >> (c->index & 31) & 1u : c->generation != e.generation;
}
}  // namespace

static __thread Engine *engine FX_FAST_TLS;  // lives as long as its thread's last kernel could: never freed

Engine &this_engine() {
    if (!engine) engine = new Engine;
    return *engine;
}
bool in_kernel() { return engine && engine->running; }

void context_entry() {
    Engine &e = this_engine();
    e.launch->kernel->run(e.launch->args, &e.block);
    e.finish_context();
    __builtin_unreachable();
}

Context *Engine::take_context() {
    if (pool.empty()) {
        char *p = static_cast<char *>(
            mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
        if (p == MAP_FAILED) {
            report("hostsim: no memory for a thread's stack");
            abort_block(CUDA_ERROR_OUT_OF_MEMORY);
        }
        mprotect(p, kGuard, PROT_NONE);
        // The context stands at the top of its stack: a switch then touches neighbouring lines. Tops differ by cache
        // lines, because equal offsets within a page would all fall into the same cache sets.
        size_t offset = (all.size() % 31 + 1) * 64;
        auto *c = new (p + kGuard + kStack - ((sizeof(Context) + 63) & ~(size_t)63) - offset) Context;
        c->stack = p;
        c->fiber = new_fiber();
        all.push_back(c);
        pool.push_back(c);
    }
    Context *c = pool.back();
    pool.pop_back();
    forget_frames(c->stack + kGuard, (size_t)(reinterpret_cast<char *>(c) - c->stack) - kGuard);
    c->sp = prepare_stack(reinterpret_cast<char *>(c), context_entry);
    return c;
}

void Engine::run_block(uint64_t linear) {
    const uint3 grid = launch->grid;
    block.block_idx = grid.y == 1 && grid.z == 1
                          ? uint3{(uint32_t)linear, 0, 0}
                          : uint3{(uint32_t)(linear % grid.x), (uint32_t)(linear / grid.x % grid.y),
                                  (uint32_t)(linear / ((uint64_t)grid.x * grid.y))};
    blockIdx = block.block_idx;
    block.next = 0;
    block.waited = 0;
    current = &main;
    main.fiber = own_fiber();
    launch->kernel->run(launch->args, &block);
    if (!block.waited) return;
    // The main context is out of threads; the others may still be at work.
    main.previous->next = main.next;
    main.next->previous = main.previous;
    if (--live == 0) return;
    if (!ready) diverged();
    Context *c = pick_ready();
    current = c;
    threadIdx = c->thread;
    enter_fiber(c->fiber);
    fx_switch(&main.sp, c->sp);
}

// The threads before the current one have exited without waiting.
void Engine::first_wait() {
    block.waited = 1;
    main.next = main.previous = &main;
    live = 1;
    ready = arrived = generation = 0;
    sum[0] = sum[1] = 0;
    uint32_t count = block.count, n = (count + 31) / 32;
    if (warps.size() < n) warps.resize(n);
    for (uint32_t w = 0; w < n; ++w) {
        Warp &warp = warps[w];
        warp.valid = count - 32 * w >= 32 ? 0xffffffffu : (1u << (count - 32 * w)) - 1;
        warp.exited = warp.arrived = warp.released = warp.full = 0;
    }
    for (uint32_t k = 0; k + 1 < block.next; ++k) {
        uint32_t i = block.order ? block.order[k] : k;
        warps[i >> 5].exited |= 1u << (i & 31);
    }
}

// A context runs one thread after another; this notes which one it is.
void Engine::adopt_thread() {
    current->thread = threadIdx;
    current->index = threadIdx.x + block.block_dim.x * (threadIdx.y + block.block_dim.y * threadIdx.z);
}

Context *Engine::pick_ready() {
    Context *c = current->next;
    if (options.seed)
        for (uint64_t skip = mix(shuffle) % (live ? live : 1); skip; --skip) c = c->next;
    while (!is_ready(*this, c)) c = c->next;
    --ready;
    return c;
}

// The current thread waits: run another until somebody switches back.
void Engine::yield() {
    Context *me = current, *c;
    if (ready) {
        c = pick_ready();
        threadIdx = c->thread;
    } else if (block.next < block.count) {
        c = take_context();
        c->next = me->next;
        c->previous = me;
        me->next->previous = c;
        me->next = c;
        ++live;
    } else {
        diverged();
    }
    current = c;
    enter_fiber(c->fiber);
    fx_switch(&me->sp, c->sp);
}

// The current context has no thread left.
void Engine::finish_context() {
    Context *me = current;
    me->previous->next = me->next;
    me->next->previous = me->previous;
    pool.push_back(me);
    if (--live == 0) {
        enter_fiber(main.fiber);
        fx_switch(&me->sp, main.sp);
    } else {
        if (!ready) diverged();
        Context *c = pick_ready();
        current = c;
        threadIdx = c->thread;
        enter_fiber(c->fiber);
        fx_switch(&me->sp, c->sp);
    }
    __builtin_unreachable();
}

void Engine::thread_exit() {
    adopt_thread();
    Warp &warp = warps[current->index >> 5];
    warp.exited |= 1u << (current->index & 31);
    for (uint32_t waiting = warp.arrived; waiting; waiting &= waiting - 1) {
        int lane = __builtin_ctz(waiting);
        if (warp.arrived >> lane & 1u) try_release(warp, current->index, warp.mask[lane]);
    }
}

void Engine::wait_block(int predicate, int *sum_out) {
    if (block.count == 1) {
        *sum_out = predicate != 0;
        return;
    }
    if (!block.waited) first_wait();
    adopt_thread();
    uint32_t g = generation;
    sum[g & 1] += predicate != 0;
    if (++arrived == block.count) {
        arrived = 0;
        sum[(g + 1) & 1] = 0;
        generation = g + 1;
        ready = live - 1;
    } else {
        current->generation = g;
        current->at_warp = false;
        yield();
    }
    *sum_out = sum[g & 1];
}

// Releases the lanes of a mask if all that have not exited wait under that same mask.
bool Engine::try_release(Warp &warp, uint32_t index, uint32_t mask) {
    uint32_t needed = mask & warp.valid & ~warp.exited;
    if ((warp.arrived & needed) != needed) return false;
    for (uint32_t m = needed; m; m &= m - 1)
        if (warp.mask[__builtin_ctz(m)] != mask) return false;
    warp.arrived &= ~needed;
    warp.released |= needed;
    ready += (uint32_t)__builtin_popcount(needed & ~(1u << (index & 31)));
    if ((mask & warp.valid) == warp.valid) {
        warp.present[warp.full & 1] = needed;
        ++warp.full;
    } else {
        uint32_t base = (uint32_t)(&warp - warps.data()) * 32;
        if (partial.size() < base + 32) partial.resize(base + 32);
        for (uint32_t m = needed; m; m &= m - 1) {
            PartialResult &r = partial[base + (uint32_t)__builtin_ctz(m)];
            memcpy(r.slots, warp.partial_slots, sizeof(r.slots));
            r.present = needed;
        }
    }
    return true;
}

const uint64_t *Engine::wait_warp(unsigned mask, uint64_t value, unsigned *present) {
    if (!block.waited) first_wait();
    adopt_thread();
    uint32_t index = current->index, lane = index & 31;
    Warp &warp = warps[index >> 5];
    if (!(mask >> lane & 1u)) {
        report("%s: lane %u calls a warp function with mask 0x%08x, which does not name it", where_in_kernel(), lane,
               mask);
        abort_block(CUDA_ERROR_LAUNCH_FAILED);
    }
    bool full = (mask & warp.valid) == warp.valid;
    uint32_t buffer = warp.full & 1;
    (full ? warp.slots[buffer] : warp.partial_slots)[lane] = value;
    warp.mask[lane] = mask;
    warp.arrived |= 1u << lane;
    warp.released &= ~(1u << lane);
    if (!try_release(warp, index, mask)) {
        current->at_warp = true;
        yield();
    }
    if (full) {
        *present = warp.present[buffer];
        return warp.slots[buffer];
    }
    *present = partial[index].present;
    return partial[index].slots;
}

// Nothing can run and something waits: the barrier or collective is not reached by every thread it needs.
void Engine::diverged() {
    uint32_t block_waiters = 0, warp_waiters = 0, exited = 0;
    const Context *one = nullptr;
    Context *start = live ? (current->next ? current->next : &main) : nullptr, *c = start;
    for (uint32_t k = 0; k < live; ++k, c = c->next) {
        (c->at_warp ? warp_waiters : block_waiters)++;
        if (!one) one = c;
    }
    for (uint32_t w = 0; w < (block.count + 31) / 32; ++w) exited += (uint32_t)__builtin_popcount(warps[w].exited);
    uint3 t = one ? one->thread : uint3{0, 0, 0};
    report(
        "kernel %s, block (%u,%u,%u): divergent barrier: of %u threads %u wait at __syncthreads(), %u at a warp "
        "function, "
        "%u have exited; thread (%u,%u,%u) waits for ever",
        launch->kernel->name, block.block_idx.x, block.block_idx.y, block.block_idx.z, block.count, block_waiters,
        warp_waiters, exited, t.x, t.y, t.z);
    abort_block(CUDA_ERROR_LAUNCH_FAILED);
}

void Engine::reset_after_abort() {
    pool = all;
    block.waited = 0;
    live = ready = 0;
    current = &main;
}

}  // namespace hostsim

extern "C" {
FX_EXPORT void fx_host_syncthreads(void) {
    int ignored;
    hostsim::this_engine().wait_block(0, &ignored);
}
FX_EXPORT int fx_host_syncthreads_count(int predicate) {
    int sum;
    hostsim::this_engine().wait_block(predicate, &sum);
    return sum;
}
FX_EXPORT const uint64_t *fx_host_warp_gather(unsigned mask, uint64_t value, unsigned *present) {
    return hostsim::this_engine().wait_warp(mask, value, present);
}
FX_EXPORT void fx_host_thread_exit(void) { hostsim::this_engine().thread_exit(); }
}
