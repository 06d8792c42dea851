"""C++, built on first use."""
