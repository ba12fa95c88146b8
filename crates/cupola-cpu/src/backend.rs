//! The CPU as a [`Backend`].

use crate::executor::Executor;
use crate::packed::PackedFile;
use crate::pool::{Pool, default_threads};
use crate::products::{Matrix, MatrixError, Mode};
use crate::provider;
use crate::tier::Tier;
use cupola_backend::{
    Backend, BackendError, Decline, Device, DeviceWeight, Executable, Options, PackedCopyError, Segment, SourceError,
    Stats, UploadError, Verdict, WeightSource,
};
use cupola_graph::{KvType, Op, Program, WeightId};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a weight that are read and packed at a time.
const UPLOAD_BYTES: usize = 8 << 20;
/// Rows that are packed together.
const PANEL_ROWS: usize = 16;

/// The CPU: takes every op, is the fallback of every other device, and defines the bits of exact mode.
pub struct CpuBackend {
    shared: Arc<Shared>,
    packed: Option<PackedFile>,
    profile: bool,
}

/// What a backend and its executables share.
pub(crate) struct Shared {
    pub device: Device,
    pub pool: Pool,
    pub tier: Tier,
    pub mode: Mode,
    pub kv_type: KvType,
    pub stats: Mutex<Stats>,
}

impl Shared {
    /// Memory ran out: bytes that were asked for, and that there are, if known.
    pub fn out_of_memory(&self, bytes: usize, available: Option<u64>) -> BackendError {
        BackendError::OutOfMemory {
            device: self.device.to_string(),
            needed: bytes as u64,
            available,
            advice: "Use a shorter context, fewer sequences at once, or a smaller model or format".into(),
        }
    }
}

/// More than any machine has cores. A system that is asked for many more may refuse in ways that end the process.
const MAX_THREADS: usize = 1024;

impl CpuBackend {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the instruction set that the options name is unknown or not available, or there are too many threads.
    pub fn open(options: &Options) -> Result<CpuBackend, BackendError> {
        let tier = match &options.cpu_tier {
            None => Tier::detect(),
            Some(name) => name
                .parse::<Tier>()
                .map_err(|e| BackendError::Device { device: "cpu:0".into(), message: e.to_string() })?,
        };
        let threads = options.threads.unwrap_or_else(default_threads).max(1);
        if threads > MAX_THREADS {
            let message = format!("{threads} threads were asked for, at most {MAX_THREADS} can be used");
            return Err(BackendError::Device { device: "cpu:0".into(), message });
        }
        let pool = Pool::new(threads);
        let device = provider::device(tier, pool.threads());
        let mode = if options.exact { Mode::Exact } else { Mode::Fast(options.activations) };
        let shared = Shared { device, pool, tier, mode, kv_type: options.kv(), stats: Mutex::default() };
        let packed = options.packed.clone().map(PackedFile::new);
        Ok(CpuBackend { shared: Arc::new(shared), packed, profile: options.profile })
    }

    /// The instruction set in use.
    pub fn tier(&self) -> Tier {
        self.shared.tier
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> &Device {
        &self.shared.device
    }

    fn wants(&self, _: &Program, _: &Op) -> Verdict {
        Verdict::Take
    }

    fn upload(&self, program: &Program, id: WeightId, source: &dyn WeightSource) -> Result<DeviceWeight, UploadError> {
        let uploaded = |matrix: Arc<Matrix>| DeviceWeight { bytes: matrix.packed_bytes(), data: matrix };
        if let Some(matrix) = self.packed.as_ref().and_then(|packed| packed.find(program, id)) {
            return Ok(uploaded(Arc::new(matrix)));
        }
        let weight = program.weight(id);
        let error = |e: MatrixError| match e {
            MatrixError::OutOfMemory(e) => {
                let available = self.shared.device.memory.unwrap_or(0);
                UploadError::Decline(Decline::Memory { needed: e.bytes as u64, available })
            }
            e => UploadError::Source(SourceError { name: weight.name.clone(), message: e.to_string() }),
        };
        let mut matrix = Matrix::new(weight.format, weight.n_out, weight.n_in).map_err(error)?;
        let row_bytes = weight.bytes() / weight.n_out;
        let rows = (UPLOAD_BYTES / row_bytes).next_multiple_of(PANEL_ROWS).max(PANEL_ROWS);
        for first in (0..weight.n_out).step_by(rows) {
            let range = first..weight.n_out.min(first + rows);
            let bytes = source.rows(id, range.clone())?;
            if bytes.len() != range.len() * row_bytes {
                let message = format!(
                    "rows {range:?} of {} {} values take {} bytes, the source gave {}",
                    weight.n_in,
                    weight.format,
                    range.len() * row_bytes,
                    bytes.len()
                );
                return Err(SourceError { name: weight.name.clone(), message }.into());
            }
            matrix.pack_rows(first, &bytes, &self.shared.pool).map_err(error)?;
            drop(bytes);
            source.release(id, range);
        }
        let matrix = Arc::new(matrix);
        if let Some(packed) = &self.packed {
            packed.add(program, id, &matrix);
        }
        Ok(uploaded(matrix))
    }

    fn compile(&self, segment: Segment) -> Result<Box<dyn Executable>, BackendError> {
        Ok(Box::new(Executor::new(self.shared.clone(), segment, self.profile)?))
    }

    fn keep_packed(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), PackedCopyError> {
        self.packed.as_ref().map_or(Ok(()), |packed| packed.keep(progress))
    }

    fn stats(&self) -> Stats {
        self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
