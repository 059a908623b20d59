// The fxHostsim* functions, and the environment variable FOXHUNT_HOSTSIM; see options.h.
#include "hostsim/options.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "hostsim/driver.h"
#include "hostsim/faults.h"

namespace hostsim {

Options options;
unsigned long long count_calls(const char *name);

namespace {
std::mutex report_lock;
char report_text[1024];
uint64_t random_state = 0;

int configure(const char *key, long long value) {
    std::string k = key ? key : "";
    if (k == "deferred") {
        if (options.deferred && !value) drain_all();
        options.deferred = value != 0;
    } else if (k == "depth" && value >= 1) options.depth = value;
    else if (k == "seed") random_state = options.seed = (uint64_t)value;
    else if (k == "redzones") options.redzones = value != 0;
    else if (k == "poison") options.poison = value != 0;
    else if (k == "workers" && value >= 0) options.workers = value;
    else if (k == "overlap" && value >= 0 && value <= 2) options.overlap = value;
    else if (k == "audit") options.audit = value != 0;
    else if (k == "devices" && value >= 1 && value <= kMostDevices) options.devices = value;
    else if (k == "version" && (value == 0 || (value >= 12000 && value <= CUDA_VERSION))) options.version = value;
    else if (k == "conditionals") options.conditionals = value != 0;
    else return 1;
    return 0;
}

__attribute__((constructor)) void read_environment() {
    const char *text = getenv("FOXHUNT_HOSTSIM");
    while (text && *text) {
        std::string item(text, strcspn(text, ","));
        text += item.size();
        text += *text == ',';
        size_t eq = item.find('=');
        std::string key = item.substr(0, eq);
        if (configure(key.c_str(), eq == std::string::npos ? 1 : atoll(item.c_str() + eq + 1)))
            fprintf(
                stderr,
                "hostsim: FOXHUNT_HOSTSIM: no option %s; there are deferred, depth, seed, redzones, poison, workers, "
                "overlap, audit, devices, version, conditionals\n",
                item.c_str());
    }
}

void store(const char *format, va_list list) {
    std::lock_guard<std::mutex> hold(report_lock);
    vsnprintf(report_text, sizeof(report_text), format, list);
}
}  // namespace

static std::map<std::string, unsigned long long> &findings() {
    static auto *all = new std::map<std::string, unsigned long long>;
    return *all;
}
void count_finding(const char *name) { ++findings()[name]; }
unsigned long long count_findings(const char *name) {
    auto it = findings().find(name);
    return it == findings().end() ? 0 : it->second;
}

uint64_t random_word() { return mix(random_state); }

void report(const char *format, ...) {
    va_list list;
    va_start(list, format);
    store(format, list);
    va_end(list);
}
void report_once(const char *format, ...) {
    va_list list;
    va_start(list, format);
    store(format, list);
    va_end(list);
    static std::set<std::string> seen;
    if (seen.insert(report_text).second) fprintf(stderr, "%s\n", report_text);
}
const char *last_report() { return report_text; }

}  // namespace hostsim

using namespace hostsim;

#define FX_CONTROL extern "C" __attribute__((visibility("default")))

// Sets an option; 0, or 1 for an unknown key or a value out of range. Red zones and poison hold for later allocations.
FX_CONTROL int fxHostsimConfigure(const char *key, long long value) {
    static Counter counter("fxHostsimConfigure");
    Guard guard(counter, Need::nothing);
    return configure(key, value);
}
// The value of an option that fxHostsimConfigure sets; -1 for an unknown key.
FX_CONTROL long long fxHostsimOption(const char *key) {
    const std::pair<const char *, long long> values[] = {
        {"deferred", options.deferred}, {"depth", options.depth},   {"seed", (long long)options.seed},
        {"redzones", options.redzones}, {"poison", options.poison}, {"workers", options.workers},
        {"overlap", options.overlap},   {"audit", options.audit},
    };
    for (auto [name, value] : values)
        if (key && !strcmp(key, name)) return value;
    return -1;
}
FX_CONTROL void fxHostsimPoll(void) {
    static Counter counter("fxHostsimPoll");
    Guard guard(counter, Need::nothing);
    progress();
}
// The last finding in words; empty when there is none. Valid until the next finding.
FX_CONTROL const char *fxHostsimLastReport(void) { return last_report(); }
FX_CONTROL void fxHostsimLabel(CUdeviceptr p, const char *label) {
    static Counter counter("fxHostsimLabel");
    Guard guard(counter, Need::nothing);
    if (Allocation *a = find_start((void *)p)) a->label = label ? label : "";
}
// Replaces the fault plan (faults.h), whose counts begin anew; "" ends it. 0, or 1 for a text that is not understood.
FX_CONTROL int fxHostsimFaults(const char *plan) {
    static Counter counter("fxHostsimFaults");
    Guard guard(counter, Need::nothing);
    return set_fault_plan(plan) ? 0 : 1;
}
// How often an entry point was called, whatever its version suffix ("call": all of them); findings of "overlap" and
// "isolation"; objects alive, by "live.allocations", "live.modules", "live.streams", "live.events", "live.graphs",
// "live.graph_execs".
FX_CONTROL unsigned long long fxHostsimCounter(const char *name) { return count_calls(name); }
