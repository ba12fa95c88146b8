//! The model that is part of this program.

use cupola::EngineError;
use cupola_formats::Checkpoint;

/// The bytes of a file at an address that suits every type of its values.
#[repr(C, align(64))]
struct Aligned<Bytes: ?Sized>(Bytes);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../assets/stories-7m-q8_0.gguf"));

/// What users call it.
pub const NAME: &str = "embedded";

/// A request that it was trained to answer.
pub const PROMPT: &str = "Tell me a short story about a brave little fox.";

/// The model.
pub fn open() -> Result<Checkpoint, EngineError> {
    Ok(Checkpoint::from_static(&FILE.0, NAME)?)
}
