//! Finds devices at run time.

use crate::{Backend, BackendError, Device, DeviceChoice, Options};
use std::sync::Arc;

/// A kind of backend that may or may not have devices on this machine.
pub trait Provider: Send + Sync {
    /// The backend's name: `cpu`, `cuda`, `metal`.
    fn kind(&self) -> &'static str;

    /// The devices that exist, or why there are none.
    fn devices(&self) -> Result<Vec<Device>, String>;

    /// Opens a device.
    fn open(&self, index: usize, options: &Options) -> Result<Arc<dyn Backend>, BackendError>;
}

/// Every kind of backend in this build, best first, the CPU last.
pub struct Registry {
    providers: Vec<Box<dyn Provider>>,
}

/// Devices to run on.
pub struct Selection {
    /// In order of preference; the CPU is always last.
    pub backends: Vec<Arc<dyn Backend>>,
    /// For the user: devices that are there and better, but could not be used, and why.
    pub notes: Vec<String>,
}

/// Why there is no device to run on.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The device that was asked for is not there.
    #[error("device {choice} cannot be used: {reason}. Devices: {available}")]
    Unusable {
        /// What was asked for.
        choice: String,
        /// Why not.
        reason: String,
        /// What there is instead.
        available: String,
    },
    /// The CPU could not be opened.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Registry {
    /// A registry of these providers, best first, the CPU last.
    pub fn new(providers: Vec<Box<dyn Provider>>) -> Registry {
        Registry { providers }
    }

    /// Every kind of backend with its devices, or why it has none.
    pub fn devices(&self) -> Vec<(&'static str, Result<Vec<Device>, String>)> {
        self.providers.iter().map(|p| (p.kind(), p.devices())).collect()
    }

    /// Opens devices. A device that was named and cannot be used is an error, never a silent run on the CPU.
    pub fn select(&self, choice: &DeviceChoice, options: &Options) -> Result<Selection, SelectError> {
        let mut selection = Selection { backends: vec![], notes: vec![] };
        let (last, accelerators) =
            self.providers.split_last().ok_or_else(|| self.unusable(choice, "this build has no backend"))?;
        match choice {
            DeviceChoice::Auto => {
                for p in accelerators {
                    match p.devices().map(|d| d.len()) {
                        Ok(n) if n > 0 => match p.open(0, options) {
                            Ok(backend) => {
                                selection.backends.push(backend);
                                break;
                            }
                            Err(e) => selection.notes.push(format!("{}: {e}", p.kind())),
                        },
                        _ => {}
                    }
                }
            }
            DeviceChoice::Named { kind, index } => {
                let provider = self.providers.iter().find(|p| p.kind() == kind);
                let provider = provider.ok_or_else(|| self.unusable(choice, "this build has no such backend"))?;
                let devices = provider.devices().map_err(|e| self.unusable(choice, &e))?;
                if *index >= devices.len() {
                    return Err(self.unusable(choice, &format!("there are {} of its kind", devices.len())));
                }
                let backend = provider.open(*index, options).map_err(|e| self.unusable(choice, &e.to_string()))?;
                selection.backends.push(backend);
            }
        }
        if !selection.backends.iter().any(|b| b.device().kind == last.kind()) {
            selection.backends.push(last.open(0, options)?);
        }
        Ok(selection)
    }

    fn unusable(&self, choice: &DeviceChoice, reason: &str) -> SelectError {
        let found = self.devices().into_iter().flat_map(|(_, d)| d.unwrap_or_default());
        let names: Vec<String> = found.map(|d| d.to_string()).collect();
        SelectError::Unusable { choice: choice.to_string(), reason: reason.into(), available: names.join(", ") }
    }
}
