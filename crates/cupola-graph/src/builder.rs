//! Builds programs, checking widths as it goes.

use crate::*;
use cupola_quant::Format;

/// Builds a [`Program`] op by op. Each method adds one op and returns its output; the first mistake is remembered and
/// comes out of [`Builder::finish`], so that model code reads without `?` on every line.
pub struct Builder {
    program: Program,
    scope: String,
    error: Option<GraphError>,
}

impl Builder {
    /// An empty program over a vocabulary.
    pub fn new(vocab: usize) -> Builder {
        let program = Program {
            vocab,
            values: vec![],
            weights: vec![],
            vectors: vec![],
            ropes: vec![],
            kv: vec![],
            ops: vec![],
            output: ValueId(0),
        };
        Builder { program, scope: String::new(), error: None }
    }

    /// Prefix of the names of the values that follow, such as `l3`.
    pub fn scope(&mut self, name: impl Into<String>) {
        self.scope = name.into();
    }

    /// Declares a value that comes from outside the program, for programs that are a part of a model.
    pub fn input(&mut self, name: &str, width: usize, rows: Rows) -> ValueId {
        self.value(name, width, rows)
    }

    /// Declares a weight matrix.
    pub fn weight(&mut self, name: impl Into<String>, n_out: usize, n_in: usize, format: Format) -> WeightId {
        let name = name.into();
        if n_out == 0 || n_in == 0 {
            self.attribute(&name, format!("a weight of {n_out} x {n_in} has no elements"));
        } else if format.row_bytes(n_in).is_none() {
            let block = format.layout().block;
            self.attribute(&name, format!("rows of {n_in} are not whole blocks of {format}, which have {block}"));
        }
        self.program.weights.push(Weight { name, n_out, n_in, format });
        WeightId(self.program.weights.len() as u32 - 1)
    }

    /// Declares a parameter vector.
    pub fn vector(&mut self, name: impl Into<String>, len: usize) -> VectorId {
        self.program.vectors.push(Vector { name: name.into(), len });
        VectorId(self.program.vectors.len() as u32 - 1)
    }

    /// Declares rotary frequencies; equal tables are kept once.
    pub fn rope_table(&mut self, table: RopeTable) -> usize {
        let ropes = &mut self.program.ropes;
        ropes.iter().position(|t| *t == table).unwrap_or_else(|| {
            ropes.push(table);
            ropes.len() - 1
        })
    }

    /// Declares an attention layer's cache.
    pub fn kv_layer(&mut self, layer: KvLayer) -> usize {
        self.program.kv.push(layer);
        self.program.kv.len() - 1
    }

    /// Width of a value.
    pub fn width(&self, x: ValueId) -> usize {
        self.program.value(x).width
    }

    /// Rows of the embedding matrix for the step's tokens.
    pub fn embed(&mut self, table: WeightId, scale: f32) -> ValueId {
        let (rows, width) = (self.program.weight(table).n_out, self.program.weight(table).n_in);
        if rows != self.program.vocab {
            let message = format!("the table has {rows} rows for a vocabulary of {}", self.program.vocab);
            self.fail(GraphError::Attribute { op: "embed".into(), message });
        }
        let out = self.value("embed", width, Rows::All);
        self.push(Op::Embed { table, scale, out }, out)
    }

    /// Root-mean-square norm over whole rows.
    pub fn rms_norm(&mut self, x: ValueId, weight: VectorId, eps: f32) -> ValueId {
        let group = self.width(x);
        self.norm(x, Norm { kind: NormKind::Rms, group, weight: Some(weight), bias: None, eps })
    }

    /// Any norm.
    pub fn norm(&mut self, x: ValueId, norm: Norm) -> ValueId {
        let (width, rows) = self.shape(x);
        if norm.group == 0 || !width.is_multiple_of(norm.group) {
            self.attribute("norm", format!("groups of {} do not divide a row of {width}", norm.group));
        }
        for v in [norm.weight, norm.bias].into_iter().flatten() {
            self.expect_vector("norm", v, norm.group);
        }
        let out = self.value("norm", width, rows);
        self.push(Op::Norm { x, norm, out }, out)
    }

    /// One matrix product.
    pub fn linear(&mut self, x: ValueId, weight: WeightId, bias: Option<VectorId>) -> ValueId {
        let [y] = self.linears(x, [(weight, bias)]);
        y
    }

