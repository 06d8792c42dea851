"""C++ kernels, built when they are first used and loaded through ctypes."""
