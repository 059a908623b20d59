// Overlap mode: finds graph nodes that need an edge between them and have none.
//
// Two nodes without a path between them may run in either order, or at the same time. So before a launch counts, the graph runs
// from the same memory in other orders: once for each node that could come earlier, with that node as early as its edges allow.
// This puts every unordered pair in both orders. Memory must come out the same bit for bit; where it does not, a read or a write
// of one node meets a write of the other. Two unordered nodes that write one byte are an error too, even where the order shows
// no difference (two sums into one word come out right here and not on a GPU). Nothing is guessed from pages or arguments, so
// parts of one buffer may be used side by side.
//
// Launches see a clock that stands still, host and event nodes are left out, and what memory was is put back.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "hostsim/graph.h"

namespace hostsim {

Exploration *exploration = nullptr;

namespace {

struct Range {
    const char *begin, *end;
};

// A copy of everything that kernels may touch, and of the values of conditional handles.
class Snapshot {
  public:
    explicit Snapshot(GraphExec &x) : x_(&x) {
        for (const Allocation *a : live_allocations()) pieces_.push_back({a->data, {a->data, a->data + a->size}});
        for (auto &c : x.conditions) conditions_.push_back(c->value.load());
    }
    void restore() const {
        for (const Piece &p : pieces_)
            if (memcmp(p.data, p.bytes.data(), p.bytes.size())) memcpy(p.data, p.bytes.data(), p.bytes.size());
        for (size_t i = 0; i < conditions_.size(); ++i) x_->conditions[i]->value.store(conditions_[i]);
    }
    // Where memory differs from the copy.
    std::vector<Range> changes() const {
        std::vector<Range> found;
        constexpr size_t kChunk = 1024;
        for (const Piece &p : pieces_)
            for (size_t at = 0; at < p.bytes.size(); at += kChunk) {
                size_t n = std::min(kChunk, p.bytes.size() - at);
                if (!memcmp(p.data + at, &p.bytes[at], n)) continue;
                for (size_t i = at; i < at + n; ++i) {
                    if (p.data[i] == p.bytes[i]) continue;
                    if (!found.empty() && found.back().end == p.data + i) ++found.back().end;
                    else found.push_back({p.data + i, p.data + i + 1});
                }
            }
        return found;
    }
    // Takes over changes, as `changes` gave them.
    void follow(const std::vector<Range> &ranges) {
        for (const Range &r : ranges) {
            auto p = std::upper_bound(pieces_.begin(), pieces_.end(), r.begin,
                                      [](const char *at, const Piece &piece) { return at < piece.data; });
            --p;
            memcpy(&p->bytes[(size_t)(r.begin - p->data)], r.begin, (size_t)(r.end - r.begin));
        }
    }

  private:
    struct Piece {
        char *data;
        std::vector<char> bytes;
    };
    GraphExec *x_;
    std::vector<Piece> pieces_;  // in the order of addresses
    std::vector<unsigned> conditions_;
};

size_t total(const std::vector<Range> &ranges) {
    size_t n = 0;
    for (const Range &r : ranges) n += (size_t)(r.end - r.begin);
    return n;
}

// The first byte that both sets hold, or null. Both are in the order of addresses.
const char *common(const std::vector<Range> &a, const std::vector<Range> &b) {
    for (size_t i = 0, j = 0; i < a.size() && j < b.size(); a[i].end <= b[j].end ? ++i : ++j)
        if (a[i].begin < b[j].end && b[j].begin < a[i].end) return std::max(a[i].begin, b[j].begin);
    return nullptr;
}

std::string name_of(const ExecNode &n) {
    if (n.type == CU_GRAPH_NODE_TYPE_KERNEL) return "kernel " + n.function->name;
    if (n.type == CU_GRAPH_NODE_TYPE_MEMSET) return "a memset";
    if (n.type == CU_GRAPH_NODE_TYPE_MEMCPY) return "a copy";
    return n.type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? "a conditional node" : "a node";
}

// path[j][i]: node i comes before node j whatever the order.
std::vector<std::vector<bool>> paths(const ExecGraph &g) {
    std::vector<std::vector<bool>> path(g.nodes.size(), std::vector<bool>(g.nodes.size()));
    for (size_t j = 0; j < g.nodes.size(); ++j)
        for (uint32_t b : g.nodes[j].before) {
            path[j][b] = true;
            for (size_t i = 0; i < b; ++i)
                if (path[b][i]) path[j][i] = true;
        }
    return path;
}

}  // namespace

struct Exploration {
    GraphExec &x;
    Snapshot before, latest;  // memory when the launch began, and behind the last node (while `writes` are taken)
    const ExecGraph *graph = nullptr;
    std::vector<uint32_t> order;  // of the nodes of `graph`; the others run in their natural order
    std::vector<std::vector<Range>> *writes = nullptr;
    unsigned long long loops = 0, most_loops = ~0ull;

    explicit Exploration(GraphExec &exec) : x(exec), before(exec), latest(exec) {}

    CUresult run_once() {
        before.restore();
        loops = 0;
        return run_graph(x, x.top);
    }

