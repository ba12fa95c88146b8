//! The CPU backend: scalar reference, SIMD kernels, thread pool.
