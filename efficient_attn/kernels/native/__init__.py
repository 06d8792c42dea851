"""Our own C++, built when it is first asked for and loaded through ctypes."""
