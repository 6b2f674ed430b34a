"""The CPU backend: C++ behind a plain C interface, the same bits on AMX, AVX-512, AVX2 and plain C++, for any batch."""
