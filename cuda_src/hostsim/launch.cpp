// Kernel launches outside of graphs, and their capture.
#include <cstring>

#include "hostsim/driver.h"
#include "hostsim/graph.h"

using namespace hostsim;

namespace {

CUresult launch(CUfunction handle, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream stream,
                void **params, void **extra) {
    auto *f = reinterpret_cast<Function *>(handle);
    Stream *s;
    FX_TRY(find_stream(stream, s));
    if (functions.has(f) && f->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    bool capturing;
    FX_TRY(check_stream(s, "cuLaunchKernel", &capturing));
    Launch l;
    if (!capturing && functions.has(f)) audit_ungraphed(f);
    if (!capturing && !options.deferred) {  // the short way: nothing outlives the call
        static thread_local std::vector<char> args;
        FX_TRY(prepare_launch(f, grid, block, shared, params, extra, l, args));
        l.args = args.data();
        if (CUresult r = run_launch(l); r != CUDA_SUCCESS) fail(s->context, r);
        return CUDA_SUCCESS;
    }
    std::vector<char> args;
    if (CUresult r = prepare_launch(f, grid, block, shared, params, extra, l, args); r != CUDA_SUCCESS) {
        if (capturing) invalidate(s->capture, "a launch that failed");
        return r;
    }
    if (capturing) {
        return capture_node(s, CU_GRAPH_NODE_TYPE_KERNEL, [&](Node &n) {
            n.function = f;
            n.launch = l;
            n.args = std::move(args);
        });
    }
    return submit(s, [l, args = std::move(args)]() mutable {
        l.args = args.data();
        return run_launch(l);
    });
}

}  // namespace

FX_API cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, CUstream stream, void **params, void **extra) {
    FX_ENTER(context);
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(f, grid, block, shared, stream, params, extra);
}

FX_API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
    FX_ENTER(context);
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        const CUlaunchAttribute &a = c->attrs[i];
        if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
            (a.value.clusterDim.x != 1 || a.value.clusterDim.y != 1 || a.value.clusterDim.z != 1)) {
            report_once("hostsim: clusters of more than one block are not supported");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && a.value.cooperative) {
            report_once("hostsim: cooperative launches are not supported");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    const unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ},
                   block[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    return launch(f, grid, block, c->sharedMemBytes, c->hStream, params, extra);
}
