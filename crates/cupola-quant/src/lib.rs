//! Weight formats: how a row of numbers is stored, and what the stored bytes mean.
//!
//! Every format has a scalar decoder written from its published definition. It is the reference that all faster
//! kernels, on every device, are tested against.
//!
//! [`decode`] and [`encode`] work on any slice of whole blocks, so that a caller can spread rows over threads.
//! [`blocks`] has the parts of a block (codes, scales, minima) for code that repacks weights; [`fp4`] and [`fp8`] are the
//! small floating-point numbers of block formats and of other checkpoints.

pub mod blocks;
mod convert;
mod error;
mod float;
mod format;
pub mod fp4;
pub mod fp8;
mod grids;

pub use convert::{decode, encode};
pub use error::QuantError;
pub use format::{Format, Layout};
