//! Models from the Hugging Face hub.

use crate::args::HubArgs;
use crate::failure::{Failure, Result};
use crate::{interrupt, terminal};
use cupola_formats::hub::{HubError, HubModel, HubOptions, Transfer, fetch};
use std::ops::ControlFlow;
use std::path::PathBuf;

impl HubArgs {
    /// Fetches what is needed of a model; gives its folder or file. Ctrl-C stops it; the next time goes on from there.
    pub fn fetch(&self, model: &HubModel) -> Result<PathBuf> {
        let mut model = model.clone();
        if let Some(revision) = &self.revision {
            model.revision.clone_from(revision);
        }
        let options = self.options()?;
        interrupt::listen();
        let cancel = interrupt::token();
        let bar = terminal::bytes_bar("Fetching", 0);
        let fetched = fetch(&model, &options, &mut |transfer| {
            show(&bar, transfer);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        fetched.map_err(|error| match error {
            HubError::Cancelled => Failure::Interrupted,
            other => other.into(),
        })
    }

    fn options(&self) -> Result<HubOptions> {
        let folder = self.folder()?;
        let mut options = HubOptions::new(folder.join("hub"));
        options.offline = self.offline;
        if let Some(endpoint) = self.hf_endpoint.as_ref().filter(|url| !url.is_empty()) {
            options.endpoint.clone_from(endpoint);
        }
        // Where the hub's own program keeps the token of whoever has logged in.
        let logged_in = || std::fs::read_to_string(folder.join("token")).ok();
        let token = self.hf_token.clone().filter(|token| !token.is_empty()).or_else(logged_in);
        options.token = token.map(|token| token.trim().to_string()).filter(|token| !token.is_empty());
        Ok(options)
    }

    /// `HF_HOME`, or where it is for all programs that do not set it.
    fn folder(&self) -> Result<PathBuf> {
        if let Some(folder) = self.hf_home.as_ref().filter(|folder| !folder.as_os_str().is_empty()) {
            return Ok(folder.clone());
        }
        let cache = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
        let cache = cache.ok_or_else(|| Failure::new("there is no home folder to keep models in; set HF_HOME"))?;
        Ok(cache.join("huggingface"))
    }
}

fn show(bar: &indicatif::ProgressBar, transfer: &Transfer) {
    if transfer.total == 0 {
        return;
    }
    let name = terminal::printable(transfer.file);
    let prefix = format!("Fetching {name} ({}/{})", transfer.number, transfer.count);
    bar.set_length(transfer.total);
    bar.set_position(transfer.done);
    if bar.prefix() != prefix {
        bar.set_prefix(prefix);
        // What an earlier attempt has brought does not count for the speed.
        bar.reset_elapsed();
        bar.reset_eta();
    }
}