    /// `residual + weight . x (+ bias)`.
    pub fn linear_add(&mut self, x: ValueId, weight: WeightId, bias: Option<VectorId>, residual: ValueId) -> ValueId {
        let y = self.linear(x, weight, bias);
        self.add(residual, y)
    }

    /// Matrix products that share an input.
    pub fn linears<const N: usize>(&mut self, x: ValueId, jobs: [(WeightId, Option<VectorId>); N]) -> [ValueId; N] {
        let (width, rows) = self.shape(x);
        let jobs = jobs.map(|(weight, bias)| {
            let Weight { n_out, n_in, ref name, .. } = *self.program.weight(weight);
            let name = name.clone();
            self.expect_width("linears", &name, width, n_in);
            if let Some(b) = bias {
                self.expect_vector("linears", b, n_out);
            }
            let out = self.value(&name, n_out, rows);
            Linear { weight, bias, epilogue: Epilogue::Store, out }
        });
        let outs = std::array::from_fn(|i| jobs[i].out);
        self.program.ops.push(Op::Linears(Linears { x, norm: None, jobs: jobs.into() }));
        outs
    }

    /// Rotary position embedding of every head.
    pub fn rope(&mut self, x: ValueId, head_dim: usize, style: RopeStyle, table: usize) -> ValueId {
        let (width, rows) = self.shape(x);
        let rotary = self.program.ropes[table].rotary_dim();
        if head_dim == 0 || !width.is_multiple_of(head_dim) || rotary > head_dim {
            self.attribute("rope", format!("{rotary} rotated of heads of {head_dim} in a row of {width}"));
        }
        let out = self.value("rope", width, rows);
        self.push(Op::Rope(Rope { x, head_dim, style, table, out }), out)
    }

    /// Attention over the layer's cache; `out` of the argument is ignored.
    pub fn attention(&mut self, mut a: Attention) -> ValueId {
        let KvLayer { heads, key_dim, value_dim } = self.program.kv[a.layer];
        if heads == 0 || a.heads == 0 || !a.heads.is_multiple_of(heads) {
            self.attribute(
                "attention",
                format!("{} query heads are not a multiple of {heads} key-value heads", a.heads),
            );
        }
        if a.window == Some(0) || a.softcap.is_some_and(|c| c <= 0.0) {
            self.attribute("attention", format!("window {:?} and softcap {:?} must be positive", a.window, a.softcap));
        }
        for (what, value, width) in
            [("q", a.q, a.heads * key_dim), ("k", a.k, heads * key_dim), ("v", a.v, heads * value_dim)]
        {
            let found = self.width(value);
            self.expect_width("attention", what, width, found);
            self.expect_rows("attention", what, Rows::All, value);
        }
        if let Some(s) = a.sink {
            self.expect_vector("attention", s, a.heads);
        }
        a.out = self.value("attention", a.heads * value_dim, Rows::All);
        let out = a.out;
        self.push(Op::Attention(a), out)
    }

    /// A mixture of experts; `out` of the argument is ignored.
    pub fn moe(&mut self, mut m: Moe) -> ValueId {
        let (n_in, rows) = self.shape(m.x);
        let (count, found) = (m.experts.len(), self.width(m.logits));
        self.expect_width("moe", "the logits", count, found);
        self.expect_rows("moe", "the logits", rows, m.logits);
        let Routing { top_k, groups, choice_bias, scale, .. } = m.routing;
        if top_k == 0 || top_k > count {
            self.attribute("moe", format!("{top_k} of {count} experts cannot be chosen"));
        }
        if !scale.is_finite() {
            self.attribute("moe", format!("the scale {scale} is not a number"));
        }
        if let Some(Groups { count: groups, top_k: chosen, best }) = groups {
            let size = count.checked_div(groups).filter(|_| groups > 0 && count.is_multiple_of(groups)).unwrap_or(0);
            if !(1..=2).contains(&best) || size < best || !(1..=groups).contains(&chosen) || size * chosen < top_k {
                let message = format!(
                    "{top_k} of {count} experts cannot be chosen from {chosen} of {groups} groups by their best {best}"
                );
                self.attribute("moe", message);
            }
        }
        if let Gating::ClampedSwiglu { alpha, limit } = m.gating
            && !(alpha.is_finite() && limit > 0.0)
        {
            self.attribute("moe", format!("alpha {alpha} and limit {limit} must be numbers, the limit positive"));
        }
        if let Some(bias) = choice_bias {
            self.expect_vector("moe", bias, count);
        }
        let width = m.experts.first().map_or(0, |e| self.program.weight(e.gate.0).n_out);
        let n_out = m.experts.first().map_or(0, |e| self.program.weight(e.down.0).n_out);
        for Expert { gate, up, down } in &m.experts {
            for ((weight, bias), inputs, outputs) in [(gate, n_in, width), (up, n_in, width), (down, width, n_out)] {
                let Weight { n_out: found_out, n_in: found_in, ref name, .. } = *self.program.weight(*weight);
                let name = name.clone();
                self.expect_width("moe", &format!("the input of {name}"), inputs, found_in);
                self.expect_width("moe", &format!("the output of {name}"), outputs, found_out);
                if let Some(bias) = bias {
                    self.expect_vector("moe", *bias, outputs);
                }
            }
        }
        m.out = self.value("moe", n_out, rows);
        let out = m.out;
        self.push(Op::Moe(m), out)
    }

