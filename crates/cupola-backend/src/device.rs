//! Devices and how a user names them.

use std::fmt;
use std::str::FromStr;

/// One thing that can run ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its backend: `cpu`, `cuda`, `metal`.
    pub kind: String,
    /// Which of the backend's devices, from 0.
    pub index: usize,
    /// The maker's name for it.
    pub name: String,
    /// Bytes of memory that it can use, where known.
    pub memory: Option<u64>,
    /// Further facts for people, such as instruction sets or driver versions.
    pub details: Vec<(String, String)>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", self.kind, self.index, self.name)
    }
}

/// What a user asks for: `auto`, `cpu`, `cuda`, `cuda:1`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The best device that works.
    #[default]
    Auto,
    /// This one or an error.
    Named {
        /// The backend.
        kind: String,
        /// Which of its devices.
        index: usize,
    },
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<DeviceChoice, String> {
        if s == "auto" {
            return Ok(DeviceChoice::Auto);
        }
        let (kind, index) = s.split_once(':').unwrap_or((s, "0"));
        let known = ["cpu", "cuda", "metal"];
        match index.parse() {
            Ok(index) if known.contains(&kind) => Ok(DeviceChoice::Named { kind: kind.into(), index }),
            _ => Err(format!(
                "unknown device \"{s}\": expected auto, {}, or one of these with a number, as in cuda:1",
                known.join(", ")
            )),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Named { kind, index } => write!(f, "{kind}:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_parse_and_print() {
        for (text, printed) in [("auto", "auto"), ("cpu", "cpu:0"), ("cuda:1", "cuda:1")] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), printed);
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cpu:-1"] {
            assert!(text.parse::<DeviceChoice>().unwrap_err().contains("expected auto, cpu"), "{text}");
        }
    }
}
