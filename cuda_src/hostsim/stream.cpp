// Streams, events, host functions, and when queued work runs.
//
// Eager mode runs work when it is submitted. Deferred mode queues it; a piece of work knows what must come first (its
// predecessor in the stream, an event, the legacy stream), and running it runs those, and nothing else. So a stream
// that is not ordered behind another sees that one's work as late as a GPU might show it.
#include <time.h>

#include <algorithm>

#include "hostsim/driver.h"
#include "hostsim/graph.h"

namespace hostsim {

Registry<Stream> streams;
Registry<Event> events;

namespace {
unsigned long long next_stream = 1;

void pop_done(Stream *s) {
    while (!s->queue.empty() && s->queue.front()->done) s->queue.pop_front();
    if (s->last && s->last->done) s->last = nullptr;
}
}  // namespace

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

CUresult find_stream(CUstream handle, Stream *&out) {
    Context *c = current_context();
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        if (!c) return CUDA_ERROR_INVALID_CONTEXT;
        out = c->legacy;
        return CUDA_SUCCESS;
    }
    out = reinterpret_cast<Stream *>(handle);
    return streams.has(out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_event(CUevent handle, Event *&out) {
    out = reinterpret_cast<Event *>(handle);
    return events.has(out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void finish(const std::shared_ptr<Work> &work) {
    if (work->done || work->running) return;
    work->running = true;
    for (auto &earlier : work->after) finish(earlier);
    work->after.clear();
    if (work->context->sticky == CUDA_SUCCESS)
        if (CUresult r = work->run(); r != CUDA_SUCCESS) fail(work->context, r);
    work->run = nullptr;
    work->done = true;
}

CUresult submit(Stream *s, std::function<CUresult()> run, std::shared_ptr<Work> after) {
    Context *c = s->context;
    if (!options.deferred) {
        if (CUresult r = run(); r != CUDA_SUCCESS) fail(c, r);  // reported by the next call, as on a GPU
        return CUDA_SUCCESS;
    }
    auto work = std::make_shared<Work>();
    work->run = std::move(run);
    work->context = c;
    pop_done(s);
    if (s->last) work->after.push_back(s->last);
    if (after && !after->done) work->after.push_back(std::move(after));
    // Implicit order between the legacy stream and the streams that were not created non-blocking.
    if (s->legacy) {
        for (Stream *other : c->streams)
            if (!(other->flags & CU_STREAM_NON_BLOCKING) && other->last && !other->last->done)
                work->after.push_back(other->last);
    } else if (!(s->flags & CU_STREAM_NON_BLOCKING) && c->legacy->last && !c->legacy->last->done) {
        work->after.push_back(c->legacy->last);
    }
    s->queue.push_back(work);
    s->last = work;
    while ((long long)s->queue.size() > std::max(options.depth, 1ll)) {
        finish(s->queue.front());
        pop_done(s);
    }
    if (options.seed && random_word() % 8 == 0) progress();
    return CUDA_SUCCESS;
}

bool pending(const Stream *s) { return s->last && !s->last->done; }

void drain(Stream *s) {
    if (s->last) finish(s->last);
    pop_done(s);
    if (s->legacy)
        for (Stream *other : s->context->streams)
            if (other != s && !(other->flags & CU_STREAM_NON_BLOCKING)) drain(other);
}
void drain(Context *c) {
    if (!c->legacy) return;
    for (Stream *s : c->streams) drain(s);
}
void drain_all() {
    for (Context *c : all_contexts()) drain(c);
}
void progress() {
    for (Context *c : all_contexts())
        for (Stream *s : c->streams) {
            pop_done(s);
            if (!s->queue.empty()) finish(s->queue.front());
            pop_done(s);
        }
}

}  // namespace hostsim

using namespace hostsim;

// ---------------------------------------------------------------- streams
static CUresult create_stream(CUstream *out, unsigned flags, int priority) {
    if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    auto *s = new Stream;
    s->context = current_context();
    s->flags = flags;
    s->priority = std::clamp(priority, -5, 0);
    s->id = next_stream++;
    s->context->streams.push_back(s);
    streams.add(s);
    *out = reinterpret_cast<CUstream>(s);
    return CUDA_SUCCESS;
}
FX_API cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    FX_ENTER(context);
    return create_stream(out, flags, priority);
}
FX_API cuStreamCreate(CUstream *out, unsigned flags) {
    FX_ENTER(context);
    return create_stream(out, flags, 0);
}
FX_API cuStreamDestroy(CUstream handle) {
    FX_ENTER(any);
    auto *s = reinterpret_cast<Stream *>(handle);
    if (!streams.has(s)) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) {
        invalidate(s->capture, "cuStreamDestroy of a capturing stream");
        abandon(s);
    }
    drain(s);
    std::erase(s->context->streams, s);
    streams.remove(s);
    delete s;
    return CUDA_SUCCESS;
}
#define FX_STREAM_GET(api, type, value)      \
    FX_API api(CUstream handle, type *out) { \
        FX_ENTER_STREAM(handle);             \
        *out = value;                        \
        return CUDA_SUCCESS;                 \
    }
FX_STREAM_GET(cuStreamGetPriority, int, s->priority)
FX_STREAM_GET(cuStreamGetFlags, unsigned, s->flags)
FX_STREAM_GET(cuStreamGetId, unsigned long long, s->id)
FX_STREAM_GET(cuStreamGetDevice, CUdevice, s->context->device)
FX_STREAM_GET(cuStreamGetCtx, CUcontext, reinterpret_cast<CUcontext>(s->context))
FX_API cuStreamSynchronize(CUstream handle) {
    FX_ENTER_STREAM(handle);
    FX_TRY(refuse_in_capture(s, "cuStreamSynchronize of a capturing stream"));
    if (s->legacy) FX_TRY(check_stream(s, "cuStreamSynchronize of the legacy stream", nullptr));
    if (s->legacy) FX_TRY(forbid_while_capturing(s->context, "cuStreamSynchronize of the legacy stream"));
    drain(s);
    return s->context->sticky;
}
FX_API cuStreamQuery(CUstream handle) {
    FX_ENTER_STREAM(handle);
    FX_TRY(refuse_in_capture(s, "cuStreamQuery of a capturing stream"));
    if (s->legacy) FX_TRY(check_stream(s, "cuStreamQuery", nullptr));
    if (!pending(s)) return s->context->sticky;
    progress();
    return s->context->sticky != CUDA_SUCCESS ? s->context->sticky : CUDA_ERROR_NOT_READY;
}
FX_API cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *data) {
    FX_ENTER_STREAM(handle);
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    bool capturing;
    FX_TRY(check_stream(s, "cuLaunchHostFunc", &capturing));
    if (capturing) {
        return capture_node(s, CU_GRAPH_NODE_TYPE_HOST, [&](Node &n) {
            n.host.fn = fn;
            n.host.userData = data;
        });
    }
    return submit(s, [fn, data] {
        in_host_function = true;
        fn(data);
        in_host_function = false;
        return CUDA_SUCCESS;
    });
}