    /// Each of the `heads` heads of `a` followed by that of `b`, of `b_dim` elements, or by the only one that `b` has.
    pub fn join_heads(&mut self, a: ValueId, b: ValueId, heads: usize, b_dim: usize) -> ValueId {
        let (a_width, rows) = self.shape(a);
        let b_width = self.width(b);
        self.expect_rows("join_heads", "the second operand", rows, b);
        if heads == 0 || !a_width.is_multiple_of(heads) || ![b_dim, heads * b_dim].contains(&b_width) {
            let message = format!("{heads} heads in a row of {a_width}, of {b_dim} in one of {b_width}");
            self.attribute("join_heads", message);
        }
        let out = self.value("heads", a_width + heads * b_dim, rows);
        self.push(Op::JoinHeads { a, b, heads, b_dim, out }, out)
    }

    /// `by * x`, a number for each row.
    pub fn scale_rows(&mut self, x: ValueId, by: ValueId) -> ValueId {
        let (width, rows) = self.shape(x);
        let found = self.width(by);
        self.expect_width("scale_rows", "the factor", 1, found);
        self.expect_rows("scale_rows", "the factor", rows, by);
        let out = self.value("scale_rows", width, rows);
        self.push(Op::ScaleRows { x, by, out }, out)
    }

    /// `activation(gate) * up`.
    pub fn glu(&mut self, gate: ValueId, up: ValueId, activation: Activation) -> ValueId {
        let (width, rows) = self.same_shape("glu", gate, up);
        let out = self.value("glu", width, rows);
        self.push(Op::Glu { gate, up, activation, out }, out)
    }

