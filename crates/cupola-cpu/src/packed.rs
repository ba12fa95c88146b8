//! A copy of all packed weights in a file, so that the next start maps it instead of packing anew.
//!
//! The file is text, padding, and the matrices of the program one after the other, as they are in memory. The text says
//! which layout they have, which checkpoint they are of, and lists them; it follows from the program, so a file is
//! trusted if it begins with exactly the expected text and has exactly the expected length. Otherwise it is ignored and
//! replaced.

use crate::memory::{Line, MappedLines, bytes};
use crate::products::Matrix;
use cupola_backend::{PackedCopy, PackedCopyError};
use cupola_graph::{Program, Weight, WeightId};
use memmap2::Mmap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of the layout of packed matrices. To be raised with any change of it; a test watches.
const LAYOUT: u32 = 1;
/// Bytes that are written between two reports of progress.
const PIECE_LINES: usize = (8 << 20) / size_of::<Line>();

/// The copy of one checkpoint's weights.
pub(crate) struct PackedFile {
    copy: PackedCopy,
    state: Mutex<State>,
}

enum State {
    /// No weight has been asked for.
    Unknown,
    /// The file is mapped.
    Mapped(Contents, Arc<Mmap>),
    /// There is no file that could be used: the weights so far, to be written once they are complete.
    Missing(Contents, Vec<Option<Arc<Matrix>>>),
    /// There will be none.
    Without,
}

/// What a file has to contain.
struct Contents {
    text: String,
    weights: Vec<Weight>,
    /// Lines of each weight in the file.
    lines: Vec<Range<usize>>,
}

impl Contents {
    /// Absent if sizes overflow.
    fn of(program: &Program, identity: &str) -> Option<Contents> {
        let mut text = format!("cupola's packed weights, layout {LAYOUT}\n{identity}\n");
        for Weight { name, n_out, n_in, format } in &program.weights {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{format} {n_out} {n_in} {name}");
        }
        text.push('\n');
        let mut end = text.len().div_ceil(size_of::<Line>());
        let mut lines = vec![];
        for weight in &program.weights {
            let start = end;
            end = start.checked_add(Matrix::lines_of(weight.format, weight.n_out, weight.n_in).ok()?)?;
            lines.push(start..end);
        }
        end.checked_mul(size_of::<Line>())?;
        Some(Contents { text, weights: program.weights.clone(), lines })
    }

    /// Length of the file.
    fn bytes(&self) -> u64 {
        (self.lines.last().map_or(0, |l| l.end) * size_of::<Line>()) as u64
    }

    /// Maps the file if it has these contents.
    fn map(&self, path: &Path) -> Option<Mmap> {
        let file = File::open(path).ok()?;
        if file.metadata().ok()?.len() != self.bytes() {
            return None;
        }
        // SAFETY: a mapping is sound as long as nobody changes the file meanwhile. Copies are never changed, only
        // replaced by others, and all bits are valid numbers.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        // Whole huge pages where the file system has them. A hint.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        map.starts_with(self.text.as_bytes()).then_some(map)
    }

    fn holds(&self, id: WeightId, weight: &Weight) -> bool {
        self.weights.get(id.index()) == Some(weight)
    }
}

