//! A model as a program.

use crate::{KvLayer, Op, RopeTable};
use cupola_quant::Format;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// The place in the program's list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
id!(
    /// Names a [`Value`] of a program.
    ValueId
);
id!(
    /// Names a [`Weight`] of a program.
    WeightId
);
id!(
    /// Names a [`Vector`] of a program.
    VectorId
);

/// A tensor that flows through a program: `[rows, width]` of f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// For people: `l3.q`.
    pub name: String,
    /// Elements of a row.
    pub width: usize,
    /// Which rows it has.
    pub rows: Rows,
}

/// Which rows of a step a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One for every token.
    All,
    /// One for every token whose outputs are wanted.
    Wanted,
}

/// A matrix `[n_out, n_in]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The checkpoint's name for it, or a name derived from it where it is part of a larger tensor.
    pub name: String,
    /// Rows.
    pub n_out: usize,
    /// Columns.
    pub n_in: usize,
    /// How its rows are stored.
    pub format: Format,
}

impl Weight {
    /// Bytes of the matrix as stored.
    pub fn bytes(&self) -> usize {
        self.format.row_bytes(self.n_in).unwrap_or(0).saturating_mul(self.n_out)
    }
}

/// A vector of f32 parameters: norm weights, biases, sinks.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// The checkpoint's name for it.
    pub name: String,
    /// Elements.
    pub len: usize,
}

/// Ops in order, and everything they name.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Rows of the embedding matrix: token ids are under this.
    pub vocab: usize,
    /// Every value, by [`ValueId`].
    pub values: Vec<Value>,
    /// Every weight matrix, by [`WeightId`].
    pub weights: Vec<Weight>,
    /// Every parameter vector, by [`VectorId`].
    pub vectors: Vec<Vector>,
    /// Rotary frequencies, by [`Rope::table`](crate::Rope::table).
    pub ropes: Vec<RopeTable>,
    /// Caches, by [`Attention::layer`](crate::Attention::layer).
    pub kv: Vec<KvLayer>,
    /// The ops, in an order in which they can run.
    pub ops: Vec<Op>,
    /// What a step returns: logits, or hidden states.
    pub output: ValueId,
}

impl Program {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The weight with this id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }

    /// The vector with this id.
    pub fn vector(&self, id: VectorId) -> &Vector {
        &self.vectors[id.index()]
    }

    /// Bytes of all weights and vectors as stored.
    pub fn weight_bytes(&self) -> usize {
        let matrices: usize = self.weights.iter().map(Weight::bytes).sum();
        matrices + self.vectors.iter().map(|v| 4 * v.len).sum::<usize>()
    }

    /// Bytes that one token takes in all caches.
    pub fn token_kv_bytes(&self, kv: crate::KvType) -> usize {
        self.kv.iter().map(|l| l.token_bytes(kv)).sum()
    }

    /// Bytes of weights that one single-token step reads, and multiply-adds that it does per token, logits included. Of
    /// experts only as many count as a token uses.
    pub fn step_cost(&self) -> (usize, usize) {
        let mut cost = (0, 0);
        for op in self.ops.iter().filter(|op| !matches!(op, Op::Embed { .. })) {
            let weights = op.weights();
            let sum = |f: fn(&Weight) -> usize| weights.iter().map(|w| f(self.weight(*w))).sum::<usize>();
            let (bytes, products) = (sum(Weight::bytes), sum(|w| w.n_out * w.n_in));
            let share = |n: usize| match op {
                Op::Moe(m) => n / m.experts.len().max(1) * m.routing.top_k,
                _ => n,
            };
            cost = (cost.0 + share(bytes), cost.1 + share(products));
        }
        cost
    }
}
