// Graphs, their nodes, and executables.
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "hostsim/driver.h"

namespace hostsim {

struct Task {  // what a node does; of the fields after the first, those that its type needs
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    Function *function = nullptr;
    Launch launch;
    std::vector<char> args;
    CUDA_MEMSET_NODE_PARAMS fill{};
    CUDA_MEMCPY3D copy{};
    CUDA_HOST_NODE_PARAMS host{};
    Event *event = nullptr;
    unsigned long long handle = 0;  // of a conditional
    CUgraphConditionalNodeType conditional = CU_GRAPH_COND_TYPE_IF;
};

struct Node : Task {
    Graph *graph = nullptr;
    unsigned id = 0;
    std::vector<Node *> before;  // dependencies, in the order they were added
    void *params[1] = {};        // what cuGraphKernelNodeGetParams hands out
    std::unique_ptr<Graph> child;
    std::vector<std::unique_ptr<Graph>> bodies;
    std::vector<CUgraph> body_handles;
};

struct ConditionalHandle {
    unsigned long long id = 0;
    unsigned initial = 0;
    bool assign = false;  // CU_GRAPH_COND_ASSIGN_DEFAULT
    bool used = false;
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<ConditionalHandle> handles;  // only of a root
    Node *inside = nullptr;                  // the child or conditional node that holds it
    unsigned id = 0;
    Graph();
    ~Graph();
};

struct ExecGraph;
struct ExecNode : Task {  // child graphs are dissolved into their parents
    const Node *origin = nullptr;
    std::vector<uint32_t> before;
    std::vector<ExecGraph> bodies;
};
struct ExecGraph {
    std::vector<ExecNode> nodes;  // in an order that the edges allow
};

struct Condition {
    ConditionalHandle handle;
    std::atomic<unsigned> value{0};
};

struct GraphExec {
    ExecGraph top;
    std::unordered_map<const Node *, ExecNode *> by_origin;
    std::vector<std::unique_ptr<Condition>> conditions;
    unsigned long long flags = 0;
};

extern Registry<Graph> graphs;
extern Registry<Node> nodes;
extern Registry<GraphExec> graph_execs;
extern GraphExec *running_exec;  // while a graph launch is being carried out

CUresult run_exec(GraphExec &x);  // one launch
// Runs the nodes of g once, the bodies of conditional nodes as often as they say. Defined with run_exec.
CUresult run_graph(GraphExec &x, ExecGraph &g);
Condition *find_condition(GraphExec &x, unsigned long long id);
// Overlap mode: tries the orders that the edges of x allow, and leaves memory as it found it. CUDA_SUCCESS, or the finding.
CUresult explore(GraphExec &x);
struct Exploration;
extern Exploration *exploration;  // while orders are being tried
// Asked when a graph or body begins: another order of its nodes, or null. Told when one of its nodes is done.
const std::vector<uint32_t> *explored_order(const ExecGraph &g);
void explored_node(const ExecGraph &g, uint32_t i);
bool explored_loop_may_go_on();

CUresult find_graph(CUgraph handle, Graph *&out);
CUresult find_node(CUgraphNode handle, Node *&out);
CUresult add_node(Graph *g, const CUgraphNode *before, size_t count, std::unique_ptr<Node> node, Node **out);
std::unique_ptr<Graph> clone_graph(const Graph &g, std::unordered_map<const Node *, Node *> *map = nullptr);
bool holds_conditional(const Graph &g);
bool in_conditional_body(const Graph *g);

// Adds a node of a type to the capture of `s`, behind what was captured last; `fill_in` sets its parameters.
template <typename FillIn>
CUresult capture_node(Stream *s, CUgraphNodeType type, FillIn fill_in) {
    auto node = std::make_unique<Node>();
    node->type = type;
    fill_in(*node);
    return capture_node(s, std::move(node));
}

CUresult set_kernel(Node &node, const CUDA_KERNEL_NODE_PARAMS &p);
CUresult set_fill(Node &node, const CUDA_MEMSET_NODE_PARAMS &p);
CUresult set_copy(Node &node, const CUDA_MEMCPY3D &p);

// Executes; defined with the memory entry points.
CUresult check_copy(const CUDA_MEMCPY3D &p);
CUresult run_copy(const CUDA_MEMCPY3D &p);
CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS &p);
CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS &p);
CUDA_MEMCPY3D linear_copy(const void *dst, const void *src, size_t bytes);

}  // namespace hostsim
