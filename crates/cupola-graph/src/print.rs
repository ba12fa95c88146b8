//! Programs as text.

use crate::*;
use std::fmt;

impl fmt::Display for Program {
    /// One line per op: outputs with widths, the op with its attributes, its inputs, formats and bytes of its weights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in &self.ops {
            writeln!(f, "{}", self.describe(op))?;
        }
        Ok(())
    }
}

impl Program {
    /// One op as a line of text.
    pub fn describe(&self, op: &Op) -> String {
        let name = |v: &ValueId| self.value(*v).name.clone();
        let shape = |v: &ValueId| {
            let v = self.value(*v);
            format!("{} [{}, {}]", v.name, if v.rows == Rows::All { "rows" } else { "wanted" }, v.width)
        };
        let list = |vs: Vec<ValueId>, f: &dyn Fn(&ValueId) -> String| vs.iter().map(f).collect::<Vec<_>>().join(", ");
        let mut line = format!("{} = {}", list(op.outputs(), &shape), op.name());
        let inputs = op.inputs();
        if !inputs.is_empty() {
            line += &format!("({})", list(inputs, &name));
        }
        line += &self.attributes(op);
        let weights = op.weights();
        if !weights.is_empty() {
            let of = |w: &WeightId| {
                let w = self.weight(*w);
                format!("{} [{}, {}] {}", w.name, w.n_out, w.n_in, w.format)
            };
            let bytes: usize = weights.iter().map(|w| self.weight(*w).bytes()).sum();
            // The experts are all alike.
            let (shown, others) = match op {
                Op::Moe(m) => (3, format!(" and those of {} more experts", m.experts.len().saturating_sub(1))),
                _ => (weights.len(), String::new()),
            };
            let names = weights.iter().take(shown).map(of).collect::<Vec<_>>().join(", ");
            line += &format!("  {names}{others}, {:.2} MiB", bytes as f64 / (1 << 20) as f64);
        }
        line
    }

    fn attributes(&self, op: &Op) -> String {
        match op {
            Op::Embed { scale, .. } if *scale != 1.0 => format!(" scale {scale}"),
            Op::Norm { norm, .. } => format!(" {}", norm_text(norm)),
            Op::Linears(l) => {
                let norm = l.norm.as_ref().map_or(String::new(), |n| format!(" after {}", norm_text(n)));
                let bias = if l.jobs.iter().any(|j| j.bias.is_some()) { " + bias" } else { "" };
                let add = if l.jobs.iter().any(|j| j.epilogue != Epilogue::Store) { " + residual" } else { "" };
                format!("{norm}{bias}{add}")
            }
            Op::GatedLinear(g) => {
                let norm = g.norm.as_ref().map_or(String::new(), |n| format!(" after {}", norm_text(n)));
                format!("{norm} {:?}", g.activation)
            }
            Op::Rope(r) => {
                format!(" {:?} {} of {}", r.style, self.ropes[r.table].rotary_dim(), r.head_dim)
            }
            Op::Attention(a) => {
                let kv = self.kv[a.layer];
                let window = a.window.map_or(String::new(), |w| format!(" window {w}"));
                let cap = a.softcap.map_or(String::new(), |c| format!(" softcap {c}"));
                let sink = if a.sink.is_some() { " sink" } else { "" };
                format!(" cache {} heads {} over {} scale {}{window}{cap}{sink}", a.layer, a.heads, kv.heads, a.scale)
            }
            Op::Glu { activation, .. } | Op::Activate { activation, .. } => format!(" {activation:?}"),
            Op::Moe(m) => {
                let Routing { scores, choice_bias, groups, top_k, normalise, scale } = &m.routing;
                let groups = groups.map_or(String::new(), |g| format!(" from {} of {} groups", g.top_k, g.count));
                let bias = if choice_bias.is_some() { " + bias" } else { "" };
                let normalised = if *normalise { " normalised" } else { "" };
                let scale = if *scale == 1.0 { String::new() } else { format!(" scale {scale}") };
                let experts = m.experts.len();
                format!(" {top_k} of {experts}{groups} by {scores:?}{bias}{normalised}{scale} {:?}", m.gating)
            }
            Op::JoinHeads { heads, b_dim, .. } => format!(" {heads} heads, {b_dim} more each"),
            Op::Scale { by, .. } => format!(" by {by}"),
            Op::Softcap { cap, .. } => format!(" cap {cap}"),
            _ => String::new(),
        }
    }
}

fn norm_text(n: &Norm) -> String {
    let kind = match n.kind {
        NormKind::Rms => "rms",
        NormKind::Layer => "layer",
    };
    format!("{kind} norm of {} eps {:e}", n.group, n.eps)
}
