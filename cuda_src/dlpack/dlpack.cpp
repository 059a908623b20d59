// What another library calls when it lets go of memory that we exported (foxhunt_rt/driver/dlpack.py), in machine code because
// Python cannot be entered as it is: an exception may be set, which a Python function would lose (NumPy sets BufferError for a
// device that it does not know, then drops the capsule); the thread may not hold the GIL; the interpreter may be gone.
// https://dmlc.github.io/dlpack/latest/python_spec.html wants the exception saved round a destructor.
#include <atomic>

// Of CPython's stable ABI, found in the process as for any extension module; without Python.h one build serves every Python 3.
extern "C" {
int PyGILState_Ensure(void);
void PyGILState_Release(int state);
void PyErr_Fetch(void **type, void **value, void **traceback);
void PyErr_Restore(void *type, void *value, void *traceback);
int PyCapsule_IsValid(void *capsule, const char *name);
void *PyCapsule_GetPointer(void *capsule, const char *name);
}

namespace {
using Release = void (*)(void *managed);
// A Python function; null before the first export and from the interpreter's exit on.
std::atomic<Release> release{nullptr};
}  // namespace

#define FX_DLPACK extern "C" __attribute__((visibility("default")))

FX_DLPACK void fxDlpackOpen(Release function) { release = function; }
FX_DLPACK void fxDlpackClose() { release = nullptr; }

// Deleter of a managed tensor of either version: called by its consumer once, from any thread, with the GIL or without.
FX_DLPACK void fxDlpackDelete(void *managed) {
    Release function = release;
    if (!function) return;  // what is left at exit is never freed: the consumer may still look at it
    int state = PyGILState_Ensure();
    void *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    function(managed);  // its own exceptions end in sys.unraisablehook
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
}

// Destructor of a capsule: called with the GIL. A consumer has renamed the capsule, and calls the deleter itself.
FX_DLPACK void fxDlpackDestroy(void *capsule) {
    for (const char *name : {"dltensor", "dltensor_versioned"})
        if (PyCapsule_IsValid(capsule, name)) fxDlpackDelete(PyCapsule_GetPointer(capsule, name));
}
