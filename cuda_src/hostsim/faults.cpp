// Parsing and counting of the fault plan; see faults.h.
#include "hostsim/faults.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hostsim/driver.h"

namespace hostsim {

bool faults_armed = false;
CallHook call_hook = nullptr;

namespace {

struct Fault {
    std::string text, what;  // as written; the part before the @
    bool kernel = false;     // counts executions of kernels rather than calls
    unsigned long long at = 0, seen = 0;
    CUresult error = CUDA_SUCCESS;
};
std::vector<Fault> plan;
bool broken = false;

// After one of these the context is dead (foxhunt_rt/driver/errors.py has the same list).
bool is_sticky(CUresult error) {
    switch (error) {
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ECC_UNCORRECTABLE: return true;
        default: return false;
    }
}

const char *parse(const std::string &text, Fault &fault) {
    size_t at = text.find('@'), eq = text.find('=', at == std::string::npos ? 0 : at);
    if (at == std::string::npos || eq == std::string::npos || at == 0) return "it is not WHAT@COUNT=ERROR";
    fault.text = text;
    fault.what = text.substr(0, at);
    fault.kernel = fault.what.rfind("launch", 0) == 0;
    char *end = nullptr;
    fault.at = strtoull(text.c_str() + at + 1, &end, 10);
    fault.error = error_by_name(text.c_str() + eq + 1);
    if (end != text.c_str() + eq || fault.at == 0) return "the count is not a number from 1";
    if (fault.error == CUDA_SUCCESS) return "there is no such error";
    if (!fault.kernel) {
        bool known = fault.what == "call" || fault.what == "alloc" || entry_point_exists(fault.what.c_str());
        return known ? nullptr : "what fails is an entry point of hostsim, alloc, call, launch or launch:<kernel>";
    }
    if (fault.what != "launch" && fault.what.rfind("launch:", 0) != 0) return "it is launch or launch:<kernel>";
    return is_sticky(fault.error) ? nullptr : "a kernel that fails kills its context, and this error does not";
}

bool matches(const Fault &fault, const char *function) {
    if (fault.what == "call") return strncmp(function, "cu", 2) == 0 && !is_entry_point(function, "cuGetProcAddress");
    const size_t n = fault.what.size();
    if (fault.what != "alloc")  // cuGraphInstantiate is called as cuGraphInstantiateWithFlags
        return is_entry_point(function, fault.what.c_str()) ||
               (!strncmp(function, fault.what.c_str(), n) && !strncmp(function + n, "With", 4));
    for (const char *name : {"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocAsync", "cuMemHostAlloc", "cuMemAllocHost"})
        if (is_entry_point(function, name)) return true;
    return false;
}

__attribute__((constructor)) void read_environment() {
    const char *text = getenv("FOXHUNT_FAULTS");
    broken = text && !set_fault_plan(text);
}

}  // namespace

bool set_fault_plan(const char *text) {
    plan.clear();
    for (const char *rest = text ? text : ""; *rest;) {
        std::string item(rest, strcspn(rest, ";"));
        rest += item.size();
        rest += *rest == ';';
        if (item.empty()) continue;
        plan.emplace_back();
        if (const char *why = parse(item, plan.back())) {
            report_once("hostsim: fault plan: %s: %s", item.c_str(), why);
            plan.clear();
            faults_armed = false;
            return false;
        }
    }
    faults_armed = !plan.empty();
    return true;
}

bool fault_plan_is_broken() { return broken; }

CUresult planned_call_fault(const char *entry_point) {
    CUresult result = CUDA_SUCCESS;
    for (Fault &f : plan)
        if (!f.kernel && matches(f, entry_point) && ++f.seen == f.at) {
            report("fault plan: %s, in %s", f.text.c_str(), entry_point);
            result = f.error;
        }
    if (is_sticky(result)) fail(current_context(), result);
    return result;
}

CUresult hooked_call_fault(const char *entry_point, int error) {
    const auto result = static_cast<CUresult>(error);
    report("fault plan: %s answers %d", entry_point, error);
    if (is_sticky(result)) fail(current_context(), result);
    return result;
}

CUresult planned_launch_fault(const char *kernel) {
    CUresult result = CUDA_SUCCESS;
    for (Fault &f : plan)
        if (f.kernel && (f.what == "launch" || f.what.substr(7) == kernel) && ++f.seen == f.at) {
            report("fault plan: %s, in kernel %s", f.text.c_str(), kernel);
            result = f.error;
        }
    return result;
}

}  // namespace hostsim

// Sets the hook of every entry point (faults.h); null ends it.
extern "C" __attribute__((visibility("default"))) void fxHostsimOnCall(hostsim::CallHook hook) {
    hostsim::call_hook = hook;
}
