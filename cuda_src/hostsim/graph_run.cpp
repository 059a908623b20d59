// One launch of an executable: nodes in an order that the edges allow.
//
// With a seed each launch takes another such order, so that a missing edge shows as a result that depends on the seed. Overlap
// mode (overlap.cpp) tries them all, pair by pair.
#include "hostsim/graph.h"

namespace hostsim {

GraphExec *running_exec = nullptr;

Condition *find_condition(GraphExec &x, unsigned long long id) {
    for (auto &c : x.conditions)
        if (c->handle.id == id) return c.get();
    return nullptr;
}

namespace {

CUresult run_node(GraphExec &x, ExecNode &n) {
    switch (n.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            if (!n.function->module) {
                report("a graph launches kernel %s of a module that has been unloaded", n.function->name.c_str());
                return CUDA_ERROR_LAUNCH_FAILED;
            }
            return run_launch(n.launch);
        case CU_GRAPH_NODE_TYPE_MEMSET: return run_fill(n.fill);
        case CU_GRAPH_NODE_TYPE_MEMCPY: return run_copy(n.copy);
        case CU_GRAPH_NODE_TYPE_HOST:
            if (exploration) return CUDA_SUCCESS;
            in_host_function = true;
            n.host.fn(n.host.userData);
            in_host_function = false;
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            if (exploration) return CUDA_SUCCESS;
            if (!events.has(n.event)) return CUDA_ERROR_INVALID_HANDLE;
            n.event->state = std::make_shared<EventState>();
            n.event->state->ns = now_ns();
            n.event->state->recorded = true;
            n.event->work = nullptr;
            n.event->capture = nullptr;
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            if (!events.has(n.event)) return CUDA_ERROR_INVALID_HANDLE;
            if (n.event->work) finish(n.event->work);
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
            Condition *c = find_condition(x, n.handle);
            if (!c) return CUDA_ERROR_INVALID_VALUE;
            if (n.conditional == CU_GRAPH_COND_TYPE_WHILE) {
                while (c->value.load() && explored_loop_may_go_on()) FX_TRY(run_graph(x, n.bodies[0]));
            } else if (n.conditional == CU_GRAPH_COND_TYPE_IF) {
                size_t k = c->value.load() ? 0 : 1;
                if (k < n.bodies.size()) return run_graph(x, n.bodies[k]);
            } else if (size_t k = c->value.load(); k < n.bodies.size()) {
                return run_graph(x, n.bodies[k]);
            }
            return CUDA_SUCCESS;
        }
        default: return CUDA_SUCCESS;  // empty
    }
}

CUresult run_shuffled(GraphExec &x, ExecGraph &g) {
    std::vector<uint32_t> waits(g.nodes.size()), ready;
    std::vector<std::vector<uint32_t>> after(g.nodes.size());
    for (uint32_t i = 0; i < g.nodes.size(); ++i) {
        waits[i] = (uint32_t)g.nodes[i].before.size();
        for (uint32_t b : g.nodes[i].before) after[b].push_back(i);
        if (!waits[i]) ready.push_back(i);
    }
    while (!ready.empty()) {
        std::swap(ready[random_word() % ready.size()], ready.back());
        uint32_t i = ready.back();
        ready.pop_back();
        FX_TRY(run_node(x, g.nodes[i]));
        for (uint32_t a : after[i])
            if (--waits[a] == 0) ready.push_back(a);
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult run_graph(GraphExec &x, ExecGraph &g) {
    if (exploration) {
        const std::vector<uint32_t> *order = explored_order(g);
        for (uint32_t i = 0; i < g.nodes.size(); ++i) {
            uint32_t k = order ? (*order)[i] : i;
            FX_TRY(run_node(x, g.nodes[k]));
            explored_node(g, k);
        }
        return CUDA_SUCCESS;
    }
    if (options.seed) return run_shuffled(x, g);
    for (ExecNode &n : g.nodes) FX_TRY(run_node(x, n));
    return CUDA_SUCCESS;
}

CUresult run_exec(GraphExec &x) {
    for (auto &c : x.conditions)
        if (c->handle.assign) c->value.store(c->handle.initial);
    running_exec = &x;
    CUresult r = options.overlap ? explore(x) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS) r = run_graph(x, x.top);
    running_exec = nullptr;
    return r;
}

}  // namespace hostsim

using namespace hostsim;

extern "C" FX_EXPORT void fx_host_set_conditional(unsigned long long handle, unsigned value) {
    Condition *c = running_exec ? find_condition(*running_exec, handle) : nullptr;
    if (!c) {
        report(
            "%s: sets conditional handle %llu, which the running graph does not have (a launch outside of that graph?)",
            where_in_kernel(), handle);
        abort_block(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    c->value.store(value);
}
