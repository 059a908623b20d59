// Modules (host images) and functions.
//
// A host image is the ELF shared object that g++ made of a .cu file. It is loaded from an anonymous file of its own,
// so that the dynamic linker sees a new object each time and two loads have separate globals, as on a GPU.
#include <atomic>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hostsim/driver.h"
#include "hostsim/graph.h"

namespace hostsim {

Registry<Function> functions;
Registry<Module> modules;

namespace {

// The driver interface passes no size: the section header table is the last thing in the file.
size_t elf_size(const void *image) {
    const auto *h = static_cast<const Elf64_Ehdr *>(image);
    if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64) return 0;
#if defined(__x86_64__)
    constexpr unsigned machine = EM_X86_64;
#else
    constexpr unsigned machine = EM_AARCH64;
#endif
    if (h->e_machine != machine || h->e_type != ET_DYN) return 0;
    size_t end = h->e_shoff + (size_t)h->e_shentsize * h->e_shnum;
    const auto *sections = reinterpret_cast<const Elf64_Shdr *>(static_cast<const char *>(image) + h->e_shoff);
    for (unsigned i = 0; i < h->e_shnum; ++i)
        if (sections[i].sh_type != SHT_NOBITS) end = std::max<size_t>(end, sections[i].sh_offset + sections[i].sh_size);
    return end;
}

CUresult load(const void *image, Module **out) {
    size_t size = elf_size(image);
    if (!size) {
        report("cuModuleLoadData: not a host image (an ELF shared object of this machine); was it built for a GPU?");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    int fd = memfd_create("foxhunt-host-image", MFD_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const char *p = static_cast<const char *>(image);
    for (size_t left = size; left;) {
        ssize_t n = write(fd, p, left);
        if (n <= 0) {
            close(fd);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        p += n;
        left -= (size_t)n;
    }
    // dlopen takes two libraries of one path for the same, and the next memory file gets this descriptor's number again: so
    // each load spells the path in its own way, a bit of a serial number by "/." or "//.".
    static std::atomic<unsigned long long> serial{0};
    std::string path = "/proc/self/fd";
    for (unsigned long long n = ++serial; n; n /= 2) path += n % 2 ? "/." : "//.";
    path += "/" + std::to_string(fd);
    void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    close(fd);
    if (!handle) {
        report("cuModuleLoadData: %s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    auto *m = new Module;
    m->context = current_context();
    m->handle = handle;
    modules.add(m);
    *out = m;
    return CUDA_SUCCESS;
}

CUresult check_function(CUfunction handle, Function *&f) {
    f = reinterpret_cast<Function *>(handle);
    return functions.has(f) && f->module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

// No device reaches the memory of another: an argument that points there is an illegal address, found at the launch.
static CUresult check_peers(Function *f, const std::vector<char> &args) {
    for (size_t offset = 0; offset + 8 <= args.size(); offset += 8) {
        void *p;
        memcpy(&p, args.data() + offset, 8);
        const Allocation *a = find(p);
        if (!a || a->kind != MemoryKind::device || a->context->device == f->context->device) continue;
        report("kernel %s on device %d: the argument at offset %zu points to %s on device %d", f->name.c_str(),
               f->context->device, offset, a->label.empty() ? "an allocation without label" : a->label.c_str(),
               a->context->device);
        return fail(f->context, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    return CUDA_SUCCESS;
}

CUresult prepare_launch(Function *f, const unsigned grid[3], const unsigned block[3], unsigned shared, void **params,
                        void **extra, Launch &launch, std::vector<char> &args) {
    if (!functions.has(f) || !f->module) return CUDA_ERROR_INVALID_HANDLE;
    const unsigned grid_limit[3] = {2147483647u, 65535u, 65535u}, block_limit[3] = {1024, 1024, 64};
    for (int k = 0; k < 3; ++k)
        if (!grid[k] || !block[k] || grid[k] > grid_limit[k] || block[k] > block_limit[k])
            return CUDA_ERROR_INVALID_VALUE;
    unsigned long long threads = (unsigned long long)block[0] * block[1] * block[2];
    if (threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    if (threads > f->kernel->max_threads) {
        report("kernel %s: %llu threads a block, but its launch bound is %u", f->name.c_str(), threads,
               f->kernel->max_threads);
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    if ((f->kernel->flags & FX_HOST_ANYBLOCK) && block[0] % 32) {
        report("kernel %s: any block size is right, but blockDim.x must be a multiple of 32 on a GPU, not %u",
               f->name.c_str(), block[0]);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (shared > (unsigned)f->max_dynamic_shared) {
        report("kernel %s: %u bytes of dynamic shared memory, but its limit is %d; raise it with cuFuncSetAttribute",
               f->name.c_str(), shared, f->max_dynamic_shared);
        return CUDA_ERROR_INVALID_VALUE;
    }
    launch.kernel = f->kernel;
    launch.grid = {grid[0], grid[1], grid[2]};
    launch.block = {block[0], block[1], block[2]};
    launch.shared = shared;
    size_t size = f->kernel->args_size;
    args.resize(size);
    if (params && params[0]) {
        memcpy(args.data(), params[0], size);
    } else if (extra) {
        const void *buffer = nullptr;
        size_t given = 0;
        for (void **e = extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
            if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = e[1];
            else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) given = *static_cast<size_t *>(e[1]);
            else return CUDA_ERROR_INVALID_VALUE;
        }
        if (!buffer || given != size) return CUDA_ERROR_INVALID_VALUE;
        memcpy(args.data(), buffer, size);
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return options.devices > 1 ? check_peers(f, args) : CUDA_SUCCESS;
}

static void breach(const char *format, const Function *f, const Function *other) {
    count_finding("isolation");
    if (options.audit) report(format, f->name.c_str(), other->name.c_str());
}
void audit_captured(Function *f, const Graph *graph) {
    if (!f->captured_by || !graphs.has(f->captured_by) || f->captured_by->id != f->captured_graph_id) {
        f->captured_by = graph;
        f->captured_graph_id = graph->id;
    } else if (f->captured_by != graph) {
        breach("isolation: kernel %s is launched by two graphs through one function (%s)", f, f);
    }
    if (f->module->ungraphed)
        breach("isolation: a graph takes kernel %s, of whose module kernel %s was launched ungraphed", f,
               f->module->ungraphed);
    f->module->captured = f;
}
void audit_ungraphed(Function *f) {
    if (f->module->captured)
        breach("isolation: kernel %s is launched ungraphed, and a graph launches kernel %s of the same module", f,
               f->module->captured);
    f->module->ungraphed = f;
}

}  // namespace hostsim

using namespace hostsim;

FX_API cuModuleLoadData(CUmodule *out, const void *image) {
    FX_ENTER(context);
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    return load(image, reinterpret_cast<Module **>(out));
}
FX_API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned, CUjit_option *, void **) {
    FX_ENTER(context);
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    return load(image, reinterpret_cast<Module **>(out));
}
static void unload(Module *m) {
    for (Function *f : m->functions) {  // kept, dead: a graph that still names one must fail, not crash
        f->module = nullptr;
        functions.remove(f);
    }
    for (void *p : m->globals) forget_global(p);
    modules.remove(m);
    dlclose(m->handle);
    delete m;
}
void hostsim::unload_all(Context *context) {
    std::vector<Module *> mine;
    for (const void *p : modules.live) {
        auto *m = static_cast<Module *>(const_cast<void *>(p));
        if (m->context == context) mine.push_back(m);
    }
    for (Module *m : mine) unload(m);
}

FX_API cuModuleUnload(CUmodule handle) {
    FX_ENTER(context);
    FX_TRY(forbid_in_capture("cuModuleUnload"));
    auto *m = reinterpret_cast<Module *>(handle);
    if (!modules.has(m)) return CUDA_ERROR_INVALID_HANDLE;
    drain(m->context);
    unload(m);
    return CUDA_SUCCESS;
}
FX_API cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    FX_ENTER(context);
    auto *m = reinterpret_cast<Module *>(handle);
    if (!modules.has(m)) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    for (Function *f : m->functions)
        if (f->name == name) {
            *out = reinterpret_cast<CUfunction>(f);
            return CUDA_SUCCESS;
        }
    auto *kernel = static_cast<fx_host_kernel *>(dlsym(m->handle, (std::string("fx_host_kernel_") + name).c_str()));
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    if (kernel->version != FX_HOST_KERNEL_VERSION) {
        report("kernel %s: the image was built for another hostsim; run tools/build.py", name);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    auto *f = new Function;
    f->module = m;
    f->context = m->context;
    f->kernel = kernel;
    f->name = name;
    m->functions.push_back(f);
    functions.add(f);
    *out = reinterpret_cast<CUfunction>(f);
    return CUDA_SUCCESS;
}
FX_API cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule handle, const char *name) {
    FX_ENTER(context);
    auto *m = reinterpret_cast<Module *>(handle);
    if (!modules.has(m)) return CUDA_ERROR_INVALID_HANDLE;
    void *p = dlsym(m->handle, name);
    Dl_info info;
    const Elf64_Sym *symbol = nullptr;
    if (!p || !dladdr1(p, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol || info.dli_saddr != p ||
        ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || strncmp(name, "fx_host_", 8) == 0)
        return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = (CUdeviceptr)p;
    if (bytes) *bytes = symbol->st_size;
    if (!find(p)) {
        register_global(p, symbol->st_size, m->context);
        m->globals.push_back(p);
    }
    return CUDA_SUCCESS;
}
FX_API cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    FX_ENTER(init);
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}
FX_API cuModuleGetFunctionCount(unsigned *count, CUmodule handle) {
    FX_ENTER(context);
    auto *m = reinterpret_cast<Module *>(handle);
    if (!modules.has(m)) return CUDA_ERROR_INVALID_HANDLE;
    report_once("hostsim: cuModuleGetFunctionCount is not supported");
    (void)count;
    return CUDA_ERROR_NOT_SUPPORTED;
}
FX_API cuFuncLoad(CUfunction handle) {
    FX_ENTER(context);
    Function *f;
    return check_function(handle, f);
}
FX_API cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}
FX_API cuFuncGetModule(CUmodule *out, CUfunction handle) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    *out = reinterpret_cast<CUmodule>(f->module);
    return CUDA_SUCCESS;
}
FX_API cuFuncGetName(const char **name, CUfunction handle) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    *name = f->name.c_str();
    return CUDA_SUCCESS;
}
FX_API cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    if (index != 0 || !offset) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    if (size) *size = f->kernel->args_size;
    return CUDA_SUCCESS;
}
FX_API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)f->kernel->max_threads; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->max_dynamic_shared; break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = f->carveout; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
        default: *value = 0;  // static shared, local and constant bytes are not known here
    }
    return CUDA_SUCCESS;
}
FX_API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > 232448) return CUDA_ERROR_INVALID_VALUE;
            f->max_dynamic_shared = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: f->carveout = value; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}
FX_API cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
    FX_ENTER(context);
    Function *f;
    return check_function(handle, f);
}
FX_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int size, size_t shared) {
    FX_ENTER(context);
    Function *f;
    FX_TRY(check_function(handle, f));
    if (size <= 0 || size > 1024) return CUDA_ERROR_INVALID_VALUE;
    int by_threads = 2048 / ((size + 31) / 32 * 32), by_shared = (int)(233472 / (shared + 1024));
    *blocks = std::min({by_threads, by_shared, 32});
    return CUDA_SUCCESS;
}
