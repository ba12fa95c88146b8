//! `cupola devices`.

use crate::failure::Result;
use crate::{terminal, units};
use serde_json::json;
use std::io::Write;

/// Shows what models can run on here, and why not on more
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola devices
  cupola devices --json
  cupola run --device cpu")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let kinds = cupola::registry().devices();
    if args.json {
        let kinds = kinds.iter().map(|(kind, found)| match found {
            Ok(devices) => json!({ "kind": kind, "devices": devices.iter().map(device_json).collect::<Vec<_>>() }),
            Err(reason) => json!({ "kind": kind, "devices": [], "reason": reason }),
        });
        return terminal::json(&kinds.collect());
    }
    let mut out = terminal::out();
    for (kind, found) in kinds {
        match found {
            Ok(devices) if devices.is_empty() => writeln!(out, "{kind}: none")?,
            Ok(devices) => {
                for d in devices {
                    writeln!(out, "{}:{}  {}", d.kind, d.index, d.name)?;
                    if let Some(memory) = d.memory {
                        writeln!(out, "  {:<16}{}", "memory", units::bytes(memory))?;
                    }
                    for (name, value) in &d.details {
                        writeln!(out, "  {name:<16}{value}")?;
                    }
                }
            }
            Err(reason) => writeln!(out, "{kind}: none, because {reason}")?,
        }
    }
    Ok(out.flush()?)
}

fn device_json(d: &cupola_backend::Device) -> serde_json::Value {
    let details: serde_json::Map<_, _> = d.details.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
    json!({ "kind": d.kind, "index": d.index, "name": d.name, "memory": d.memory, "details": details })
}
