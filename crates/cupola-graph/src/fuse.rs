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