// ---------------------------------------------------------------- events
FX_API cuEventCreate(CUevent *out, unsigned flags) {
    FX_ENTER(context);
    if (!out || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    auto *e = new Event;
    e->context = current_context();
    e->flags = flags;
    events.add(e);
    *out = reinterpret_cast<CUevent>(e);
    return CUDA_SUCCESS;
}
FX_API cuEventDestroy(CUevent handle) {
    FX_ENTER(any);
    Event *e;
    FX_TRY(find_event(handle, e));
    events.remove(e);
    delete e;
    return CUDA_SUCCESS;
}
static CUresult record(CUevent handle, CUstream stream, unsigned flags) {
    Event *e;
    Stream *s;
    FX_TRY(find_event(handle, e));
    FX_TRY(find_stream(stream, s));
    if (s->context != e->context) return CUDA_ERROR_INVALID_HANDLE;
    bool capturing;
    FX_TRY(check_stream(s, "cuEventRecord", &capturing));
    if (capturing && (flags & CU_EVENT_RECORD_EXTERNAL)) {
        return capture_node(s, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](Node &n) { n.event = e; });
    }
    if (capturing) {
        e->capture = s->capture;
        e->nodes = s->tail;
        e->state = nullptr;
        e->work = nullptr;
        return CUDA_SUCCESS;
    }
    if (flags & CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    auto state = std::make_shared<EventState>();
    e->state = state;
    e->capture = nullptr;
    CUresult r = submit(s, [state] {
        state->ns = now_ns();
        state->recorded = true;
        return CUDA_SUCCESS;
    });
    e->work = options.deferred ? s->last : nullptr;
    return r;
}
FX_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    FX_ENTER(context);
    return record(event, stream, flags);
}
FX_API cuEventRecord(CUevent event, CUstream stream) {
    FX_ENTER(context);
    return record(event, stream, 0);
}

static CUresult check_not_captured(Event *e, const char *call) {
    if (!e->capture) return CUDA_SUCCESS;
    if (std::find(captures.begin(), captures.end(), e->capture) != captures.end()) invalidate(e->capture, call);
    return CUDA_ERROR_CAPTURED_EVENT;
}
FX_API cuEventQuery(CUevent handle) {
    FX_ENTER(context);
    Event *e;
    FX_TRY(find_event(handle, e));
    FX_TRY(check_not_captured(e, "cuEventQuery of an event recorded in a capture"));
    FX_TRY(forbid_in_capture("cuEventQuery"));
    if (!e->work || e->work->done) return e->context->sticky;
    progress();
    return e->context->sticky != CUDA_SUCCESS ? e->context->sticky : CUDA_ERROR_NOT_READY;
}
FX_API cuEventSynchronize(CUevent handle) {
    FX_ENTER(context);
    Event *e;
    FX_TRY(find_event(handle, e));
    FX_TRY(check_not_captured(e, "cuEventSynchronize of an event recorded in a capture"));
    if (e->work) finish(e->work);
    return e->context->sticky;
}
FX_API cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    FX_ENTER(context);
    Event *a, *b;
    FX_TRY(find_event(start, a));
    FX_TRY(find_event(end, b));
    FX_TRY(check_not_captured(a, "cuEventElapsedTime of an event recorded in a capture"));
    FX_TRY(check_not_captured(b, "cuEventElapsedTime of an event recorded in a capture"));
    if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING || !a->state || !b->state) return CUDA_ERROR_INVALID_HANDLE;
    if (!a->state->recorded || !b->state->recorded) return CUDA_ERROR_NOT_READY;
    *ms = (float)(((double)b->state->ns - (double)a->state->ns) * 1e-6);
    return CUDA_SUCCESS;
}
// The form before CUDA 12.8, under its own name: the same but for how it rounds.
#undef cuEventElapsedTime
FX_API cuEventElapsedTime(float *ms, CUevent start, CUevent end) { return cuEventElapsedTime_v2(ms, start, end); }
#define cuEventElapsedTime cuEventElapsedTime_v2
FX_API cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags) {
    FX_ENTER(context);
    Event *e;
    Stream *s;
    FX_TRY(find_stream(stream, s));
    FX_TRY(find_event(handle, e));
    return wait_event(s, e, flags);
}
