//! The CPU backend: scalar reference, SIMD kernels, thread pool.

mod attention;
mod backend;
mod cache;
pub mod ceilings;
mod executor;
mod lanes;
pub mod math;
pub mod memory;
mod ops;
mod packed;
pub mod pool;
pub mod products;
mod provider;
pub mod reference;
mod routing;
mod simd;
mod storage;
pub mod tier;
mod values;

pub use backend::CpuBackend;
pub use pool::Pool;
pub use provider::CpuProvider;
pub use tier::Tier;
