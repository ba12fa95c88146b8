//! Runs unfused programs on whole sequences in f64, straight from the meaning of each op. Slow and obvious.

use cupola_backend::WeightSource;
use cupola_graph::*;

pub fn run(program: &Program, source: &dyn WeightSource, tokens: &[u32], wanted: &[usize]) -> Vec<f64> {
    let matrix = |id: WeightId| -> Vec<f64> {
        let w = program.weight(id);
        let mut out = vec![0.0; w.n_out * w.n_in];
        cupola_quant::decode(w.format, &source.rows(id, 0..w.n_out).unwrap(), &mut out).unwrap();
        out.into_iter().map(f64::from).collect()
    };
    let vector = |id: VectorId| -> Vec<f64> { source.vector(id).unwrap().into_iter().map(f64::from).collect() };
    let mut values: Vec<Vec<f64>> = vec![vec![]; program.values.len()];
    for op in &program.ops {
        match op {
            Op::Embed { table, scale, out } => {
                let (m, width) = (matrix(*table), program.weight(*table).n_in);
                values[out.index()] = tokens
                    .iter()
                    .flat_map(|t| {
                        m[*t as usize * width..][..width].iter().map(|v| v * f64::from(*scale)).collect::<Vec<_>>()
                    })
                    .collect();
            }
            Op::Norm { x, norm, out } => {
                let (weight, bias) = (vector(norm.weight.unwrap()), norm.bias.map(vector));
                let normalise = |row: &[f64]| {
                    let n = norm.group as f64;
                    let mean = if norm.kind == NormKind::Layer { row.iter().sum::<f64>() / n } else { 0.0 };
                    let row: Vec<f64> = row.iter().map(|v| v - mean).collect();
                    let by = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / n + f64::from(norm.eps)).sqrt();
                    let bias = |i: usize| bias.as_ref().map_or(0.0, |b| b[i]);
                    row.iter().zip(&weight).enumerate().map(|(i, (v, w))| v * by * w + bias(i)).collect::<Vec<_>>()
                };
                values[out.index()] = values[x.index()].chunks(norm.group).flat_map(normalise).collect();
            }
            Op::Linears(l) => {
                for job in &l.jobs {
                    let (m, n_in) = (matrix(job.weight), program.weight(job.weight).n_in);
                    let bias = job.bias.map(vector);
                    let mut y = vec![];
                    for row in values[l.x.index()].chunks(n_in) {
                        for (o, w) in m.chunks(n_in).enumerate() {
                            let dot: f64 = row.iter().zip(w).map(|(a, b)| a * b).sum();
                            y.push(dot + bias.as_ref().map_or(0.0, |b| b[o]));
                        }
                    }
                    values[job.out.index()] = y;
                }
            }
            Op::Rope(r) => {
                let (width, table) = (program.value(r.x).width, &program.ropes[r.table]);
                let half = table.inv_freq.len();
                let mut y = values[r.x.index()].clone();
                let (mut cos, mut sin) = (vec![0.0; half], vec![0.0; half]);
                for (p, row) in y.chunks_mut(width).enumerate() {
                    table.cos_sin(p, tokens.len(), &mut cos, &mut sin);
                    for head in row.chunks_mut(r.head_dim) {
                        for i in 0..half {
                            let (a, b) = match r.style {
                                RopeStyle::Halves => (i, i + half),
                                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                            };
                            let (c, s, x, y) = (f64::from(cos[i]), f64::from(sin[i]), head[a], head[b]);
                            (head[a], head[b]) = (x * c - y * s, y * c + x * s);
                        }
                    }
                }
                values[r.out.index()] = y;
            }
            Op::Attention(a) => {
                let kv = program.kv[a.layer];
                let (q, k, v) = (&values[a.q.index()], &values[a.k.index()], &values[a.v.index()]);
                let mut y = vec![];
                for p in 0..tokens.len() {
                    for h in 0..a.heads {
                        let g = h / (a.heads / kv.heads);
                        let q = &q[(p * a.heads + h) * kv.key_dim..][..kv.key_dim];
                        let first = a.window.map_or(0, |w| (p + 1).saturating_sub(w));
                        let scores: Vec<f64> = (first..=p)
                            .map(|j| {
                                let k = &k[(j * kv.heads + g) * kv.key_dim..][..kv.key_dim];
                                let s = q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * f64::from(a.scale);
                                a.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                            })
                            .collect();
                        let max = scores.iter().copied().fold(f64::MIN, f64::max);
                        let sink = a.sink.map(|sink| vector(sink)[h]);
                        let max = sink.map_or(max, |sink| sink.max(max));
                        let e: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                        let total = e.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
                        for d in 0..kv.value_dim {
                            let at = |j: usize| v[(j * kv.heads + g) * kv.value_dim + d];
                            y.push(e.iter().enumerate().map(|(n, e)| e / total * at(first + n)).sum());
                        }
                    }
                }
                values[a.out.index()] = y;
            }
            Op::Glu { gate, up, activation, out } => {
                let pairs = values[gate.index()].iter().zip(&values[up.index()]);
                values[out.index()] = pairs.map(|(g, u)| activate(*activation, *g) * u).collect();
            }
            Op::Moe(m) => {
                let (count, n_in) = (m.experts.len(), program.value(m.x).width);
                let linear = |(weight, bias): (WeightId, Option<VectorId>), x: &[f64]| -> Vec<f64> {
                    let bias = bias.map(vector);
                    let dot = |(o, w): (usize, &[f64])| {
                        let dot: f64 = x.iter().zip(w).map(|(a, b)| a * b).sum();
                        dot + bias.as_ref().map_or(0.0, |b| b[o])
                    };
                    matrix(weight).chunks(x.len()).enumerate().map(dot).collect()
                };
                let mut y = vec![];
                for (x, logits) in values[m.x.index()].chunks(n_in).zip(values[m.logits.index()].chunks(count)) {
                    let score = |e: usize| match m.routing.scores {
                        Scores::Sigmoid => 1.0 / (1.0 + (-logits[e]).exp()),
                        Scores::Softmax => logits[e].exp() / logits.iter().map(|l| l.exp()).sum::<f64>(),
                        Scores::SoftmaxOfChosen => logits[e].exp(),
                    };
                    let bias = m.routing.choice_bias.map(vector);
                    let rank = |e: usize| score(e) + bias.as_ref().map_or(0.0, |bias| bias[e]);
                    let mut order: Vec<usize> = (0..count).collect();
                    if let Some(Groups { count: groups, top_k, best }) = m.routing.groups {
                        let size = count / groups;
                        let worth = |g: usize| {
                            let mut ranks: Vec<f64> = (g * size..(g + 1) * size).map(rank).collect();
                            ranks.sort_by(|a, b| b.total_cmp(a));
                            ranks[..best].iter().sum::<f64>()
                        };
                        let mut sorted: Vec<usize> = (0..groups).collect();
                        sorted.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
                        order.retain(|e| sorted[..top_k].contains(&(e / size)));
                    }
                    order.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
                    order.truncate(m.routing.top_k);
                    let normalise = m.routing.normalise || m.routing.scores == Scores::SoftmaxOfChosen;
                    let total = if normalise { order.iter().map(|e| score(*e)).sum() } else { 1.0 };
                    let mut sum = vec![0.0; program.value(m.out).width];
                    for e in order {
                        let expert = m.experts[e];
                        let h =
                            linear(expert.gate, x).into_iter().zip(linear(expert.up, x)).map(|(g, u)| match m.gating {
                                Gating::Plain(activation) => activate(activation, g) * u,
                                Gating::ClampedSwiglu { alpha, limit } => {
                                    let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                                    let g = g.min(limit);
                                    (u.clamp(-limit, limit) + 1.0) * g / (1.0 + (-alpha * g).exp())
                                }
                            });
                        let y = linear(expert.down, &h.collect::<Vec<_>>());
                        let weight = score(e) / total * f64::from(m.routing.scale);
                        sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
                    }
                    y.extend(sum);
                }
                values[m.out.index()] = y;
            }
            Op::Activate { x, activation, out } => {
                values[out.index()] = values[x.index()].iter().map(|x| activate(*activation, *x)).collect();
            }
            Op::Scale { x, by, out } => {
                values[out.index()] = values[x.index()].iter().map(|x| f64::from(*by) * x).collect();
            }
            Op::JoinHeads { a, b, heads, b_dim, out } => {
                let (a_width, b_width) = (program.value(*a).width, program.value(*b).width);
                let rows = values[a.index()].chunks(a_width).zip(values[b.index()].chunks(b_width));
                let mut y = vec![];
                for (a, b) in rows {
                    for (h, a) in a.chunks(a_width / heads).enumerate() {
                        y.extend_from_slice(a);
                        y.extend_from_slice(&b[if b_width == *b_dim { 0 } else { h * b_dim }..][..*b_dim]);
                    }
                }
                values[out.index()] = y;
            }
            Op::ScaleRows { x, by, out } => {
                let width = program.value(*x).width;
                let rows = values[x.index()].chunks(width).zip(&values[by.index()]);
                values[out.index()] = rows.flat_map(|(row, by)| row.iter().map(move |x| by * x)).collect();
            }
            Op::Add { a, b, out } => {
                values[out.index()] = values[a.index()].iter().zip(&values[b.index()]).map(|(a, b)| a + b).collect();
            }
            Op::Softcap { x, cap, out } => {
                let cap = f64::from(*cap);
                values[out.index()] = values[x.index()].iter().map(|v| cap * (v / cap).tanh()).collect();
            }
            Op::TakeWanted { x, out } => {
                let width = program.value(*x).width;
                values[out.index()] =
                    wanted.iter().flat_map(|r| values[x.index()][r * width..][..width].to_vec()).collect();
            }
            other => panic!("{}", program.describe(other)),
        }
    }
    std::mem::take(&mut values[program.output.index()])
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        // The error function by its series, to 1e-15 for |x| < 5, where it is 1 to 1e-12.
        Activation::Gelu => {
            let z = (x / std::f64::consts::SQRT_2).clamp(-5.0, 5.0);
            let (mut term, mut sum) = (z, z);
            for n in 1..200 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            0.5 * x * (1.0 + 2.0 / std::f64::consts::PI.sqrt() * sum)
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}
