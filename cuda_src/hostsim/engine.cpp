// Launches: blocks over the worker threads, seeded orders, faults. See engine.h.
#include "hostsim/engine.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "hostsim/faults.h"
#include "hostsim/fibers.h"
#include "hostsim/memory.h"
#include "hostsim/options.h"
#include "hostsim/sanitizers.h"

namespace hostsim {

uint64_t frozen_ns = 0;

namespace {

uint64_t frozen_reads = 0;  // of the running launch

constexpr size_t kCanary = 64;
constexpr unsigned char kCanaryByte = 0xfb;

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

long futex(std::atomic<uint32_t> *word, int op, uint32_t value) {
    return syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), op | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// One launch at a time is shared out (the driver lock is held around it).
struct Pool {
    std::atomic<uint32_t> signal{0};  // counts launches offered; workers sleep on it
    std::atomic<uint32_t> sleepers{0};
    std::atomic<bool> open{false};
    std::atomic<int> active{0};
    std::atomic<bool> quit{false};
    std::atomic<uint64_t> next{0};  // next block
    std::atomic<CUresult> error{CUDA_SUCCESS};
    const Launch *launch = nullptr;
    uint64_t blocks = 0, chunk = 1;
    uint64_t stride = 1, offset = 0;  // block order: i -> (i * stride + offset) mod blocks
    uint64_t seed = 0;
    std::vector<pthread_t> threads;
};
Pool pool;

void prepare(Engine &e, const Launch &launch) {
    e.launch = &launch;
    bool any = launch.kernel->flags & FX_HOST_ANYBLOCK;
    uint3 b = any ? uint3{1, 1, 1} : launch.block;
    e.block.block_dim = {b.x, b.y, b.z};
    e.block.grid_dim = {launch.grid.x, launch.grid.y, launch.grid.z};
    e.block.thread_idx = &threadIdx;
    e.block.count = b.x * b.y * b.z;
    e.block.flat = b.y == 1 && b.z == 1;
    e.block.order = nullptr;
    threadIdx = {0, 0, 0};
    blockDim = e.block.block_dim;
    gridDim = e.block.grid_dim;
    if (launch.shared + kCanary > e.shared_size) {
        free(e.shared);
        e.shared_size = (launch.shared + kCanary + 4095) & ~(size_t)4095;
        e.shared = static_cast<char *>(aligned_alloc(128, e.shared_size));
    }
    fx_host_dynamic_shared = e.shared;
}

void order_threads(Engine &e, uint64_t block) {
    e.shuffle = pool.seed ^ (block * 0xd1342543de82ef95ull);
    if (e.block.count == 1) return;
    e.order.resize(e.block.count);
    std::iota(e.order.begin(), e.order.end(), 0u);
    for (uint32_t i = e.block.count - 1; i > 0; --i) std::swap(e.order[i], e.order[mix(e.shuffle) % (i + 1)]);
    e.block.order = e.order.data();
}

void run_one(Engine &e, uint64_t i) {
    uint64_t block = i;
    if (options.seed) {
        block = (uint64_t)(((unsigned __int128)i * pool.stride + pool.offset) % pool.blocks);
        order_threads(e, block);
    }
    if (e.launch->shared) {
        if (options.poison) fill_poison(e.shared, e.launch->shared);
        if (options.redzones) memset(e.shared + e.launch->shared, kCanaryByte, kCanary);
    }
    e.run_block(block);
    if (options.redzones && e.launch->shared)
        for (size_t k = 0; k < kCanary; ++k)
            if ((unsigned char)e.shared[e.launch->shared + k] != kCanaryByte) {
                report("%s: write %zu bytes behind the %u bytes of dynamic shared memory", where_in_kernel(), k,
                       e.launch->shared);
                abort_block(CUDA_ERROR_ILLEGAL_ADDRESS);
            }
}

// Takes blocks until none is left. Kept apart from run_launch: the jump buffer wants a frame without live locals.
__attribute__((noinline)) void take_blocks(Engine &e, bool owner, unsigned helpers) {
    e.error = CUDA_SUCCESS;
    if (__builtin_setjmp(e.jump)) {
        Engine &again = this_engine();
        CUresult none = CUDA_SUCCESS;
        pool.error.compare_exchange_strong(none, again.error);
        pool.next.store(pool.blocks);
        again.reset_after_abort();
        again.running = false;
        return;
    }
    e.running = true;
    if (owner) {  // alone at first: waking a worker costs more than a small grid
        uint64_t start = helpers ? now_ns() : 0, i = 0;
        const uint64_t n = pool.blocks;
        while (i < n) {
            run_one(e, i++);
            if (!helpers || i == n) continue;
            uint64_t spent = now_ns() - start, left = spent / i * (n - i);
            if (kAlwaysShare || (spent > 2000 && left > (pool.sleepers.load() ? 25000u : 5000u))) {
                pool.chunk = kAlwaysShare ? 1
                                          : std::max<uint64_t>(
                                                1, std::min<uint64_t>(4000 * i / spent, (n - i) / (4 * (helpers + 1))));
                pool.next.store(i);
                pool.open.store(true);
                pool.signal.fetch_add(1);
                if (pool.sleepers.load()) futex(&pool.signal, FUTEX_WAKE, helpers);
                break;
            }
        }
        if (i == n) {
            e.running = false;
            return;
        }
    }
    for (;;) {
        uint64_t i = pool.next.fetch_add(pool.chunk), end = std::min(i + pool.chunk, pool.blocks);
        if (i >= pool.blocks) break;
        for (; i < end; ++i) run_one(e, i);
    }
    e.running = false;
}

void *worker(void *) {
    install_fault_handler();
    uint32_t seen = pool.signal.load();
    for (;;) {
        uint64_t since = now_ns();
        while (pool.signal.load() == seen && !pool.quit.load()) {  // spin briefly, then sleep
            for (int k = 0; k < 50; ++k) pause_cpu();
            if (now_ns() - since < 30000) continue;
            pool.sleepers.fetch_add(1);
            futex(&pool.signal, FUTEX_WAIT, seen);
            pool.sleepers.fetch_sub(1);
        }
        if (pool.quit.load()) return nullptr;
        seen = pool.signal.load();
        pool.active.fetch_add(1);
        if (pool.open.load()) {
            Engine &e = this_engine();
            prepare(e, *pool.launch);
            take_blocks(e, false, 0);
        }
        pool.active.fetch_sub(1);
    }
}

unsigned start_workers() {
    static long long started_for = -1;
    static unsigned helpers = 0;
    if (options.workers == started_for) return helpers;
    stop_workers();
    started_for = options.workers;
    long long n = options.workers;
    if (n <= 0) {
        cpu_set_t set;
        n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
        n = std::min<long long>(n, 16);
    }
    pool.quit.store(false);
    sigset_t every, old;
    sigfillset(&every);
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&every, s);
    pthread_sigmask(SIG_BLOCK, &every, &old);  // signals such as SIGINT stay with Python's threads
    for (long long k = 1; k < n; ++k) {
        pthread_t t;
        if (pthread_create(&t, nullptr, worker, nullptr) == 0) pool.threads.push_back(t);
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return helpers = (unsigned)pool.threads.size();
}

struct sigaction previous_action[NSIG];

// A fault outside a kernel is not ours: what would have happened without us. A handler that hands on to the one before it, ours,
// as faulthandler's does when it was enabled after us, comes back here: then the default action ends it.
void hand_on(int signal, siginfo_t *info, void *context) {
    static __thread bool handing_on;
    struct sigaction &old = previous_action[signal];
    const bool has_handler = old.sa_flags & SA_SIGINFO || (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN);
    if (handing_on || !has_handler) {
        struct sigaction none{};
        none.sa_handler = SIG_DFL;
        sigaction(signal, handing_on ? &none : &old, nullptr);  // returning repeats the fault
        return;
    }
    handing_on = true;
    if (old.sa_flags & SA_SIGINFO) old.sa_sigaction(signal, info, context);
    else old.sa_handler(signal);
    handing_on = false;
}

void on_fault(int signal, siginfo_t *info, void *context) {
    if (!in_kernel()) return hand_on(signal, info, context);
    if (signal == SIGFPE || signal == SIGILL) {
        report("%s: %s", where_in_kernel(), signal == SIGFPE ? "integer division by zero or overflow" : "trap");
        abort_block(CUDA_ERROR_LAUNCH_FAILED);
    }
    Engine &e = this_engine();
    char *address = static_cast<char *>(info->si_addr);
    for (Context *c : e.all)
        if (address >= c->stack && address < c->stack + 4096) {
            report("%s: stack overflow: a thread has 16 KB; use less local memory", where_in_kernel());
            abort_block(CUDA_ERROR_LAUNCH_FAILED);
        }
    char what[400];
    describe_address((CUdeviceptr)address, what, sizeof(what));
    report("%s: illegal address %p: %s", where_in_kernel(), (void *)address, what);
    abort_block(CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace

void install_fault_handler() {
    static __thread bool has_stack;
    if (!has_stack) {  // the handler must not run on an overflowed stack
        has_stack = true;
        stack_t now{};
        if (sigaltstack(nullptr, &now) == 0 && now.ss_flags & SS_DISABLE) {
            stack_t mine{};
            mine.ss_size = 65536;
            mine.ss_sp = malloc(mine.ss_size);
            sigaltstack(&mine, nullptr);
        }
    }
    // Asked at each launch: whoever enabled a handler before us (faulthandler) puts back what he found when he disables it.
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        struct sigaction now{}, action{};
        if (sigaction(s, nullptr, &now) == 0 && now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault) continue;
        previous_action[s] = now;
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // abort_block leaves without returning
        sigaction(s, &action, nullptr);
    }
}

const Launch *current_launch() { return in_kernel() ? this_engine().launch : nullptr; }

const char *where_in_kernel() {
    static __thread char text[200];
    Engine &e = this_engine();
    uint3 b = e.block.block_idx, t = threadIdx;
    if (e.launch->kernel->flags & FX_HOST_ANYBLOCK)
        snprintf(text, sizeof(text), "kernel %s, block (%u,%u,%u)", e.launch->kernel->name, b.x, b.y, b.z);
    else
        snprintf(text, sizeof(text), "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", e.launch->kernel->name, b.x, b.y,
                 b.z, t.x, t.y, t.z);
    return text;
}

void abort_block(CUresult error) {
    Engine &e = this_engine();
    e.error = error;
    enter_fiber(e.main.fiber);
    __builtin_longjmp(e.jump, 1);
}

uint64_t clock_of_kernels() { return frozen_ns ? frozen_ns + 100 * ++frozen_reads : now_ns(); }

CUresult run_launch(const Launch &launch) {
    if (faults_armed)
        if (CUresult r = planned_launch_fault(launch.kernel->name); r != CUDA_SUCCESS) return r;
    Engine &e = this_engine();
    frozen_reads = 0;
    install_fault_handler();
    pool.launch = &launch;
    pool.blocks = (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z;
    pool.error.store(CUDA_SUCCESS, std::memory_order_relaxed);
    if (options.seed) {
        pool.seed = random_word();
        pool.offset = random_word() % pool.blocks;
        do pool.stride = random_word() % pool.blocks + 1;
        while (std::gcd(pool.stride, pool.blocks) != 1);
    }
    prepare(e, launch);
    take_blocks(e, true, pool.blocks > 1 && !frozen_ns ? start_workers() : 0);
    if (pool.open.load(std::memory_order_relaxed)) {
        pool.open.store(false);
        for (int spins = 0; pool.active.load(); ++spins) spins < 2000 ? pause_cpu() : (void)sched_yield();
    }
    CUresult error = pool.error.load(std::memory_order_relaxed);
    if (error == CUDA_SUCCESS && options.redzones && !check_redzones(launch.kernel->name))
        error = CUDA_ERROR_ILLEGAL_ADDRESS;
    return error;
}

void stop_workers() {
    if (pool.threads.empty()) return;
    pool.quit.store(true);
    pool.signal.fetch_add(1);
    futex(&pool.signal, FUTEX_WAKE, 1 << 20);
    for (pthread_t t : pool.threads) pthread_join(t, nullptr);
    pool.threads.clear();
}

}  // namespace hostsim

extern "C" {
FX_EXPORT unsigned long long fx_host_globaltimer(void) { return hostsim::clock_of_kernels(); }
FX_EXPORT long long fx_host_clock64(void) { return (long long)hostsim::clock_of_kernels(); }
FX_EXPORT void fx_host_trap(void) {
    hostsim::report("%s: __trap()", hostsim::where_in_kernel());
    hostsim::abort_block(CUDA_ERROR_LAUNCH_FAILED);
}
}
