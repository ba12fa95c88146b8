//! Programs: typed ops over named values.
//!
//! A model is described once, as a [`Program`]: ops in order over [`Value`]s, the weights they read and the state they
//! touch. It does not depend on batch size, device or file format. A [`Step`] runs it on a ragged batch: tokens of any
//! number of sequences, prompt chunks and single tokens mixed.
//!
//! The meaning of every op, including the order of each of its sums in exact mode, is in the doc of [`Op`] and its
//! parts. Backends implement that text.

mod builder;
mod error;
mod fuse;
mod moe;
mod op;
mod plan;
mod print;
mod program;
mod rope;
mod sensitive;
mod state;
mod step;

pub use builder::Builder;
pub use error::GraphError;
pub use fuse::fuse;
pub use moe::{Expert, Groups, Moe, Routing, Scores};
pub use op::{
    Activation, Attention, Epilogue, GatedLinear, Gating, Linear, Linears, Norm, NormKind, Op, Rope, RopeStyle,
};
pub use plan::{Buffer, MemoryPlan};
pub use program::{Program, Rows, Value, ValueId, Vector, VectorId, Weight, WeightId};
pub use rope::{LongRope, RopeTable};
pub use sensitive::sensitive;
pub use state::{BLOCK_TOKENS, KvLayer, KvType};
pub use step::{Span, Step};
