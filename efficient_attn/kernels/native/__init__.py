"""C++ kernels with a plain C interface: how they are built, found and called; and decode steps in Triton."""
