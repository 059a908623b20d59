// The threads of one block as fibers of one OS thread.
//
// A block starts as a plain loop on the OS thread's stack. When a thread waits for the first time, its stack is kept,
// and the loop goes on with the next thread on a fresh stack from the arena; so a kernel that never waits costs no
// switch. A context is a stack together with the thread that it currently runs.
#pragma once
#include <vector>

#include "hostsim/engine.h"

namespace hostsim {

struct Context {
    void *sp = nullptr;
    Context *next = nullptr, *previous = nullptr;  // ring of the contexts whose thread has not exited
    uint3 thread{};
    uint32_t index = 0;       // linear thread index
    uint32_t generation = 0;  // of the barrier it waits at
    bool at_warp = false;     // waits for its warp rather than for the block
    char *stack = nullptr;    // null: the OS thread's own
    void *fiber = nullptr;    // ThreadSanitizer's
};

struct Warp {
    uint32_t valid = 0, exited = 0, arrived = 0, released = 0;  // bit sets of lanes
    uint32_t full = 0;                                          // collectives of all lanes done so far
    uint32_t present[2] = {};
    uint64_t slots[2][32];
    uint32_t mask[32];  // the mask each waiting lane named
    uint64_t partial_slots[32];
};

struct PartialResult {  // of a collective over some lanes; one per lane, since groups advance independently
    uint64_t slots[32];
    uint32_t present;
};

struct Engine {
    fx_host_block block{};
    const Launch *launch = nullptr;
    Context main;  // of the OS thread
    Context *current = nullptr;
    uint32_t live = 0;   // contexts in the ring, the running one included
    uint32_t ready = 0;  // contexts that could run now, the running one not counted
    uint32_t arrived = 0, generation = 0;
    int sum[2] = {0, 0};  // of __syncthreads_count, by parity of the generation
    bool main_done = false;
    std::vector<Warp> warps;
    std::vector<PartialResult> partial;
    std::vector<uint32_t> order;  // threads in seeded order
    std::vector<Context *> pool;  // contexts with a stack, free
    std::vector<Context *> all;
    void *jump[5];  // __builtin_setjmp: where abort_block goes
    CUresult error = CUDA_SUCCESS;
    bool running = false;
    char *shared = nullptr;
    size_t shared_size = 0;
    uint64_t shuffle = 1;  // state of the seeded choices of this block

    void run_block(uint64_t linear_block);
    void wait_block(int predicate, int *sum_out);
    const uint64_t *wait_warp(unsigned mask, uint64_t value, unsigned *present);
    void thread_exit();
    void reset_after_abort();

  private:
    friend void context_entry();
    void first_wait();
    void adopt_thread();
    void yield();
    void finish_context();
    Context *pick_ready();
    bool try_release(Warp &warp, uint32_t index, uint32_t mask);
    void start_context();
    [[noreturn]] void diverged();
    Context *take_context();
};

Engine &this_engine();

}  // namespace hostsim
