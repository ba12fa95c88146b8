//! The CPU backend: scalar reference, SIMD kernels, thread pool.

pub mod memory;
pub mod pool;
pub mod products;
mod simd;
pub mod tier;

pub use pool::Pool;
pub use tier::Tier;
