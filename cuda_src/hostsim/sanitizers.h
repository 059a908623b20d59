// What AddressSanitizer and ThreadSanitizer must be told about fibers; empty in ordinary builds.
#pragma once
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_unpoison_memory_region(void const volatile *start, size_t size);
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
}
#endif

namespace hostsim {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStack = 262144;  // instrumented frames are many times larger
#else
constexpr size_t kStack = 16384;
#endif

// Under ThreadSanitizer every grid of several blocks is shared out at once: it finds races between blocks only where threads
// run them side by side.
#if defined(__SANITIZE_THREAD__)
constexpr bool kAlwaysShare = true;
#else
constexpr bool kAlwaysShare = false;
#endif

// A fiber's stack is used anew: forgets what frames that never returned have marked.
inline void forget_frames([[maybe_unused]] void *stack, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, size);
#endif
}

// ThreadSanitizer keeps a call stack and a clock for each fiber. A switch orders them: fibers of one OS thread do not race.
inline void *new_fiber() {
#if defined(__SANITIZE_THREAD__)
    return __tsan_create_fiber(0);
#else
    return nullptr;
#endif
}
inline void *own_fiber() {
#if defined(__SANITIZE_THREAD__)
    return __tsan_get_current_fiber();
#else
    return nullptr;
#endif
}
inline __attribute__((always_inline)) void enter_fiber([[maybe_unused]] void *fiber) {
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(fiber, 0);
#endif
}

}  // namespace hostsim
