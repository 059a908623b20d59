// Executables: instantiation, updates, entry points.
//
// Instantiation flattens child graphs into one list in an order that the edges allow; a launch walks it (graph_run.cpp).
#include <algorithm>
#include <cstring>

#include "hostsim/graph.h"

namespace hostsim {

Registry<GraphExec> graph_execs;
CUresult set_any(Node &n, Graph *g, CUgraphNodeParams *p);

namespace {

CUresult flatten(const Graph &g, const std::vector<uint32_t> &roots, bool in_body, ExecGraph &out,
                 std::vector<uint32_t> &leaves);

void fill_in(ExecNode &e, const Task &task) {
    static_cast<Task &>(e) = task;
    e.launch.args = e.args.data();
}

CUresult flatten_node(const Node &n, std::vector<uint32_t> before, bool in_body, ExecGraph &out,
                      std::vector<uint32_t> &leaves) {
    if (n.child && !n.child->nodes.empty()) return flatten(*n.child, before, in_body, out, leaves);
    if (in_body && (n.type == CU_GRAPH_NODE_TYPE_HOST || n.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
                    n.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)) {
        report("cuGraphInstantiate: the body of a conditional node holds a host or event node");
        return CUDA_ERROR_INVALID_VALUE;
    }
    out.nodes.emplace_back();
    fill_in(out.nodes.back(), n);
    out.nodes.back().origin = &n;
    out.nodes.back().before = std::move(before);
    leaves = {(uint32_t)out.nodes.size() - 1};
    for (auto &body : n.bodies) {
        ExecGraph inner;
        std::vector<uint32_t> ignored;
        FX_TRY(flatten(*body, {}, true, inner, ignored));
        out.nodes.back().bodies.push_back(std::move(inner));
    }
    return CUDA_SUCCESS;
}

// Appends the nodes of g behind `roots`; `leaves` receives those that nothing in g depends on.
CUresult flatten(const Graph &g, const std::vector<uint32_t> &roots, bool in_body, ExecGraph &out,
                 std::vector<uint32_t> &leaves) {
    std::unordered_map<const Node *, std::vector<uint32_t>> done;
    std::unordered_set<const Node *> has_dependents;
    std::vector<const Node *> left;
    for (auto &n : g.nodes) left.push_back(n.get());
    while (!left.empty()) {  // in the order of creation where the edges allow it
        std::vector<const Node *> later;
        for (const Node *n : left) {
            std::vector<uint32_t> before = n->before.empty() ? roots : std::vector<uint32_t>{};
            bool ready = true;
            for (const Node *b : n->before) {
                auto it = done.find(b);
                if ((ready = it != done.end()) == false) break;
                has_dependents.insert(b);
                before.insert(before.end(), it->second.begin(), it->second.end());
            }
            if (!ready) {
                later.push_back(n);
                continue;
            }
            std::vector<uint32_t> ends;
            FX_TRY(flatten_node(*n, std::move(before), in_body, out, ends));
            done[n] = ends;
        }
        if (later.size() == left.size()) {
            report("cuGraphInstantiate: the graph has a cycle");
            return CUDA_ERROR_INVALID_VALUE;
        }
        left = std::move(later);
    }
    for (auto &n : g.nodes)
        if (!has_dependents.count(n.get())) leaves.insert(leaves.end(), done[n.get()].begin(), done[n.get()].end());
    return CUDA_SUCCESS;
}

void index_nodes(GraphExec &x, ExecGraph &g) {
    for (ExecNode &n : g.nodes) {
        n.launch.args = n.args.data();
        x.by_origin[n.origin] = &n;
        for (ExecGraph &body : n.bodies) index_nodes(x, body);
    }
}

CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    Graph *g;
    FX_TRY(find_graph(handle, g));
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    FX_TRY(forbid_in_capture("cuGraphInstantiate"));
    for (auto &c : captures)
        if (c->graph == g) return CUDA_ERROR_ILLEGAL_STATE;
    auto x = std::make_unique<GraphExec>();
    std::vector<uint32_t> leaves;
    FX_TRY(flatten(*g, {}, false, x->top, leaves));
    index_nodes(*x, x->top);
    for (const ConditionalHandle &h : g->handles) {
        x->conditions.push_back(std::make_unique<Condition>());
        x->conditions.back()->handle = h;
        x->conditions.back()->value = h.initial;
    }
    x->flags = flags;
    graph_execs.add(x.get());
    *out = reinterpret_cast<CUgraphExec>(x.release());
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- updates
bool same_shape(const ExecGraph &a, const ExecGraph &b, CUgraphExecUpdateResult &why, const Node *&where) {
    if (a.nodes.size() != b.nodes.size()) {
        why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return false;
    }
    for (size_t i = 0; i < a.nodes.size(); ++i) {
        const ExecNode &m = a.nodes[i], &n = b.nodes[i];
        where = n.origin;
        why = CU_GRAPH_EXEC_UPDATE_SUCCESS;
        if (m.type != n.type) why = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        else if (m.before != n.before || m.bodies.size() != n.bodies.size() || m.conditional != n.conditional)
            why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        else if (m.type == CU_GRAPH_NODE_TYPE_KERNEL && m.function->context != n.function->context)
            why = CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        else if (m.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && m.handle != n.handle)
            why = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        if (why != CU_GRAPH_EXEC_UPDATE_SUCCESS) return false;
        for (size_t k = 0; k < m.bodies.size(); ++k)
            if (!same_shape(m.bodies[k], n.bodies[k], why, where)) return false;
    }
    return true;
}

void take_over(ExecGraph &to, ExecGraph &from) {
    for (size_t i = 0; i < to.nodes.size(); ++i) {
        ExecNode &t = to.nodes[i], &f = from.nodes[i];
        fill_in(t, f);
        for (size_t k = 0; k < t.bodies.size(); ++k) take_over(t.bodies[k], f.bodies[k]);
    }
}

CUresult find_exec(CUgraphExec handle, GraphExec *&x) {
    x = reinterpret_cast<GraphExec *>(handle);
    return graph_execs.has(x) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// `setup` fills in a node of the right type, whose contents replace those of the executable's node.
template <class Setup>
CUresult set_params(CUgraphExec exec, CUgraphNode node, Setup setup) {
    GraphExec *x;
    FX_TRY(find_exec(exec, x));
    auto it = x->by_origin.find(reinterpret_cast<const Node *>(node));
    if (it == x->by_origin.end()) return CUDA_ERROR_INVALID_VALUE;
    Node fresh;
    FX_TRY(setup(fresh));
    ExecNode &e = *it->second;
    if (fresh.type != e.type) return CUDA_ERROR_INVALID_VALUE;
    drain_all();  // a queued launch keeps the parameters it was queued with
    fresh.handle = e.handle;
    fresh.conditional = e.conditional;
    fill_in(e, fresh);
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostsim

using namespace hostsim;

FX_API cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    FX_ENTER(context);
    return instantiate(out, graph, flags);
}
FX_API cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
    FX_ENTER(context);
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = instantiate(out, graph, p->flags);
    p->hErrNode_out = nullptr;
    p->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return r;
}
FX_API cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
    FX_ENTER(context);
    GraphExec *x;
    FX_TRY(find_exec(exec, x));
    *flags = x->flags;
    return CUDA_SUCCESS;
}
FX_API cuGraphUpload(CUgraphExec exec, CUstream stream) {
    FX_ENTER(context);
    GraphExec *x;
    Stream *s;
    FX_TRY(find_exec(exec, x));
    FX_TRY(find_stream(stream, s));
    FX_TRY(check_stream(s, "cuGraphUpload", nullptr));
    return refuse_in_capture(s, "cuGraphUpload");
}
FX_API cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    FX_ENTER(context);
    GraphExec *x;
    Stream *s;
    FX_TRY(find_exec(exec, x));
    FX_TRY(find_stream(stream, s));
    FX_TRY(check_stream(s, "cuGraphLaunch", nullptr));
    FX_TRY(refuse_in_capture(s, "cuGraphLaunch; add the graph as a child node"));
    if (!options.deferred) {
        if (CUresult r = run_exec(*x); r != CUDA_SUCCESS) fail(s->context, r);
        return CUDA_SUCCESS;
    }
    return submit(s, [x] { return run_exec(*x); });
}
FX_API cuGraphExecDestroy(CUgraphExec exec) {
    FX_ENTER(init);
    GraphExec *x;
    FX_TRY(find_exec(exec, x));
    drain_all();
    graph_execs.remove(x);
    delete x;
    return CUDA_SUCCESS;
}
FX_API cuGraphExecUpdate(CUgraphExec exec, CUgraph handle, CUgraphExecUpdateResultInfo *info) {
    FX_ENTER(context);
    GraphExec *x;
    Graph *g;
    FX_TRY(find_exec(exec, x));
    FX_TRY(find_graph(handle, g));
    ExecGraph fresh;
    std::vector<uint32_t> leaves;
    CUgraphExecUpdateResult why = CU_GRAPH_EXEC_UPDATE_ERROR;
    const Node *where = nullptr;
    bool good = flatten(*g, {}, false, fresh, leaves) == CUDA_SUCCESS && same_shape(x->top, fresh, why, where);
    if (info) {
        *info = {};
        info->result = good ? CU_GRAPH_EXEC_UPDATE_SUCCESS : why;
        info->errorNode = good ? nullptr : reinterpret_cast<CUgraphNode>(const_cast<Node *>(where));
    }
    if (!good) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    drain_all();
    take_over(x->top, fresh);
    return CUDA_SUCCESS;
}
FX_API cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    FX_ENTER(context);
    return set_params(exec, node, [&](Node &n) { return p ? set_kernel(n, *p) : CUDA_ERROR_INVALID_VALUE; });
}
FX_API cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext) {
    FX_ENTER(context);
    return set_params(exec, node, [&](Node &n) { return p ? set_fill(n, *p) : CUDA_ERROR_INVALID_VALUE; });
}
FX_API cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext) {
    FX_ENTER(context);
    return set_params(exec, node, [&](Node &n) { return p ? set_copy(n, *p) : CUDA_ERROR_INVALID_VALUE; });
}
FX_API cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
    FX_ENTER(context);
    return set_params(exec, node, [&](Node &n) {
        if (!p || !p->fn) return CUDA_ERROR_INVALID_VALUE;
        n.type = CU_GRAPH_NODE_TYPE_HOST;
        n.host = *p;
        return CUDA_SUCCESS;
    });
}
FX_API cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
    FX_ENTER(context);
    return set_params(exec, node, [&](Node &n) {
        n.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        return find_event(event, n.event);
    });
}
FX_API cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p) {
    FX_ENTER(context);
    return set_params(exec, node, [&](Node &n) { return p ? set_any(n, nullptr, p) : CUDA_ERROR_INVALID_VALUE; });
}