    /// `activation(x)`.
    pub fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        let (width, rows) = self.shape(x);
        let out = self.value("activate", width, rows);
        self.push(Op::Activate { x, activation, out }, out)
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let (width, rows) = self.same_shape("add", a, b);
        let out = self.value("add", width, rows);
        self.push(Op::Add { a, b, out }, out)
    }

    /// `by * x`; a factor of 1 adds no op.
    pub fn scale(&mut self, x: ValueId, by: f32) -> ValueId {
        if by == 1.0 {
            return x;
        }
        let (width, rows) = self.shape(x);
        let out = self.value("scale", width, rows);
        self.push(Op::Scale { x, by, out }, out)
    }

    /// `cap * tanh(x / cap)`.
    pub fn softcap(&mut self, x: ValueId, cap: f32) -> ValueId {
        if cap <= 0.0 || !cap.is_finite() {
            self.attribute("softcap", format!("the cap must be positive, not {cap}"));
        }
        let (width, rows) = self.shape(x);
        let out = self.value("softcap", width, rows);
        self.push(Op::Softcap { x, cap, out }, out)
    }

    /// Only the rows that the step wants outputs of.
    pub fn take_wanted(&mut self, x: ValueId) -> ValueId {
        self.expect_rows("take_wanted", "x", Rows::All, x);
        let width = self.width(x);
        let out = self.value("wanted", width, Rows::Wanted);
        self.push(Op::TakeWanted { x, out }, out)
    }

    /// The finished program, whose steps return `output`.
    pub fn finish(mut self, output: ValueId) -> Result<Program, GraphError> {
        self.program.output = output;
        self.error.map_or(Ok(self.program), Err)
    }

    fn push(&mut self, op: Op, out: ValueId) -> ValueId {
        self.program.ops.push(op);
        out
    }

    fn value(&mut self, name: &str, width: usize, rows: Rows) -> ValueId {
        let name = if self.scope.is_empty() { name.to_string() } else { format!("{}.{name}", self.scope) };
        self.program.values.push(Value { name, width, rows });
        ValueId(self.program.values.len() as u32 - 1)
    }

    pub(crate) fn shape(&self, x: ValueId) -> (usize, Rows) {
        let v = self.program.value(x);
        (v.width, v.rows)
    }

    fn same_shape(&mut self, op: &str, a: ValueId, b: ValueId) -> (usize, Rows) {
        let (width, rows) = self.shape(a);
        let found = self.width(b);
        self.expect_width(op, "the second operand", width, found);
        self.expect_rows(op, "the second operand", rows, b);
        (width, rows)
    }

    fn named(&self, op: &str) -> String {
        if self.scope.is_empty() { op.to_string() } else { format!("{} {op}", self.scope) }
    }

    fn attribute(&mut self, op: &str, message: String) {
        self.fail(GraphError::Attribute { op: self.named(op), message });
    }

    fn expect_width(&mut self, op: &str, what: &str, expected: usize, found: usize) {
        if expected != found {
            self.fail(GraphError::Width { op: self.named(op), what: what.into(), expected, found });
        }
    }

    fn expect_vector(&mut self, op: &str, v: VectorId, expected: usize) {
        let Vector { name, len } = self.program.vector(v).clone();
        self.expect_width(op, &name, expected, len);
    }

    fn expect_rows(&mut self, op: &str, what: &str, expected: Rows, x: ValueId) {
        let found = self.program.value(x).rows;
        if expected != found {
            self.fail(GraphError::Rows { op: self.named(op), what: what.into(), expected, found });
        }
    }

    fn fail(&mut self, e: GraphError) {
        self.error.get_or_insert(e);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vocabulary 10, width 8.
    fn start() -> (Builder, ValueId) {
        let mut g = Builder::new(10);
        let table = g.weight("embed", 10, 8, Format::F32);
        let x = g.embed(table, 1.0);
        (g, x)
    }

    fn error(f: impl FnOnce(&mut Builder, ValueId) -> ValueId) -> String {
        let (mut g, x) = start();
        g.scope("l0");
        let y = f(&mut g, x);
        g.finish(y).unwrap_err().to_string()
    }

    /// An attention of 4 heads over 2 of 4 wide.
    fn attention(g: &mut Builder, [q, k, v]: [usize; 3], change: impl FnOnce(&mut Attention)) -> ValueId {
        let x = ValueId(0);
        let mut make = |n| {
            let w = g.weight("w", n, 8, Format::F32);
            g.linear(x, w, None)
        };
        let (q, k, v) = (make(q), make(k), make(v));
        let layer = g.kv_layer(KvLayer { heads: 2, key_dim: 4, value_dim: 4 });
        let mut a = Attention { q, k, v, layer, heads: 4, scale: 1.0, window: None, softcap: None, sink: None, out: q };
        change(&mut a);
        g.attention(a)
    }

    #[test]
    fn shapes_follow_from_inputs() {
        let (mut g, x) = start();
        let w = g.weight("w", 24, 8, Format::F16);
        let y = g.linear(x, w, None);
        let y = g.take_wanted(y);
        assert_eq!(g.scale(y, 1.0), y, "a factor of 1 adds no op");
        let p = g.finish(y).unwrap();
        assert_eq!((p.value(y).width, p.value(y).rows, p.value(x).rows), (24, Rows::Wanted, Rows::All));
        assert_eq!(p.ops.iter().map(Op::name).collect::<Vec<_>>(), ["embed", "linears", "take_wanted"]);
    }

    #[test]
    fn attention_is_as_wide_as_its_values() {
        let (mut g, _) = start();
        let y = attention(&mut g, [16, 8, 8], |_| {});
        assert_eq!(g.width(y), 16);
        g.finish(y).unwrap();
    }

    #[test]
    fn widths_are_checked() {
        let e = error(|g, x| {
            let w = g.weight("blk.0.q", 4, 9, Format::F32);
            g.linear(x, w, None)
        });
        assert_eq!(e, "l0 linears: blk.0.q is 9 wide, expected 8");
        let e = error(|g, x| {
            let (w, b) = (g.weight("w", 4, 8, Format::F32), g.vector("bias", 5));
            g.linear(x, w, Some(b))
        });
        assert_eq!(e, "l0 linears: bias is 5 wide, expected 4");
        let e = error(|g, x| {
            let w = g.vector("norm", 7);
            g.rms_norm(x, w, 1e-5)
        });
        assert_eq!(e, "l0 norm: norm is 7 wide, expected 8");
        let e = error(|g, x| {
            let w = g.weight("w", 4, 8, Format::F32);
            let y = g.linear(x, w, None);
            g.add(x, y)
        });
        assert_eq!(e, "l0 add: the second operand is 4 wide, expected 8");
        for (widths, what) in [([15, 8, 8], "q is 15"), ([16, 7, 8], "k is 7"), ([16, 8, 9], "v is 9")] {
            let e = error(|g, _| attention(g, widths, |_| {}));
            assert!(e.starts_with(&format!("l0 attention: {what} wide")), "{e}");
        }
        let e = error(|g, _| {
            let sink = g.vector("sink", 2);
            attention(g, [16, 8, 8], |a| a.sink = Some(sink))
        });
        assert_eq!(e, "l0 attention: sink is 2 wide, expected 4");
    }

    #[test]
    fn attributes_are_checked() {
        type Build<'a> = &'a dyn Fn(&mut Builder, ValueId) -> ValueId;
        let linear = |g: &mut Builder, x, n_out, n_in, format| {
            let w = g.weight("w", n_out, n_in, format);
            g.linear(x, w, None)
        };
        let cases: [(&str, Build<'_>); 12] = [
            ("w: a weight of 0 x 8 has no elements", &|g, x| linear(g, x, 0, 8, Format::F32)),
            ("w: a weight of 8 x 0 has no elements", &|g, x| linear(g, x, 8, 0, Format::F32)),
            ("w: rows of 8 are not whole blocks of Q8_0, which have 32", &|g, x| linear(g, x, 8, 8, Format::Q8_0)),
            ("groups of 3 do not divide a row of 8", &|g, x| {
                g.norm(x, Norm { kind: NormKind::Rms, group: 3, weight: None, bias: None, eps: 1e-5 })
            }),
            ("groups of 0", &|g, x| {
                g.norm(x, Norm { kind: NormKind::Rms, group: 0, weight: None, bias: None, eps: 1e-5 })
            }),
            ("6 rotated of heads of 4", &|g, x| {
                let t = g.rope_table(RopeTable::plain(10000.0, 6));
                g.rope(x, 4, RopeStyle::Halves, t)
            }),
            ("2 rotated of heads of 3", &|g, x| {
                let t = g.rope_table(RopeTable::plain(10000.0, 2));
                g.rope(x, 3, RopeStyle::Halves, t)
            }),
            ("5 query heads are not a multiple of 2", &|g, _| attention(g, [20, 8, 8], |a| a.heads = 5)),
            ("0 query heads", &|g, _| attention(g, [16, 8, 8], |a| a.heads = 0)),
            ("window Some(0)", &|g, _| attention(g, [16, 8, 8], |a| a.window = Some(0))),
            ("softcap Some(-1.0)", &|g, _| attention(g, [16, 8, 8], |a| a.softcap = Some(-1.0))),
            ("the cap must be positive, not 0", &|g, x| g.softcap(x, 0.0)),
        ];
        for (message, build) in cases {
            let e = error(build);
            assert!(e.starts_with("l0 ") && e.contains(message), "{e}");
        }
        let mut g = Builder::new(11);
        let table = g.weight("embed", 10, 8, Format::F32);
        let x = g.embed(table, 1.0);
        assert!(g.finish(x).unwrap_err().to_string().contains("10 rows for a vocabulary of 11"));
    }

    #[test]
    fn rows_are_checked() {
        let e = error(|g, x| {
            let y = g.take_wanted(x);
            g.add(x, y)
        });
        assert_eq!(e, "l0 add: the second operand has Wanted rows, expected All");
        let e = error(|g, x| {
            let y = g.take_wanted(x);
            g.take_wanted(y)
        });
        assert_eq!(e, "l0 take_wanted: x has Wanted rows, expected All");
    }

    #[test]
    fn the_first_mistake_is_reported() {
        let e = error(|g, x| {
            let y = g.softcap(x, -2.0);
            g.softcap(y, -3.0)
        });
        assert!(e.contains("-2"), "{e}");
    }

    #[test]
    fn equal_rope_tables_are_kept_once() {
        let mut g = Builder::new(1);
        let tables = [10000.0, 500.0, 10000.0].map(|theta| g.rope_table(RopeTable::plain(theta, 8)));
        assert_eq!(tables, [0, 1, 0]);
    }
}
