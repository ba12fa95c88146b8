//! Ops that work row by row, in vectors. They give the bits of [`crate::reference`] in every mode and on every tier.
//!
//! Rows are cells, since an op may write over its input.

mod elementwise;
mod norm;
mod rope;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use elementwise::{activate, add, add_scaled, glu, scale, softcap, softcap_lanes};
pub(crate) use norm::norm;
pub(crate) use rope::rope;