    CUresult report_pair(const ExecGraph &g, uint32_t i, uint32_t j, const char *what, const char *where,
                         size_t bytes) {
        char place[300];
        describe_address((CUdeviceptr)where, place, sizeof(place));
        count_finding("overlap");
        report("overlap: %s (node %u) and %s (node %u) have no edge between them, and %s: %zu bytes, the first at %s",
               name_of(g.nodes[i]).c_str(), i, name_of(g.nodes[j]).c_str(), j, what, bytes, place);
        return options.overlap == 1 ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
    }

    // Runs with the nodes of `late` behind node j, which they precede by nature alone. Where does memory differ from `expected`?
    // *failed: nowhere, but the launch failed, or a loop did not end.
    std::vector<Range> departures(const Snapshot &expected, uint32_t j, const std::vector<uint32_t> &late,
                                  bool *failed) {
        order.clear();
        for (uint32_t i = 0; i < j; ++i)
            if (std::find(late.begin(), late.end(), i) == late.end()) order.push_back(i);
        order.push_back(j);
        order.insert(order.end(), late.begin(), late.end());
        for (uint32_t i = j + 1; i < graph->nodes.size(); ++i) order.push_back(i);
        *failed = run_once() != CUDA_SUCCESS || loops > most_loops;
        std::vector<Range> found = *failed ? std::vector<Range>{} : expected.changes();
        order.clear();
        return found;
    }

    CUresult try_orders(const ExecGraph &g, const Snapshot &expected) {
        auto path = paths(g);
        graph = &g;
        for (uint32_t j = 1; j < g.nodes.size(); ++j) {
            std::vector<uint32_t> late;
            for (uint32_t i = 0; i < j; ++i)
                if (!path[j][i]) late.push_back(i);
            bool failed = false, fails = false;
            std::vector<Range> found, now;
            uint32_t other = j;
            // The whole set first; when that shows something, ever fewer: the last node without which nothing shows is it.
            while (!late.empty()) {
                now = departures(expected, j, late, &fails);
                if (now.empty() && !fails) break;
                found = now;
                failed = fails;
                other = late.front();
                late.erase(late.begin());
            }
            if (other == j) continue;
            const char *what =
                failed ? "the launch fails when they change places" : "the result depends on which runs first";
            FX_TRY(report_pair(g, other, j, what, found.empty() ? nullptr : found[0].begin, total(found)));
        }
        graph = nullptr;
        return try_bodies(g, [&](const ExecGraph &body) { return try_orders(body, expected); });
    }

    CUresult compare_writes(const ExecGraph &g) {
        auto path = paths(g);
        std::vector<std::vector<Range>> sets(g.nodes.size());
        graph = &g;
        writes = &sets;
        latest = before;
        CUresult r = run_once();
        writes = nullptr;
        graph = nullptr;
        if (r != CUDA_SUCCESS) return r;
        for (uint32_t j = 1; j < g.nodes.size(); ++j)
            for (uint32_t i = 0; i < j; ++i)
                if (!path[j][i])
                    if (const char *where = common(sets[i], sets[j]))
                        FX_TRY(report_pair(g, i, j, "both write the same memory", where, 1));
        return try_bodies(g, [&](const ExecGraph &body) { return compare_writes(body); });
    }

    template <class F>
    CUresult try_bodies(const ExecGraph &g, F f) {
        for (const ExecNode &n : g.nodes)
            for (const ExecGraph &body : n.bodies) FX_TRY(f(body));
        return CUDA_SUCCESS;
    }

    CUresult explore() {
        if (CUresult r = run_once(); r != CUDA_SUCCESS) return r;  // fails in its natural order too
        most_loops = loops + 1000;
        Snapshot expected(x);
        FX_TRY(try_orders(x.top, expected));
        return compare_writes(x.top);
    }
};

const std::vector<uint32_t> *explored_order(const ExecGraph &g) {
    Exploration &e = *exploration;
    if (e.writes && e.graph == &g) e.latest.follow(e.latest.changes());
    return e.graph == &g && !e.order.empty() ? &e.order : nullptr;
}
void explored_node(const ExecGraph &g, uint32_t i) {
    Exploration &e = *exploration;
    if (!e.writes || e.graph != &g) return;
    std::vector<Range> changes = e.latest.changes();
    e.latest.follow(changes);
    std::vector<Range> &set = (*e.writes)[i];
    set.insert(set.end(), changes.begin(), changes.end());
    std::sort(set.begin(), set.end(), [](const Range &a, const Range &b) { return a.begin < b.begin; });
}
bool explored_loop_may_go_on() { return !exploration || ++exploration->loops <= exploration->most_loops; }

CUresult explore(GraphExec &x) {
    uint64_t seed = options.seed;
    options.seed = 0;
    frozen_ns = now_ns();
    Exploration e(x);
    exploration = &e;
    CUresult r = e.explore();
    exploration = nullptr;
    frozen_ns = 0;
    options.seed = seed;
    e.before.restore();
    return r;
}

}  // namespace hostsim
