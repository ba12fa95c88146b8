//! The traits that a device implements.

use crate::{BackendError, Device, PackedCopyError, Stats, UploadError, Verdict, WeightSource};
use cupola_graph::{KvType, Op, Program, Step, ValueId, WeightId};
use std::any::Any;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

/// How finely activations are rounded where they meet weights, unless [`Options::exact`] is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Weights in blocks meet 16-bit integers with one scale for each 32 activations, weights in floats meet f32. Next to
    /// nothing is lost.
    #[default]
    Bits16,
    /// Weights in blocks meet 8-bit integers, weights in BF16 meet BF16 where the processor multiplies that; where rounding
    /// shows most ([`sensitive`](cupola_graph::sensitive)) as with `Bits16`. Prompts are read 1.4 times as fast or so, but an
    /// answer may differ: logits move by some percent of their spread.
    Bits8,
}

/// How a device is to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The fixed order of every sum, f32 activations, f32 caches: the same bits on every device.
    pub exact: bool,
    /// How finely activations are rounded; exact mode does not round them whatever this says.
    pub activations: Activations,
    /// CPU threads; absent: one for every core that this process may use.
    pub threads: Option<usize>,
    /// How keys and values are stored; exact mode stores them in f32 whatever this says.
    pub kv_type: KvType,
    /// The highest CPU instruction set to use, by name; absent: the best that the machine has.
    pub cpu_tier: Option<String>,
    /// A file with the weights as the device computes with them; see [`Backend::keep_packed`].
    pub packed: Option<PackedCopy>,
    /// Measure every op's time for [`Backend::stats`].
    pub profile: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            exact: false,
            activations: Activations::default(),
            threads: None,
            kv_type: KvType::F16,
            cpu_tier: None,
            packed: None,
            profile: false,
        }
    }
}

impl Options {
    /// The cache type in force.
    pub fn kv(&self) -> KvType {
        if self.exact { KvType::F32 } else { self.kv_type }
    }
}

/// A file in which a backend keeps the weights of one checkpoint in the form that it computes with, so that the next start
/// need not make that form anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedCopy {
    /// Where it is, or is to be.
    pub path: PathBuf,
    /// What the weights are made from: a copy of anything else is not used.
    pub identity: String,
}

/// One device that runs ops.
pub trait Backend: Send + Sync {
    /// Which device this is.
    fn device(&self) -> &Device;

    /// Whether the backend takes this op of this program. Pure and cheap; thresholds are documented by the backend.
    fn wants(&self, program: &Program, op: &Op) -> Verdict;

    /// Puts a weight on the device. Called once for each weight of the ops that it took. Declines if the format or the
    /// memory does not allow it; the caller then gives the ops that read it to the next backend.
    fn upload(&self, program: &Program, id: WeightId, source: &dyn WeightSource) -> Result<DeviceWeight, UploadError>;

    /// Prepares a run of consecutive ops.
    fn compile(&self, segment: Segment) -> Result<Box<dyn Executable>, BackendError>;

    /// Writes [`Options::packed`] with the weights that were uploaded, unless it is there already. Does nothing on devices
    /// that have no use for it. `progress` hears the bytes written and those in all, first before anything is done, and may
    /// break off: then, as after an error, nothing is left behind. The folder must exist.
    fn keep_packed(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), PackedCopyError> {
        let _ = progress;
        Ok(())
    }

    /// What the device has done since it was opened.
    fn stats(&self) -> Stats;
}

/// A weight on a device, in whatever form its backend chose. Shared by all ops that read it.
#[derive(Clone)]
pub struct DeviceWeight {
    /// The backend's own data.
    pub data: Arc<dyn Any + Send + Sync>,
    /// Bytes that it takes on the device.
    pub bytes: usize,
}

/// Consecutive ops of a program that one backend runs.
#[derive(Clone)]
pub struct Segment {
    /// The whole program.
    pub program: Arc<Program>,
    /// The ops, as a range of [`Program::ops`].
    pub ops: Range<usize>,
    /// Every weight that they read, from this backend's [`Backend::upload`].
    pub weights: HashMap<WeightId, DeviceWeight>,
    /// Every vector of the program, by its id.
    pub vectors: Arc<Vec<Vec<f32>>>,
    /// Values that come from earlier segments.
    pub inputs: Vec<ValueId>,
    /// Values that later segments read, or that are the program's output.
    pub outputs: Vec<ValueId>,
}

/// Values that cross segments, in host memory, by [`ValueId`]: `[rows, width]`, row-major.
pub type HostValues = HashMap<ValueId, Vec<f32>>;

/// A segment that is ready to run. It owns the caches of its attention layers.
pub trait Executable: Send {
    /// Makes room for at least `blocks` key-value blocks in each layer; existing blocks keep their contents. On an
    /// error nothing has changed.
    fn reserve(&mut self, blocks: usize) -> Result<(), BackendError>;

    /// Copies block `from` to block `to` in every layer.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError>;

    /// Runs the segment. Reads its inputs from `values` and writes its outputs there. The step has passed
    /// [`Step::check`]. On an error the outputs are not written, and the cache is as before but for the slots of this
    /// step's own tokens.
    fn run(&mut self, step: &Step<'_>, values: &mut HostValues) -> Result<(), BackendError>;

    /// Bytes on the device for caches and intermediate values.
    fn bytes(&self) -> usize;
}
