//! What a device has done.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Totals since a device was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// By kind of op.
    pub ops: BTreeMap<&'static str, OpStats>,
    /// How often each reason to decline came up.
    pub declines: BTreeMap<String, u64>,
}

/// Totals of one kind of op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpStats {
    /// Runs.
    pub calls: u64,
    /// Bytes of weights and cache read.
    pub bytes: u64,
    /// Time spent.
    pub time: Duration,
}

impl Stats {
    /// Counts one run of an op.
    pub fn count(&mut self, op: &'static str, bytes: u64, time: Duration) {
        let s = self.ops.entry(op).or_default();
        (s.calls, s.bytes, s.time) = (s.calls + 1, s.bytes + bytes, s.time + time);
    }
}

impl fmt::Display for Stats {
    /// A table, the kinds that took longest first, then declines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: Duration = self.ops.values().map(|s| s.time).sum();
        let mut rows: Vec<_> = self.ops.iter().collect();
        rows.sort_by_key(|(_, s)| std::cmp::Reverse(s.time));
        writeln!(f, "{:<14}{:>10}{:>12}{:>8}{:>10}", "op", "calls", "ms", "share", "GB/s")?;
        for (name, s) in rows {
            let seconds = s.time.as_secs_f64();
            let share = 100.0 * seconds / total.as_secs_f64().max(f64::MIN_POSITIVE);
            let rate = s.bytes as f64 / seconds.max(f64::MIN_POSITIVE) / 1e9;
            writeln!(f, "{name:<14}{:>10}{:>12.3}{share:>7.1}%{rate:>10.1}", s.calls, 1e3 * seconds)?;
        }
        for (reason, n) in &self.declines {
            writeln!(f, "declined {n} times: {reason}")?;
        }
        Ok(())
    }
}
