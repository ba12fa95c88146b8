//! Fusion: fewer ops with the same meaning.

use crate::*;

/// Rewrites a program so that
/// 1. a gate product, an up product and the [`Op::Glu`] that joins them are one [`GatedLinear`],
/// 2. a norm that only feeds linear layers is applied by them as they read their input,
/// 3. a residual addition is the epilogue of the product before it.
///
/// The result computes the same bits in exact mode: only the places where values are stored change.
pub fn fuse(mut program: Program) -> Program {
    gate(&mut program);
    norms(&mut program);
    residuals(&mut program);
    program
}

/// How many ops read each value; the program's output counts as read.
fn readers(program: &Program) -> Vec<usize> {
    let mut count = vec![0; program.values.len()];
    count[program.output.index()] += 1;
    for v in program.ops.iter().flat_map(Op::inputs) {
        count[v.index()] += 1;
    }
    count
}

/// The op that writes `v`, looking back from op `before`.
fn writer(ops: &[Op], before: usize, v: ValueId) -> Option<usize> {
    ops[..before].iter().rposition(|op| op.outputs().contains(&v))
}

fn gate(program: &mut Program) {
    let readers = readers(program);
    let mut i = 0;
    while i < program.ops.len() {
        if let Op::Glu { gate, up, activation, out } = program.ops[i]
            && readers[gate.index()] == 1
            && readers[up.index()] == 1
            && let Some(at) = writer(&program.ops, i, gate)
            && let Op::Linears(Linears { x, norm, jobs }) = &program.ops[at]
            && let [g, u] = jobs.as_slice()
            && (g.out, u.out) == (gate, up)
            && (g.epilogue, u.epilogue) == (Epilogue::Store, Epilogue::Store)
        {
            let fused = GatedLinear {
                x: *x,
                norm: norm.clone(),
                gate: g.weight,
                gate_bias: g.bias,
                up: u.weight,
                up_bias: u.bias,
                activation,
                out,
            };
            program.ops[at] = Op::GatedLinear(fused);
            program.ops.remove(i);
        } else {
            i += 1;
        }
    }
}

fn norms(program: &mut Program) {
    let readers = readers(program);
    let mut i = 0;
    while i < program.ops.len() {
        let Op::Norm { x, norm, out } = &program.ops[i] else {
            i += 1;
            continue;
        };
        let (x, norm, out) = (*x, norm.clone(), *out);
        let whole_row = norm.group == program.value(x).width;
        let reader = program.ops[i + 1..].iter().position(|op| op.inputs().contains(&out)).map(|n| i + 1 + n);
        let slot = reader.filter(|_| whole_row && readers[out.index()] == 1).and_then(|r| match &mut program.ops[r] {
            Op::Linears(l) if l.x == out && l.norm.is_none() => Some((&mut l.x, &mut l.norm)),
            Op::GatedLinear(g) if g.x == out && g.norm.is_none() => Some((&mut g.x, &mut g.norm)),
            _ => None,
        });
        if let Some((input, place)) = slot {
            (*input, *place) = (x, Some(norm));
            program.ops.remove(i);
        } else {
            i += 1;
        }
    }
}

