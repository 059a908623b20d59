# libfoxhunt_dlpack.so: what consumers of our DLPack capsules call (cuda_src/dlpack). Needed with every driver.
add_library(foxhunt_dlpack SHARED "${device_root}/dlpack/dlpack.cpp")
set_target_properties(foxhunt_dlpack PROPERTIES NO_SONAME TRUE LIBRARY_OUTPUT_DIRECTORY "${output_root}")
# Not -fno-exceptions: CPython before 3.14 ends a thread that waits for the GIL at exit by unwinding it.
target_compile_options(foxhunt_dlpack PRIVATE -std=c++20 -O2 -Wall -Wextra -fvisibility=hidden)
# Complete in itself, as some linkers want it by default.
target_link_options(foxhunt_dlpack PRIVATE -Wl,-z,defs)
