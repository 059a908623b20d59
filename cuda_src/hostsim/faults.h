// The fault plan: makes chosen driver calls and kernels fail, by count.
#pragma once
#include <cuda.h>

namespace hostsim {

extern bool faults_armed;  // a plan is set: entry points and launches ask below

// "launch:c51_loss@17=ILLEGAL_ADDRESS;alloc@3=OUT_OF_MEMORY;cuGraphLaunch@5=LAUNCH_FAILED". What is before the @ is an entry
// point (without its version suffix; without With... where it has that too), `alloc` (any allocation), `call` (any entry point), `launch` (any kernel), or
// `launch:<kernel>`; the number counts those from when the plan is set. Replaces the plan; false: not understood (reported).
bool set_fault_plan(const char *text);
bool fault_plan_is_broken();  // FOXHUNT_FAULTS was not understood: cuInit refuses, so that no run passes for a tested one

CUresult planned_call_fault(const char *entry_point);  // CUDA_SUCCESS: none; a sticky one kills the current context
CUresult planned_launch_fault(const char *kernel);

CUresult error_by_name(const char *name);  // "OUT_OF_MEMORY", with CUDA_ERROR_ or without; CUDA_SUCCESS: there is none
bool is_entry_point(const char *function, const char *base_name);  // cuMemAlloc_v2 is cuMemAlloc
bool entry_point_exists(const char *prefix);

// Asked at the beginning of every entry point, before the driver lock is taken: what it returns instead of 0 is the
// answer of that call, which then does nothing. So it may fork, and the child goes on with a call that fails.
using CallHook = int (*)(const char *entry_point);
extern CallHook call_hook;
// A sticky error kills the current context, as it would come from the device.
CUresult hooked_call_fault(const char *entry_point, int error);

}  // namespace hostsim