fn residuals(program: &mut Program) {
    let readers = readers(program);
    let mut i = 0;
    while i < program.ops.len() {
        let Op::Add { a, b, out } = program.ops[i] else {
            i += 1;
            continue;
        };
        // Addition commutes, so either operand may be the product.
        let fused = [(a, b), (b, a)].into_iter().find_map(|(residual, product)| {
            let at = writer(&program.ops, i, product)?;
            let ready = writer(&program.ops, at, residual).is_some();
            match &program.ops[at] {
                Op::Linears(l)
                    if ready
                        && readers[product.index()] == 1
                        && l.jobs.len() == 1
                        && l.jobs[0].epilogue == Epilogue::Store =>
                {
                    Some((at, residual))
                }
                _ => None,
            }
        });
        if let Some((at, residual)) = fused
            && let Op::Linears(l) = &mut program.ops[at]
        {
            (l.jobs[0].epilogue, l.jobs[0].out) = (Epilogue::Add(residual), out);
            program.ops.remove(i);
        } else {
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cupola_quant::Format;

    /// Vocabulary 10, width 8, and the embedding as first value.
    fn start() -> (Builder, ValueId) {
        let mut g = Builder::new(10);
        let table = g.weight("embed", 10, 8, Format::F32);
        let x = g.embed(table, 1.0);
        (g, x)
    }

    fn square(g: &mut Builder) -> WeightId {
        g.weight("w", 8, 8, Format::F32)
    }

    fn norm(g: &mut Builder, x: ValueId) -> ValueId {
        let w = g.vector("norm", 8);
        g.rms_norm(x, w, 1e-5)
    }

    /// Builds a program and gives the names of its ops after the embedding, fused, and the ops themselves.
    fn fused(build: impl FnOnce(&mut Builder, ValueId) -> ValueId) -> (Vec<&'static str>, Program) {
        let (mut g, x) = start();
        let y = build(&mut g, x);
        let p = fuse(g.finish(y).unwrap());
        (p.ops[1..].iter().map(Op::name).collect(), p)
    }

    #[test]
    fn a_layer_becomes_few_ops() {
        let (names, p) = fused(|g, x| {
            let (wq, wo, gate, up, down) = (square(g), square(g), square(g), square(g), square(g));
            let h = norm(g, x);
            let [a, b] = g.linears(h, [(wq, None), (wo, None)]);
            let h = g.add(a, b);
            let x = g.linear_add(h, wo, None, x);
            let h = norm(g, x);
            let [a, b] = g.linears(h, [(gate, None), (up, None)]);
            let h = g.glu(a, b, Activation::Silu);
            g.linear_add(h, down, None, x)
        });
        assert_eq!(names, ["linears", "add", "linears", "gated_linear", "linears"]);
        let Op::Linears(qkv) = &p.ops[1] else { panic!() };
        assert!(qkv.norm.is_some() && qkv.x == ValueId(0));
        let Op::GatedLinear(g) = &p.ops[4] else { panic!() };
        assert!(g.norm.is_some() && g.activation == Activation::Silu);
        let Op::Linears(down) = &p.ops[5] else { panic!() };
        assert_eq!(down.jobs[0].epilogue, Epilogue::Add(g.x));
        assert_eq!(down.jobs[0].out, p.output);
    }

    #[test]
    fn biases_stay_with_their_products() {
        let (names, p) = fused(|g, x| {
            let (gate, up) = (square(g), square(g));
            let bias = [g.vector("gate.bias", 8), g.vector("up.bias", 8)];
            let [a, b] = g.linears(x, [(gate, Some(bias[0])), (up, Some(bias[1]))]);
            g.glu(a, b, Activation::Gelu)
        });
        assert_eq!(names, ["gated_linear"]);
        let Op::GatedLinear(g) = &p.ops[1] else { panic!() };
        assert_eq!((g.gate_bias, g.up_bias), (Some(VectorId(0)), Some(VectorId(1))));
        assert_eq!((p.weight(g.gate).name.as_str(), g.gate < g.up), ("w", true));
    }

    #[test]
    fn either_operand_of_an_addition_may_be_the_product() {
        for product_first in [true, false] {
            let (names, p) = fused(|g, x| {
                let w = square(g);
                let y = g.linear(x, w, None);
                if product_first { g.add(y, x) } else { g.add(x, y) }
            });
            assert_eq!(names, ["linears"]);
            let Op::Linears(l) = &p.ops[1] else { panic!() };
            assert_eq!(l.jobs[0].epilogue, Epilogue::Add(ValueId(0)));
        }
    }

    #[test]
    fn values_that_others_read_are_kept() {
        // The norm feeds two ops.
        let (names, _) = fused(|g, x| {
            let (a, b) = (square(g), square(g));
            let h = norm(g, x);
            let y = g.linear(h, a, None);
            let z = g.linear(h, b, None);
            g.glu(y, z, Activation::Relu)
        });
        assert_eq!(names, ["norm", "linears", "linears", "glu"]);
        // The gate is read twice.
        let (names, _) = fused(|g, x| {
            let (a, b) = (square(g), square(g));
            let [a, b] = g.linears(x, [(a, None), (b, None)]);
            let y = g.glu(a, b, Activation::Relu);
            g.add(y, a)
        });
        assert_eq!(names, ["linears", "glu", "add"]);
        // The product is added to itself.
        let (names, _) = fused(|g, x| {
            let w = square(g);
            let y = g.linear(x, w, None);
            g.add(y, y)
        });
        assert_eq!(names, ["linears", "add"]);
    }

    #[test]
    fn the_output_is_kept() {
        let (mut g, x) = start();
        let (w, n) = (square(&mut g), norm(&mut g, x));
        let y = g.linear(n, w, None);
        g.add(x, y);
        let p = fuse(g.finish(n).unwrap());
        assert_eq!(p.ops.iter().map(Op::name).collect::<Vec<_>>(), ["embed", "norm", "linears"]);
        let (mut g, x) = start();
        let w = square(&mut g);
        let y = g.linear(x, w, None);
        g.add(x, y);
        let p = fuse(g.finish(y).unwrap());
        assert_eq!(p.ops.iter().map(Op::name).collect::<Vec<_>>(), ["embed", "linears", "add"]);
    }

    #[test]
    fn norms_of_heads_stay() {
        let (names, _) = fused(|g, x| {
            let (w, weight) = (square(g), Some(g.vector("head_norm", 4)));
            let h = g.norm(x, Norm { kind: NormKind::Rms, group: 4, weight, bias: None, eps: 1e-5 });
            g.linear(h, w, None)
        });
        assert_eq!(names, ["norm", "linears"]);
    }

    /// A residual that is computed after the product cannot be its epilogue.
    #[test]
    fn a_residual_that_comes_later_stays_an_addition() {
        let (names, _) = fused(|g, x| {
            let w = square(g);
            let y = g.linear(x, w, None);
            let later = g.scale(x, 2.0);
            g.add(later, y)
        });
        assert_eq!(names, ["linears", "scale", "add"]);
    }

    #[test]
    fn two_products_are_added_by_the_second() {
        let (names, p) = fused(|g, x| {
            let (a, b) = (square(g), square(g));
            let (y, z) = (g.linear(x, a, None), g.linear(x, b, None));
            g.add(y, z)
        });
        assert_eq!(names, ["linears", "linears"]);
        let Op::Linears(second) = &p.ops[2] else { panic!() };
        let Op::Linears(first) = &p.ops[1] else { panic!() };
        assert_eq!(second.jobs[0].epilogue, Epilogue::Add(first.jobs[0].out));
    }
}
