// Graphs and nodes: building, asking, cloning, printing.
#include "hostsim/graph.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace hostsim {

Registry<Graph> graphs;
Registry<Node> nodes;

namespace {
unsigned next_graph = 1;
unsigned long long next_handle = 1;

// Everything but destruction is allowed on the graph of a capture in progress.
bool may_be_destroyed(const Graph &g) {
    return std::none_of(captures.begin(), captures.end(), [&](auto &c) { return c->graph == &g; });
}

void adopt(Graph *g, std::unique_ptr<Node> node) {
    node->graph = g;
    node->id = g->nodes.empty() ? 0 : g->nodes.back()->id + 1;
    if (!node->args.empty()) node->params[0] = node->args.data();
    nodes.add(node.get());
    g->nodes.push_back(std::move(node));
}

template <class T>
CUresult list_out(const std::vector<T> &items, T *out, size_t *count) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (!out) {
        *count = items.size();
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < *count; ++i) out[i] = i < items.size() ? items[i] : T{};
    *count = std::min(*count, items.size());
    return CUDA_SUCCESS;
}

CUgraphNode handle_of(const Node *n) { return reinterpret_cast<CUgraphNode>(const_cast<Node *>(n)); }

CUresult typed(CUgraphNode handle, CUgraphNodeType type, Node *&n) {
    FX_TRY(find_node(handle, n));
    return n->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// The start of an entry point on a node of one type, which is `n` from then on.
#define FX_ENTER_NODE(type) \
    FX_ENTER(init);         \
    Node *n;                \
    FX_TRY(typed(handle, CU_GRAPH_NODE_TYPE_##type, n))

}  // namespace

Graph::Graph() : id(next_graph++) { graphs.add(this); }
Graph::~Graph() {
    graphs.remove(this);
    for (auto &n : nodes) hostsim::nodes.remove(n.get());
}

CUresult find_graph(CUgraph handle, Graph *&out) {
    out = reinterpret_cast<Graph *>(handle);
    return graphs.has(out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult find_node(CUgraphNode handle, Node *&out) {
    out = reinterpret_cast<Node *>(handle);
    return nodes.has(out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult add_node(Graph *g, const CUgraphNode *before, size_t count, std::unique_ptr<Node> node, Node **out) {
    if (count && !before) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        Node *b;
        FX_TRY(find_node(before[i], b));
        if (b->graph != g || std::find(node->before.begin(), node->before.end(), b) != node->before.end())
            return CUDA_ERROR_INVALID_VALUE;
        node->before.push_back(b);
    }
    *out = node.get();
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) audit_captured(node->function, g);
    adopt(g, std::move(node));
    return CUDA_SUCCESS;
}

std::unique_ptr<Graph> clone_graph(const Graph &g, std::unordered_map<const Node *, Node *> *map) {
    std::unordered_map<const Node *, Node *> own;
    auto &to = map ? *map : own;
    auto copy = std::make_unique<Graph>();
    for (auto &n : g.nodes) {
        auto c = std::make_unique<Node>();
        static_cast<Task &>(*c) = *n;
        to[n.get()] = c.get();
        if (n->child) {
            c->child = clone_graph(*n->child, map);
            c->child->inside = c.get();
        }
        adopt(copy.get(), std::move(c));
        copy->nodes.back()->id = n->id;
    }
    for (size_t i = 0; i < g.nodes.size(); ++i)
        for (const Node *b : g.nodes[i]->before) copy->nodes[i]->before.push_back(to[b]);
    return copy;
}

bool holds_conditional(const Graph &g) {
    return std::any_of(g.nodes.begin(), g.nodes.end(), [](auto &n) {
        return n->type == CU_GRAPH_NODE_TYPE_CONDITIONAL || (n->child && holds_conditional(*n->child));
    });
}
bool in_conditional_body(const Graph *g) {
    for (; g->inside; g = g->inside->graph)
        if (g->inside->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return true;
    return false;
}

CUresult set_kernel(Node &node, const CUDA_KERNEL_NODE_PARAMS &p) {
    auto *f = reinterpret_cast<Function *>(p.func);
    const unsigned grid[3] = {p.gridDimX, p.gridDimY, p.gridDimZ}, block[3] = {p.blockDimX, p.blockDimY, p.blockDimZ};
    if (!f && p.kern) {
        report_once("hostsim: kernel nodes by CUkernel are not supported; give the CUfunction");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!functions.has(f)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<char> args;
    Launch l;
    FX_TRY(prepare_launch(f, grid, block, p.sharedMemBytes, p.kernelParams, p.extra, l, args));
    if (node.graph && node.function != f) audit_captured(f, node.graph);
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.function = f;
    node.launch = l;
    node.args = std::move(args);
    node.params[0] = node.args.data();
    return CUDA_SUCCESS;
}
CUresult set_fill(Node &node, const CUDA_MEMSET_NODE_PARAMS &p) {
    FX_TRY(check_fill(p));
    node.type = CU_GRAPH_NODE_TYPE_MEMSET;
    node.fill = p;
    return CUDA_SUCCESS;
}
CUresult set_copy(Node &node, const CUDA_MEMCPY3D &p) {
    FX_TRY(check_copy(p));
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.copy = p;
    return CUDA_SUCCESS;
}

// The common part of the cuGraphAdd...Node functions: `setup` fills in the node.
template <class Setup>
static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count, Setup setup) {
    Graph *g;
    FX_TRY(find_graph(graph, g));
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    auto node = std::make_unique<Node>();
    FX_TRY(setup(*node));
    Node *added;
    FX_TRY(add_node(g, before, count, std::move(node), &added));
    for (auto &body : added->bodies) body->inside = added;
    if (added->child) added->child->inside = added;
    *out = handle_of(added);
    return CUDA_SUCCESS;
}

static CUresult set_child(Node &n, CUgraph handle) {
    Graph *child;
    FX_TRY(find_graph(handle, child));
    if (holds_conditional(*child)) {
        report("cuGraphAddChildGraphNode: a child graph cannot hold conditional nodes");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    n.type = CU_GRAPH_NODE_TYPE_GRAPH;
    n.child = clone_graph(*child);
    return CUDA_SUCCESS;
}

static CUresult set_conditional(Node &n, Graph *g, CUDA_CONDITIONAL_NODE_PARAMS &p) {
    while (g->inside) g = g->inside->graph;
    auto handle = std::find_if(g->handles.begin(), g->handles.end(), [&](auto &h) { return h.id == p.handle; });
    if (handle == g->handles.end() || handle->used) return CUDA_ERROR_INVALID_VALUE;
    bool good = (p.type == CU_GRAPH_COND_TYPE_IF && (p.size == 1 || p.size == 2)) ||
                (p.type == CU_GRAPH_COND_TYPE_WHILE && p.size == 1) ||
                (p.type == CU_GRAPH_COND_TYPE_SWITCH && p.size >= 1);
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    handle->used = true;
    n.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    n.handle = p.handle;
    n.conditional = p.type;
    for (unsigned i = 0; i < p.size; ++i) {
        n.bodies.push_back(std::make_unique<Graph>());
        n.body_handles.push_back(reinterpret_cast<CUgraph>(n.bodies.back().get()));
    }
    p.phGraph_out = n.body_handles.data();
    return CUDA_SUCCESS;
}

static CUDA_KERNEL_NODE_PARAMS narrow(const CUDA_KERNEL_NODE_PARAMS_v3 &k) {
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = k.func, p.gridDimX = k.gridDimX, p.gridDimY = k.gridDimY, p.gridDimZ = k.gridDimZ;
    p.blockDimX = k.blockDimX, p.blockDimY = k.blockDimY, p.blockDimZ = k.blockDimZ;
    p.sharedMemBytes = k.sharedMemBytes, p.kernelParams = k.kernelParams, p.extra = k.extra, p.kern = k.kern,
    p.ctx = k.ctx;
    return p;
}
static CUDA_MEMSET_NODE_PARAMS narrow(const CUDA_MEMSET_NODE_PARAMS_v2 &m) {
    CUDA_MEMSET_NODE_PARAMS p{};
    p.dst = m.dst, p.pitch = m.pitch, p.value = m.value, p.elementSize = m.elementSize, p.width = m.width,
    p.height = m.height;
    return p;
}

CUresult set_any(Node &n, Graph *g, CUgraphNodeParams *p) {
    switch (p->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return set_kernel(n, narrow(p->kernel));
        case CU_GRAPH_NODE_TYPE_MEMSET: return set_fill(n, narrow(p->memset));
        case CU_GRAPH_NODE_TYPE_MEMCPY: return set_copy(n, p->memcpy.copyParams);
        case CU_GRAPH_NODE_TYPE_EMPTY: n.type = p->type; return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_GRAPH: return set_child(n, p->graph.graph);
        case CU_GRAPH_NODE_TYPE_CONDITIONAL:
            return g ? set_conditional(n, g, p->conditional) : CUDA_ERROR_INVALID_VALUE;
        case CU_GRAPH_NODE_TYPE_HOST:
            n.type = p->type;
            n.host.fn = p->host.fn;
            n.host.userData = p->host.userData;
            return n.host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD: n.type = p->type; return find_event(p->eventRecord.event, n.event);
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: n.type = p->type; return find_event(p->eventWait.event, n.event);
        default:
            report_once("hostsim: graph nodes of type %d are not supported", (int)p->type);
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace hostsim

using namespace hostsim;

// ---------------------------------------------------------------- graphs
FX_API cuGraphCreate(CUgraph *out, unsigned flags) {
    FX_ENTER(init);
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUgraph>(new Graph);
    return CUDA_SUCCESS;
}
FX_API cuGraphDestroy(CUgraph handle) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(handle, g));
    if (g->inside) return CUDA_ERROR_INVALID_VALUE;  // belongs to its node
    if (!may_be_destroyed(*g)) return CUDA_ERROR_ILLEGAL_STATE;
    delete g;
    return CUDA_SUCCESS;
}
FX_API cuGraphClone(CUgraph *out, CUgraph handle) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(handle, g));
    if (holds_conditional(*g)) return CUDA_ERROR_NOT_SUPPORTED;
    *out = reinterpret_cast<CUgraph>(clone_graph(*g).release());
    return CUDA_SUCCESS;
}
FX_API cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph clone) {
    FX_ENTER(init);
    Graph *g;
    Node *n;
    FX_TRY(find_graph(clone, g));
    FX_TRY(find_node(original, n));
    for (auto &c : g->nodes)
        if (c->id == n->id && c->type == n->type) {
            *out = handle_of(c.get());
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
FX_API cuGraphGetNodes(CUgraph handle, CUgraphNode *out, size_t *count) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(handle, g));
    std::vector<CUgraphNode> all;
    for (auto &n : g->nodes) all.push_back(handle_of(n.get()));
    return list_out(all, out, count);
}
FX_API cuGraphGetRootNodes(CUgraph handle, CUgraphNode *out, size_t *count) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(handle, g));
    std::vector<CUgraphNode> all;
    for (auto &n : g->nodes)
        if (n->before.empty()) all.push_back(handle_of(n.get()));
    return list_out(all, out, count);
}
FX_API cuGraphGetEdges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(handle, g));
    std::vector<CUgraphNode> a, b;
    for (auto &n : g->nodes)
        for (Node *m : n->before) {
            a.push_back(handle_of(m));
            b.push_back(handle_of(n.get()));
        }
    if (!from != !to || !count) return CUDA_ERROR_INVALID_VALUE;
    size_t room = *count;
    FX_TRY(list_out(a, from, &room));
    if (data) memset(data, 0, room * sizeof(*data));
    return list_out(b, to, count);
}
// The form before CUDA 12.3, without edge data, under its own name.
#undef cuGraphGetEdges
FX_API cuGraphGetEdges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    return cuGraphGetEdges_v2(handle, from, to, nullptr, count);
}
#define cuGraphGetEdges cuGraphGetEdges_v2
FX_API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
    FX_ENTER(init);
    Node *n;
    FX_TRY(find_node(handle, n));
    *type = n->type;
    return CUDA_SUCCESS;
}
FX_API cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode *out, CUgraphEdgeData *data, size_t *count) {
    FX_ENTER(init);
    Node *n;
    FX_TRY(find_node(handle, n));
    std::vector<CUgraphNode> all;
    for (Node *b : n->before) all.push_back(handle_of(b));
    FX_TRY(list_out(all, out, count));
    if (data && out) memset(data, 0, *count * sizeof(*data));
    return CUDA_SUCCESS;
}
FX_API cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode *out, CUgraphEdgeData *data, size_t *count) {
    FX_ENTER(init);
    Node *n;
    FX_TRY(find_node(handle, n));
    std::vector<CUgraphNode> all;
    for (auto &m : n->graph->nodes)
        if (std::find(m->before.begin(), m->before.end(), n) != m->before.end()) all.push_back(handle_of(m.get()));
    FX_TRY(list_out(all, out, count));
    if (data && out) memset(data, 0, *count * sizeof(*data));
    return CUDA_SUCCESS;
}
FX_API cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *,
                              size_t count) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(graph, g));
    for (size_t i = 0; i < count; ++i) {
        Node *a, *b;
        FX_TRY(find_node(from[i], a));
        FX_TRY(find_node(to[i], b));
        if (a->graph != g || b->graph != g || a == b ||
            std::find(b->before.begin(), b->before.end(), a) != b->before.end())
            return CUDA_ERROR_INVALID_VALUE;
        b->before.push_back(a);
    }
    return CUDA_SUCCESS;
}
FX_API cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *,
                                 size_t count) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(graph, g));
    for (size_t i = 0; i < count; ++i) {
        Node *a, *b;
        FX_TRY(find_node(from[i], a));
        FX_TRY(find_node(to[i], b));
        if (!std::erase(b->before, a)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
FX_API cuGraphDestroyNode(CUgraphNode handle) {
    FX_ENTER(init);
    Node *n;
    FX_TRY(find_node(handle, n));
    Graph *g = n->graph;
    for (auto &m : g->nodes) std::erase(m->before, n);
    nodes.remove(n);
    std::erase_if(g->nodes, [n](auto &m) { return m.get() == n; });
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- adding nodes, and their parameters
FX_API cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *, size_t count,
                      CUgraphNodeParams *p) {
    FX_ENTER(context);
    Graph *g;
    FX_TRY(find_graph(graph, g));
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    return add(out, graph, before, count, [&](Node &n) { return set_any(n, g, p); });
}
FX_API cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                            const CUDA_KERNEL_NODE_PARAMS *p) {
    FX_ENTER(context);
    return add(out, graph, before, count, [&](Node &n) { return p ? set_kernel(n, *p) : CUDA_ERROR_INVALID_VALUE; });
}
FX_API cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                            const CUDA_MEMSET_NODE_PARAMS *p, CUcontext) {
    FX_ENTER(context);
    return add(out, graph, before, count, [&](Node &n) { return p ? set_fill(n, *p) : CUDA_ERROR_INVALID_VALUE; });
}
FX_API cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                            const CUDA_MEMCPY3D *p, CUcontext) {
    FX_ENTER(context);
    return add(out, graph, before, count, [&](Node &n) { return p ? set_copy(n, *p) : CUDA_ERROR_INVALID_VALUE; });
}
FX_API cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                          const CUDA_HOST_NODE_PARAMS *p) {
    FX_ENTER(context);
    return add(out, graph, before, count, [&](Node &n) {
        if (!p || !p->fn) return CUDA_ERROR_INVALID_VALUE;
        n.type = CU_GRAPH_NODE_TYPE_HOST;
        n.host = *p;
        return CUDA_SUCCESS;
    });
}
FX_API cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count) {
    FX_ENTER(init);
    return add(out, graph, before, count, [](Node &) { return CUDA_SUCCESS; });
}
FX_API cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                                CUgraph child) {
    FX_ENTER(init);
    return add(out, graph, before, count, [&](Node &n) { return set_child(n, child); });
}
FX_API cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                                 CUevent event) {
    FX_ENTER(init);
    return add(out, graph, before, count, [&](Node &n) {
        n.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        return find_event(event, n.event);
    });
}
FX_API cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                               CUevent event) {
    FX_ENTER(init);
    return add(out, graph, before, count, [&](Node &n) {
        n.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        return find_event(event, n.event);
    });
}
FX_API cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *p) {
    FX_ENTER_NODE(KERNEL);
    *p = {};
    p->func = reinterpret_cast<CUfunction>(n->function);
    p->gridDimX = n->launch.grid.x, p->gridDimY = n->launch.grid.y, p->gridDimZ = n->launch.grid.z;
    p->blockDimX = n->launch.block.x, p->blockDimY = n->launch.block.y, p->blockDimZ = n->launch.block.z;
    p->sharedMemBytes = n->launch.shared;
    p->kernelParams = n->params;
    return CUDA_SUCCESS;
}
FX_API cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *p) {
    FX_ENTER_NODE(KERNEL);
    return set_kernel(*n, *p);
}
FX_API cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *p) {
    FX_ENTER_NODE(MEMSET);
    *p = n->fill;
    return CUDA_SUCCESS;
}
FX_API cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *p) {
    FX_ENTER_NODE(MEMSET);
    return set_fill(*n, *p);
}
FX_API cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *p) {
    FX_ENTER_NODE(MEMCPY);
    *p = n->copy;
    return CUDA_SUCCESS;
}
FX_API cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D *p) {
    FX_ENTER_NODE(MEMCPY);
    return set_copy(*n, *p);
}
FX_API cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS *p) {
    FX_ENTER_NODE(HOST);
    *p = n->host;
    return CUDA_SUCCESS;
}
FX_API cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *out) {
    FX_ENTER_NODE(GRAPH);
    *out = reinterpret_cast<CUgraph>(n->child.get());
    return CUDA_SUCCESS;
}
FX_API cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent *out) {
    FX_ENTER_NODE(EVENT_RECORD);
    *out = reinterpret_cast<CUevent>(n->event);
    return CUDA_SUCCESS;
}
FX_API cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent *out) {
    FX_ENTER_NODE(WAIT_EVENT);
    *out = reinterpret_cast<CUevent>(n->event);
    return CUDA_SUCCESS;
}
FX_API cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext, unsigned initial,
                                      unsigned flags) {
    FX_ENTER(context);
    Graph *g;
    FX_TRY(find_graph(graph, g));
    if (!out || flags > CU_GRAPH_COND_ASSIGN_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    if (!options.conditionals) {
        report("conditional nodes are switched off (option conditionals)");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    while (g->inside) g = g->inside->graph;
    g->handles.push_back({next_handle++, initial, flags == CU_GRAPH_COND_ASSIGN_DEFAULT, false});
    *out = g->handles.back().id;
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- DOT
static void print(FILE *out, const Graph &g, int depth) {
    static const char *const names[] = {"KERNEL",       "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT",
                                        "EVENT_RECORD", "",       "",       "",     "",      "",      "CONDITIONAL"};
    fprintf(out, "%*ssubgraph cluster_%u {\n%*slabel=\"graph_%u\";\n", depth * 2, "", g.id, depth * 2 + 2, "", g.id);
    for (auto &n : g.nodes) {
        fprintf(out, "%*s\"graph_%u_node_%u\" [shape=record label=\"%u\\n%s", depth * 2 + 2, "", g.id, n->id, n->id,
                names[n->type]);
        if (n->type == CU_GRAPH_NODE_TYPE_KERNEL)
            fprintf(out, "\\n%s\\n\\<\\<\\<(%u,%u,%u),(%u,%u,%u),%u\\>\\>\\>", n->function->name.c_str(),
                    n->launch.grid.x, n->launch.grid.y, n->launch.grid.z, n->launch.block.x, n->launch.block.y,
                    n->launch.block.z, n->launch.shared);
        fprintf(out, "\"];\n");
        if (n->child) print(out, *n->child, depth + 1);
        for (auto &b : n->bodies) print(out, *b, depth + 1);
    }
    for (auto &n : g.nodes)
        for (const Node *b : n->before)
            fprintf(out, "%*s\"graph_%u_node_%u\" -> \"graph_%u_node_%u\";\n", depth * 2 + 2, "", g.id, b->id, g.id,
                    n->id);
    fprintf(out, "%*s}\n", depth * 2, "");
}
FX_API cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned) {
    FX_ENTER(init);
    Graph *g;
    FX_TRY(find_graph(handle, g));
    FILE *out = path ? fopen(path, "w") : nullptr;
    if (!out) return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(out, "digraph dot {\n");
    print(out, *g, 1);
    fprintf(out, "}\n");
    return fclose(out) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
