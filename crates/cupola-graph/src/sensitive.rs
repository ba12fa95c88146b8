//! Where rounding shows most.

use crate::{Op, Program};

/// For each op, whether it is a product of weights whose result is delicate: queries, keys and values, because softmax
/// turns differences of scores into ratios of weights, the logits that choose experts, and the program's output. These are few operations next to the
/// feed-forward, so a backend that rounds activations can afford to round the inputs of these ops less.
pub fn sensitive(program: &Program) -> Vec<bool> {
    let mut delicate = vec![false; program.values.len()];
    delicate[program.output.index()] = true;
    let mut found = vec![false; program.ops.len()];
    for (op, found) in program.ops.iter().zip(&mut found).rev() {
        let written = op.outputs().iter().any(|v| delicate[v.index()]);
        match op {
            Op::Linears(_) | Op::GatedLinear(_) => *found = written,
            Op::Attention(_) => op.inputs().iter().for_each(|v| delicate[v.index()] = true),
            Op::Moe(m) => delicate[m.logits.index()] = true,
            // What only passes a delicate value on.
            Op::Norm { .. }
            | Op::Rope(_)
            | Op::JoinHeads { .. }
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::TakeWanted { .. } => {
                op.inputs().iter().for_each(|v| delicate[v.index()] |= written);
            }
            Op::Embed { .. } | Op::Glu { .. } | Op::Activate { .. } | Op::Add { .. } | Op::ScaleRows { .. } => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Attention, Builder, KvLayer, RopeStyle, RopeTable, fuse};
    use cupola_quant::Format;

    #[test]
    fn queries_keys_values_and_the_head() {
        let mut g = Builder::new(10);
        let table = g.weight("embed", 10, 8, Format::F32);
        let x = g.embed(table, 1.0);
        let weight = |g: &mut Builder, name: &str| g.weight(name, 8, 8, Format::F32);
        let jobs = ["q", "k", "v"].map(|name| (weight(&mut g, name), None));
        let [q, k, v] = g.linears(x, jobs);
        let rope = g.rope_table(RopeTable::plain(1e4, 8));
        let k = g.rope(k, 8, RopeStyle::Halves, rope);
        let layer = g.kv_layer(KvLayer { heads: 1, key_dim: 8, value_dim: 8 });
        let (heads, scale) = (1, 1.0);
        let a = Attention { q, k, v, layer, heads, scale, window: None, softcap: None, sink: None, out: x };
        let a = g.attention(a);
        let out = weight(&mut g, "out");
        let x = g.linear_add(a, out, None, x);
        let jobs = ["gate", "up"].map(|name| (weight(&mut g, name), None));
        let [gate, up] = g.linears(x, jobs);
        let h = g.glu(gate, up, Activation::Silu);
        let down = weight(&mut g, "down");
        let x = g.linear_add(h, down, None, x);
        let norm = g.vector("norm", 8);
        let h = g.rms_norm(x, norm, 1e-5);
        let head = g.weight("head", 10, 8, Format::F32);
        let logits = g.linear(h, head, None);
        let logits = g.softcap(logits, 30.0);
        let program = fuse(g.finish(logits).unwrap());

        let found = program.ops.iter().zip(sensitive(&program)).filter(|(_, found)| *found);
        let weights: Vec<_> = found.flat_map(|(op, _)| op.weights()).map(|w| &program.weight(w).name[..]).collect();
        assert_eq!(weights, ["q", "k", "v", "head"]);
    }
}
