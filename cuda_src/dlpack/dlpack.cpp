// What another library calls when it lets go of memory that we exported (foxhunt_rt/driver/dlpack.py), in machine code because
// Python cannot be entered as it is: an exception may be set, which a Python function would lose (NumPy sets one for a device
// that it does not know, then drops the capsule); the thread may not hold the GIL; the interpreter may be gone.
// https://dmlc.github.io/dlpack/latest/python_spec.html wants the exception saved round a destructor.
#include <atomic>

namespace {
using Release = void (*)(void *managed);
// Addresses that Python gives: some linkers refuse a library with undefined symbols. All of the stable ABI, so that one build
// serves every Python 3.
struct Python {
    int (*ensure)();                                 // PyGILState_Ensure
    void (*leave)(int state);                        // PyGILState_Release
    void (*fetch)(void **, void **, void **);        // PyErr_Fetch
    void (*restore)(void *, void *, void *);         // PyErr_Restore
    int (*is_valid)(void *, const char *name);       // PyCapsule_IsValid
    void *(*get_pointer)(void *, const char *name);  // PyCapsule_GetPointer
    Release release;                                 // ours, of Python
} python;
std::atomic<bool> open{false};  // from the first export to the interpreter's exit
}  // namespace

#define FX_DLPACK extern "C" __attribute__((visibility("default")))

FX_DLPACK void fxDlpackOpen(const Python *functions) {
    python = *functions;
    open = true;
}
FX_DLPACK void fxDlpackClose() { open = false; }

// Deleter of a managed tensor of either version: called by its consumer once, from any thread, with the GIL or without.
FX_DLPACK void fxDlpackDelete(void *managed) {
    if (!open) return;  // what is left at exit is never freed: the consumer may still look at it
    int state = python.ensure();
    void *type, *value, *traceback;
    python.fetch(&type, &value, &traceback);
    python.release(managed);  // its own exceptions end in sys.unraisablehook
    python.restore(type, value, traceback);
    python.leave(state);
}

// Destructor of a capsule: called with the GIL. A consumer has renamed the capsule, and calls the deleter itself.
FX_DLPACK void fxDlpackDestroy(void *capsule) {
    if (!open) return;
    const char *const names[] = {"dltensor", "dltensor_versioned"};
    for (const char *name : names)
        if (python.is_valid(capsule, name)) fxDlpackDelete(python.get_pointer(capsule, name));
}
