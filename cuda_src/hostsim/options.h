// Options, reports and call counters: what Python reaches through the fxHostsim* functions.
#pragma once
#include <cstdint>

namespace hostsim {

struct Options {
    bool deferred = false;     // queued work runs as late as allowed
    long long depth = 2;       // so many later launches force an earlier one
    uint64_t seed = 0;         // order of blocks, threads and independent graph nodes; 0: natural
    bool redzones = false;     // guard pages, patterns, quarantine
    bool poison = false;       // fresh device memory holds signalling NaNs
    long long workers = 0;     // threads that run blocks, the caller among them; 0: one a core, 16 at most
    long long overlap = 0;     // every order of graph nodes without an edge between them gives the same; 2: only report
    bool audit = false;        // breaches of the isolation rule are reported
    long long devices = 1;     // devices that there are, 16 at most; each has memory of its own that no other may touch
    long long version = 0;     // CUDA version to pass for, such as 12000: later entry points are missing; 0: the newest
    bool conditionals = true;  // false: conditional nodes are refused, though their entry points are there
};
extern Options options;

// Counts a finding under a name that fxHostsimCounter knows ("overlap", "isolation"). The caller holds the driver lock.
void count_finding(const char *name);
unsigned long long count_findings(const char *name);

// Records a finding; the printf form. The text is kept for fxHostsimLastReport.
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The same, but also printed to stderr the first time this text is seen.
void report_once(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *last_report();

// splitmix64 (Steele, Lea, Flood 2014): the generator behind every seeded choice.
inline uint64_t mix(uint64_t &state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
uint64_t random_word();  // of the stream that options.seed starts; the caller holds the driver lock

}  // namespace hostsim
