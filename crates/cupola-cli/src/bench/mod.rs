//! The parts of measurements.

mod memory;
mod speed;
mod statistics;
mod synthetic;

pub use memory::peak as peak_memory;
pub use speed::{Phase, Task, Trial, Work};
pub use statistics::Summary;
pub use synthetic::{RandomWeights, Shape};
