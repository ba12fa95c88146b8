//! Weight formats: how a row of numbers is stored, and what the stored bytes mean.
//!
//! Every format has a scalar decoder written from its published definition. It is the reference that all faster
//! kernels, on every device, are tested against.

mod format;

pub use format::{Format, Layout};
