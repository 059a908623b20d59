// A fiber switch: saves the callee-saved registers on the old stack, loads those of the new one. No system call.
#pragma once

extern "C" __attribute__((visibility("hidden"))) void fx_switch(void **save_sp, void *load_sp);

namespace hostsim {

// The stack pointer of a fiber that will call entry() when first switched to. `top` is 16-byte aligned.
inline void *prepare_stack(char *top, void (*entry)()) {
    void **sp = reinterpret_cast<void **>(top);
#if defined(__x86_64__)
    *--sp = nullptr;                              // where a caller's return address would be; keeps alignment
    *--sp = reinterpret_cast<void *>(entry);      // popped by ret
    for (int i = 0; i < 6; ++i) *--sp = nullptr;  // rbp rbx r12 r13 r14 r15
#elif defined(__aarch64__)
    sp -= 20;  // x19-x30, d8-d15
    for (int i = 0; i < 20; ++i) sp[i] = nullptr;
    sp[11] = reinterpret_cast<void *>(entry);  // x30
#endif
    return sp;
}

}  // namespace hostsim
