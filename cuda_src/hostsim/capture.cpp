// Stream capture: the three modes, illegal operations, invalidation, joins across streams.
#include <pthread.h>

#include <algorithm>

#include "hostsim/driver.h"
#include "hostsim/graph.h"

namespace hostsim {

std::vector<std::shared_ptr<Capture>> captures;

namespace {
unsigned long long next_capture = 1;
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

unsigned long this_thread() { return (unsigned long)pthread_self(); }

void leave(const std::shared_ptr<Capture> &capture) {
    for (Stream *s : capture->streams) {
        s->capture = nullptr;
        s->tail.clear();
    }
    capture->streams.clear();
    std::erase(captures, capture);
}

void join(Stream *s, const std::shared_ptr<Capture> &capture, const std::vector<Node *> &nodes) {
    if (!s->capture) {
        s->capture = capture;
        capture->streams.push_back(s);
    }
    for (Node *n : nodes)
        if (std::find(s->tail.begin(), s->tail.end(), n) == s->tail.end()) s->tail.push_back(n);
}

CUresult begin(Stream *s, CUstreamCaptureMode mode, Graph *graph) {
    if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    auto c = std::make_shared<Capture>();
    c->id = next_capture++;
    c->mode = mode;
    c->origin = s;
    c->thread = this_thread();
    c->owns_graph = graph == nullptr;
    c->graph = graph ? graph : new Graph;
    c->streams = {s};
    s->capture = c;
    s->tail.clear();
    captures.push_back(c);
    return CUDA_SUCCESS;
}
}  // namespace

void invalidate(const std::shared_ptr<Capture> &capture, const char *why) {
    if (capture->invalid) return;
    capture->invalid = true;
    report("stream capture %llu invalidated by %s", capture->id, why);
}

CUresult refuse_in_capture(Stream *s, const char *why) {
    if (!s->capture) return CUDA_SUCCESS;
    invalidate(s->capture, why);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void abandon(Stream *s) {
    std::shared_ptr<Capture> c = s->capture;
    if (c->origin != s) {
        std::erase(c->streams, s);
        return;
    }
    leave(c);
    if (c->owns_graph) delete c->graph;
}

CUresult forbid_in_capture(const char *call) {
    if (captures.empty() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (auto &c : captures) {
        bool mine = c->thread == this_thread() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!mine && !global) continue;
        invalidate(c, call);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

// Waiting for a whole context would wait for its capturing streams, in every mode.
CUresult forbid_while_capturing(const Context *context, const char *call) {
    CUresult result = CUDA_SUCCESS;
    for (auto &c : captures)
        if (c->origin->context == context) {
            invalidate(c, call);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

CUresult check_stream(Stream *s, const char *call, bool *capturing) {
    if (capturing) *capturing = false;
    if (captures.empty()) return CUDA_SUCCESS;
    if (s->legacy) {  // would have to wait for the capturing streams that block
        CUresult result = CUDA_SUCCESS;
        for (auto &c : captures)
            for (Stream *other : c->streams)
                if (other->context == s->context && !(other->flags & CU_STREAM_NON_BLOCKING)) {
                    invalidate(c, call);
                    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                }
        return result;
    }
    if (!s->capture) return CUDA_SUCCESS;
    if (s->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (capturing) *capturing = true;
    return CUDA_SUCCESS;
}

CUresult capture_node(Stream *s, std::unique_ptr<Node> node) {
    Node *added;
    FX_TRY(add_node(s->capture->graph, reinterpret_cast<CUgraphNode *>(s->tail.data()), s->tail.size(), std::move(node),
                    &added));
    s->tail = {added};
    return CUDA_SUCCESS;
}

CUresult wait_event(Stream *s, Event *e, unsigned flags) {
    bool capturing;
    FX_TRY(check_stream(s, "cuStreamWaitEvent", &capturing));
    if (capturing && (flags & CU_EVENT_WAIT_EXTERNAL)) {
        return capture_node(s, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](Node &n) { n.event = e; });
    }
    if (e->capture) {
        bool active = std::find(captures.begin(), captures.end(), e->capture) != captures.end();
        if (!active) return CUDA_ERROR_CAPTURED_EVENT;
        if (e->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (s->capture && s->capture != e->capture) {
            invalidate(s->capture, "a wait for an event of another capture");
            invalidate(e->capture, "a wait for its event in another capture");
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        }
        if (s->legacy) {
            invalidate(e->capture, "a wait for its event on the legacy stream");
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
        join(s, e->capture, e->nodes);
        return CUDA_SUCCESS;
    }
    if (capturing) {
        if (!e->state) return CUDA_SUCCESS;  // never recorded: nothing to wait for
        invalidate(s->capture, "a wait for an event that was recorded outside of the capture");
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (e->work && !e->work->done) return submit(s, [] { return CUDA_SUCCESS; }, e->work);
    return CUDA_SUCCESS;
}

}  // namespace hostsim

using namespace hostsim;

FX_API cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    FX_ENTER_STREAM(handle);
    return begin(s, mode, nullptr);
}
FX_API cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *,
                                   size_t count, CUstreamCaptureMode mode) {
    FX_ENTER(context);
    Stream *s;
    Graph *g;
    FX_TRY(find_stream(handle, s));
    FX_TRY(find_graph(graph, g));
    std::vector<Node *> tail;
    for (size_t i = 0; i < count; ++i) {
        Node *n;
        FX_TRY(find_node(before[i], n));
        if (n->graph != g) return CUDA_ERROR_INVALID_VALUE;
        tail.push_back(n);
    }
    FX_TRY(begin(s, mode, g));
    s->tail = tail;
    return CUDA_SUCCESS;
}
FX_API cuStreamEndCapture(CUstream handle, CUgraph *out) {
    FX_ENTER(any);
    Stream *s;
    FX_TRY(find_stream(handle, s));
    if (out) *out = nullptr;
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    std::shared_ptr<Capture> c = s->capture;
    if (c->origin != s) {
        invalidate(c, "cuStreamEndCapture on a stream other than the one it began on");
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != this_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {  // every node of a joined stream must lead back to the origin
        std::vector<const Node *> reached(s->tail.begin(), s->tail.end());
        std::unordered_set<const Node *> seen(reached.begin(), reached.end());
        while (!reached.empty()) {
            const Node *n = reached.back();
            reached.pop_back();
            for (const Node *b : n->before)
                if (seen.insert(b).second) reached.push_back(b);
        }
        for (Stream *other : c->streams)
            for (Node *n : other->tail)
                if (!seen.count(n)) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    leave(c);
    if (result != CUDA_SUCCESS) {
        if (c->owns_graph) delete c->graph;
        return result;
    }
    if (out) *out = reinterpret_cast<CUgraph>(c->graph);
    else if (c->owns_graph) delete c->graph;
    return CUDA_SUCCESS;
}
FX_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    FX_ENTER_STREAM(handle);
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (s->legacy) FX_TRY(check_stream(s, "cuStreamIsCapturing of the legacy stream", nullptr));
    *status = !s->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}
FX_API cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                              const CUgraphNode **before, const CUgraphEdgeData **edges, size_t *count) {
    FX_ENTER_STREAM(handle);
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (s->legacy) FX_TRY(check_stream(s, "cuStreamGetCaptureInfo of the legacy stream", nullptr));
    bool active = s->capture && !s->capture->invalid;
    *status = !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE
              : active    ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                          : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (!active) return CUDA_SUCCESS;
    if (id) *id = s->capture->id;
    if (graph) *graph = reinterpret_cast<CUgraph>(s->capture->graph);
    if (before) *before = reinterpret_cast<const CUgraphNode *>(s->tail.data());
    static const CUgraphEdgeData plain[64] = {};
    if (edges) *edges = plain;
    if (count) *count = s->tail.size();
    return CUDA_SUCCESS;
}
FX_API cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *before, const CUgraphEdgeData *, size_t count,
                                         unsigned flags) {
    FX_ENTER_STREAM(handle);
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (s->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    std::vector<Node *> tail;
    if (flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES) tail = s->tail;
    else if (flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        Node *n;
        FX_TRY(find_node(before[i], n));
        if (n->graph != s->capture->graph) return CUDA_ERROR_INVALID_VALUE;
        if (std::find(tail.begin(), tail.end(), n) == tail.end()) tail.push_back(n);
    }
    s->tail = tail;
    return CUDA_SUCCESS;
}
FX_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    FX_ENTER(init);
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}