impl PackedFile {
    pub fn new(copy: PackedCopy) -> PackedFile {
        PackedFile { copy, state: Mutex::new(State::Unknown) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A weight of the program, if the file has it. The first call decides whether the file is of use.
    pub fn find(&self, program: &Program, id: WeightId) -> Option<Matrix> {
        let mut state = self.state();
        if let State::Unknown = *state {
            *state = match Contents::of(program, &self.copy.identity) {
                None => State::Without,
                Some(contents) => match contents.map(&self.copy.path) {
                    Some(map) => State::Mapped(contents, Arc::new(map)),
                    None => State::Missing(contents, vec![None; program.weights.len()]),
                },
            };
        }
        let State::Mapped(contents, map) = &*state else { return None };
        let weight = program.weight(id);
        let lines = contents.lines.get(id.index()).filter(|_| contents.holds(id, weight))?;
        let lines = MappedLines::new(map.clone(), lines.clone())?;
        Matrix::mapped(weight.format, weight.n_out, weight.n_in, lines).ok()
    }

    /// Remembers a weight that `find` did not find.
    pub fn add(&self, program: &Program, id: WeightId, matrix: &Arc<Matrix>) {
        if let State::Missing(contents, found) = &mut *self.state()
            && contents.holds(id, program.weight(id))
        {
            found[id.index()] = Some(matrix.clone());
        }
    }

    /// Writes the file, unless it is there, or some of the weights are on other devices. `progress` hears the bytes written
    /// and those in all, first before anything is done; if it breaks off, as after an error, nothing is left behind.
    pub fn keep(&self, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), PackedCopyError> {
        let mut state = self.state();
        if !matches!(*state, State::Missing(..)) {
            return Ok(());
        }
        let State::Missing(contents, matrices) = std::mem::replace(&mut *state, State::Without) else { return Ok(()) };
        // Loading another weight must not wait for the disk.
        drop(state);
        let Some(matrices) = matrices.into_iter().collect::<Option<Vec<_>>>() else { return Ok(()) };
        let path = &self.copy.path;
        let written = write(path, &contents, &matrices, progress);
        written.map_err(|error| PackedCopyError { path: path.clone(), reason: error.to_string() })
    }
}

fn write(
    path: &Path,
    contents: &Contents,
    matrices: &[Arc<Matrix>],
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> io::Result<()> {
    let (start, total) = (contents.lines.first().map_or(0, |l| l.start * size_of::<Line>()), contents.bytes());
    if progress(0, total).is_break() {
        return Ok(());
    }
    let mut part = Part::create(path)?;
    part.file.write_all(contents.text.as_bytes())?;
    part.file.write_all(&[0; size_of::<Line>()][..start - contents.text.len()])?;
    let mut done = start as u64;
    for piece in matrices.iter().flat_map(|matrix| matrix.lines().chunks(PIECE_LINES)) {
        part.file.write_all(bytes(piece))?;
        done += size_of_val(piece) as u64;
        if progress(done, total).is_break() {
            return Ok(());
        }
    }
    part.finish(path)
}

/// A file that is removed unless it is finished.
struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    fn create(path: &Path) -> io::Result<Part> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        Ok(Part { file: File::create(&path)?, path })
    }

    fn finish(self, path: &Path) -> io::Result<()> {
        // Whoever finds the name must find the bytes, also after a power failure.
        self.file.sync_data()?;
        std::fs::rename(&self.path, path)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Not there any more if it was finished.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use cupola_quant::Format;

    const IDENTITY: &str = "model, 1 byte";

    /// A program with a matrix of each of these formats, and the packed matrices with bytes that differ.
    fn weights(formats: &[Format]) -> (Program, Vec<Arc<Matrix>>) {
        let mut builder = cupola_graph::Builder::new(1);
        let matrices = formats.iter().enumerate().map(|(i, &format)| {
            let (n_out, n_in) = (17 + i, 256);
            builder.weight(format!("weight {i}"), n_out, n_in, format);
            // Small enough for no scale to be infinite or not a number.
            let rows = (0..format.row_bytes(n_in).unwrap() * n_out).map(|b| (b * b + 7 * i) as u8 & 0x3f);
            Arc::new(Matrix::pack(format, n_out, n_in, &rows.collect::<Vec<_>>(), &Pool::new(1)).unwrap())
        });
        let matrices = matrices.collect();
        let output = cupola_graph::ValueId(0);
        (builder.finish(output).unwrap(), matrices)
    }

    fn id(i: usize) -> WeightId {
        WeightId(i as u32)
    }

    fn go_on(_: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// A new backend's view of the file.
    fn file(path: &Path, identity: &str) -> PackedFile {
        PackedFile::new(PackedCopy { path: path.into(), identity: identity.into() })
    }

    /// Packs, and keeps what was packed.
    fn keep(path: &Path, identity: &str, program: &Program, matrices: &[Arc<Matrix>]) {
        let file = file(path, identity);
        for (i, matrix) in matrices.iter().enumerate() {
            assert!(file.find(program, id(i)).is_none());
            file.add(program, id(i), matrix);
        }
        file.keep(&mut go_on).unwrap();
    }

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_was_kept_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let (program, matrices) = weights(&[Format::Q8_0, Format::F32, Format::Q4_K]);
        keep(&path, IDENTITY, &program, &matrices);
        assert_eq!(files(folder.path()), 1);
        let found = file(&path, IDENTITY);
        for (i, matrix) in matrices.iter().enumerate() {
            let mapped = found.find(&program, id(i)).unwrap();
            assert_eq!((mapped.format(), mapped.n_out(), mapped.n_in()), (matrix.format(), matrix.n_out(), 256));
            assert_eq!(bytes(mapped.lines()), bytes(matrix.lines()));
        }
        found.keep(&mut |_, _| panic!("there is nothing to write")).unwrap();
        // A weight that only has the number in common with one of the file.
        let (other, _) = weights(&[Format::Q4_0, Format::F32, Format::Q4_K]);
        assert!(found.find(&other, id(0)).is_none() && found.find(&other, id(1)).is_some());
    }

    #[test]
    fn what_is_not_the_same_is_not_found_but_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let (program, matrices) = weights(&[Format::Q8_0, Format::Q6_K]);
        keep(&path, IDENTITY, &program, &matrices);
        let good = std::fs::read(&path).unwrap();
        assert!(file(&path, "model, 2 bytes").find(&program, id(0)).is_none());
        let (other, _) = weights(&[Format::Q8_0, Format::Q5_K]);
        assert!(file(&path, IDENTITY).find(&other, id(0)).is_none());
        let changed = |at: usize| [&good[..at], &[good[at] ^ 1], &good[at + 1..]].concat();
        let longer = [&good[..], &[0; 64]].concat();
        for bad in [&good[..good.len() - 1], &good[..100], &[], &longer, &changed(0), &changed(40)] {
            std::fs::write(&path, bad).unwrap();
            keep(&path, IDENTITY, &program, &matrices);
            assert!(std::fs::read(&path).unwrap() == good);
        }
    }

    #[test]
    fn nothing_is_left_of_what_is_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let (program, matrices) = weights(&[Format::Q8_0, Format::Q6_K]);
        for stop_at in 0..3 {
            let file = file(&path, IDENTITY);
            for (i, matrix) in matrices.iter().enumerate() {
                file.find(&program, id(i));
                file.add(&program, id(i), matrix);
            }
            let mut calls = 0;
            let mut stop = |_, _| {
                calls += 1;
                if calls > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            file.keep(&mut stop).unwrap();
            assert_eq!((calls, files(folder.path())), (stop_at + 1, 0));
        }
        // Not all weights are here.
        let some = file(&path, IDENTITY);
        some.find(&program, id(0));
        some.add(&program, id(0), &matrices[0]);
        some.keep(&mut go_on).unwrap();
        assert_eq!(files(folder.path()), 0);
        // The folder is not there.
        let nowhere = folder.path().join("a").join("b");
        let file = file(&nowhere, IDENTITY);
        file.find(&program, id(0));
        matrices.iter().enumerate().for_each(|(i, matrix)| file.add(&program, id(i), matrix));
        let error = file.keep(&mut go_on).unwrap_err().to_string();
        assert!(error.contains(nowhere.to_str().unwrap()), "{error}");
    }

    /// If this fails after a change of the packed form, raise [`LAYOUT`] with the number here: copies of the old form must
    /// not be used.
    #[test]
    fn the_layout_is_that_of_its_number() {
        let (_, matrices) = weights(&Format::ALL);
        let bytes = matrices.iter().flat_map(|matrix| bytes(matrix.lines()));
        let hash = bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        assert_eq!((LAYOUT, hash), (1, 0xd1e1_702a_5c2b_8405));
    }
}
