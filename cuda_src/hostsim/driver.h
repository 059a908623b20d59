// The objects behind the driver's handles, and how every entry point begins.
#pragma once
#include <cuda.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "hostsim/engine.h"
#include "hostsim/memory.h"
#include "hostsim/options.h"

// Visibility is hidden by default; an entry point is exported under the name cuda.h gives it (cuMemAlloc_v2, ...).
#define FX_API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

// The start of an entry point: takes the driver lock, counts the call, checks initialization, context, sticky errors.
#define FX_ENTER(need)                                        \
    static ::hostsim::Counter counter_(__func__);             \
    ::hostsim::Guard guard_(counter_, ::hostsim::Need::need); \
    if (guard_.status != CUDA_SUCCESS) return guard_.status;
// The same on a stream, which is `s` from then on.
#define FX_ENTER_STREAM(handle) \
    FX_ENTER(context);          \
    ::hostsim::Stream *s;       \
    FX_TRY(::hostsim::find_stream(handle, s))
#define FX_TRY(call)                                             \
    do {                                                         \
        if (CUresult r_ = (call); r_ != CUDA_SUCCESS) return r_; \
    } while (0)

namespace hostsim {

constexpr int kMostDevices = 16;

enum class Need {
    nothing,
    init,     // cuInit
    context,  // a current context without sticky error
    any       // a current context, even a dead one
};

struct Counter {
    explicit Counter(const char *name);
    const char *name;
    std::atomic<unsigned long long> calls{0};
};

struct Context {
    CUresult sticky = CUDA_SUCCESS;
    bool primary = false;
    CUdevice device = 0;
    unsigned flags = 0, retained = 0;
    unsigned long long id = 0;
    struct Stream *legacy = nullptr;
    std::vector<struct Stream *> streams;  // the legacy one is first
};

struct Guard {
    Guard(Counter &counter, Need need);
    ~Guard();
    CUresult status = CUDA_SUCCESS;
};

Context *current_context();  // of the calling thread, or null
const std::set<Context *> &all_contexts();
extern bool in_host_function;               // of the thread that holds the lock
CUresult fail(Context *c, CUresult error);  // makes an error sticky

// Live handles of one type. A handle that is not in here is refused, as the real driver usually does.
template <class T>
struct Registry {
    std::unordered_set<const void *> live;
    void add(T *t) { live.insert(t); }
    bool has(const void *p) const { return p && live.count(p); }
    void remove(T *t) { live.erase(t); }
};

// ---------------------------------------------------------------- modules
struct Function {
    struct Module *module = nullptr;  // null: unloaded
    Context *context = nullptr;
    const fx_host_kernel *kernel = nullptr;
    std::string name;
    int max_dynamic_shared = 48 * 1024;
    int carveout = -1;
    const struct Graph *captured_by = nullptr;  // the first graph that launched it; see audit_captured
    unsigned captured_graph_id = 0;
};

struct Module {
    Context *context = nullptr;
    void *handle = nullptr;
    std::vector<Function *> functions;
    std::vector<void *> globals;          // those handed out
    const Function *captured = nullptr;   // a function of it that a graph launches
    const Function *ungraphed = nullptr;  // one that was launched outside of graphs
};

extern Registry<Function> functions;
extern Registry<Module> modules;
void unload_all(Context *context);  // what goes with its context
// Checks of a launch: dimensions, limits; fills in the launch. `args` receives the argument bytes.
CUresult prepare_launch(Function *f, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params,
                        void **extra, Launch &launch, std::vector<char> &args);
// The isolation audit: a function belongs to one graph, and a module with such functions launches nothing outside of graphs.
void audit_captured(Function *f, const struct Graph *graph);
void audit_ungraphed(Function *f);

// ---------------------------------------------------------------- streams and events
// One piece of queued work. Eager mode has none: work runs when it is submitted.
struct Work {
    std::function<CUresult()> run;
    std::vector<std::shared_ptr<Work>> after;
    Context *context = nullptr;
    bool done = false, running = false;
};

struct Node;
struct Graph;

struct Capture {  // one capture sequence, over all the streams that joined it
    unsigned long long id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    struct Stream *origin = nullptr;
    unsigned long thread = 0;
    Graph *graph = nullptr;
    bool owns_graph = true;  // false: cuStreamBeginCaptureToGraph
    bool invalid = false;
    std::vector<struct Stream *> streams;
};

struct Stream {
    Context *context = nullptr;
    unsigned flags = 0;
    int priority = 0;
    unsigned long long id = 0;
    bool legacy = false;
    std::deque<std::shared_ptr<Work>> queue;
    std::shared_ptr<Work> last;
    std::shared_ptr<Capture> capture;
    std::vector<Node *> tail;  // of the capture: what the next node depends on
};

struct EventState {
    bool recorded = false;
    uint64_t ns = 0;
};

struct Event {
    Context *context = nullptr;
    unsigned flags = 0;
    std::shared_ptr<EventState> state;  // of the last record outside a capture; null: never recorded
    std::shared_ptr<Work> work;         // null when done
    std::shared_ptr<Capture> capture;   // recorded inside a capture
    std::vector<Node *> nodes;
};

extern Registry<Stream> streams;
extern Registry<Event> events;

CUresult find_stream(CUstream handle, Stream *&out);  // null and CU_STREAM_LEGACY give the legacy stream
CUresult find_event(CUevent handle, Event *&out);
// Runs `run` in stream order: at once, or later in deferred mode.
CUresult submit(Stream *s, std::function<CUresult()> run, std::shared_ptr<Work> after = nullptr);
void drain(Stream *s);
void drain(Context *c);
void drain_all();
void finish(const std::shared_ptr<Work> &work);
void progress();  // lets the oldest piece of each stream run
bool pending(const Stream *s);
uint64_t now_ns();

// ---------------------------------------------------------------- capture
extern std::vector<std::shared_ptr<Capture>> captures;  // active, the invalidated ones included
// For calls that a capture in progress forbids (allocation, synchronous copies, ...): refuses and invalidates.
CUresult forbid_in_capture(const char *call);
CUresult forbid_while_capturing(const Context *context, const char *call);
// For work on a stream. *capturing: record a node instead of running.
CUresult check_stream(Stream *s, const char *call, bool *capturing);
void invalidate(const std::shared_ptr<Capture> &capture, const char *why);
CUresult refuse_in_capture(Stream *s, const char *why);  // and invalidates it
void abandon(Stream *s);  // takes a stream that is destroyed out of its capture, which ends with its origin
CUresult capture_node(Stream *s, std::unique_ptr<Node> node);
CUresult wait_event(Stream *s, Event *e, unsigned flags);

}  // namespace hostsim
