//! Latent attention of DeepSeek (arXiv:2405.04434): keys and values are products of a short vector, the latent.

use crate::ModelError;
use crate::names::LatentNames;
use crate::parameters::Loader;
use cupola_graph::{Norm, NormKind, RopeStyle, ValueId};

/// Widths of what queries, keys and values are made of.
///
/// Of each query and key head the last `rope` elements rotate; those of keys are the same for all heads. Here keys and values
/// are computed from the latent before they are stored, so the cache is as large as without a latent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latent {
    /// Of the latent of queries; absent: they are products of the layer's input.
    pub query: Option<usize>,
    /// Of the latent of keys and values.
    pub key_value: usize,
    /// Elements of a head that rotate.
    pub rope: usize,
}

/// What the matrices around the latents have to fit.
pub(crate) struct Heads {
    pub count: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub style: RopeStyle,
    /// Index of the rotary frequencies.
    pub table: Option<usize>,
    pub eps: f32,
}

impl Latent {
    /// Refuses widths that cannot be.
    pub fn check(&self, key_dim: usize) -> Result<(), ModelError> {
        let widths = [("of queries", self.query.unwrap_or(1)), ("of keys and values", self.key_value)];
        if let Some((what, _)) = widths.iter().find(|(_, width)| *width == 0 || *width > u32::MAX as usize) {
            return Err(ModelError::hyperparameter(format!("the size of the latent {what}"), "from 1 to 2^32", 0));
        }
        if self.rope == 0 || self.rope >= key_dim {
            let expected = format!("from 1 to {}, the size of a key head", key_dim.saturating_sub(1));
            return Err(ModelError::hyperparameter("the rotated elements of a head", expected, self.rope));
        }
        Ok(())
    }

    /// Queries, keys and values of a layer, rotated; `name` makes names of tensors of names within the layer.
    pub fn build(
        &self,
        w: &mut Loader,
        names: &LatentNames,
        name: &dyn Fn(&str) -> String,
        h: ValueId,
        hidden: usize,
        heads: &Heads,
    ) -> Result<[ValueId; 3], ModelError> {
        let Heads { count, key_dim, value_dim, style, table, eps } = *heads;
        let still = key_dim - self.rope;
        let weight = |part: &str| format!("{}.weight", name(part));
        let norm = |w: &mut Loader, part: &str, group: usize, x: ValueId| {
            let weight = Some(w.vector(&weight(part), group, 0.0)?);
            Ok::<_, ModelError>(w.builder.norm(x, Norm { kind: NormKind::Rms, group, weight, bias: None, eps }))
        };

        let (from, width, part) = match self.query {
            Some(width) => {
                let down = w.matrix(&weight(names.q_a), width, hidden)?;
                let latent = w.builder.linear(h, down, None);
                (norm(w, names.q_a_norm, width, latent)?, width, names.q_b)
            }
            None => (h, hidden, names.q),
        };
        let [q_still, q_rope] = w.by_head(&weight(part), count, [still, self.rope], width)?;
        let [q_still, q_rope] = w.builder.linears(from, [(q_still, None), (q_rope, None)]);

        let [down, k_rope] = w.stacked(&weight(names.kv_a), [self.key_value, self.rope], hidden)?;
        let [latent, k_rope] = w.builder.linears(h, [(down, None), (k_rope, None)]);
        let latent = norm(w, names.kv_a_norm, self.key_value, latent)?;
        let [k_still, v] = w.by_head(&weight(names.kv_b), count, [still, value_dim], self.key_value)?;
        let [k_still, v] = w.builder.linears(latent, [(k_still, None), (v, None)]);

        let g = &mut w.builder;
        let rotate = |g: &mut cupola_graph::Builder, x| table.map_or(x, |table| g.rope(x, self.rope, style, table));
        let (q_rope, k_rope) = (rotate(g, q_rope), rotate(g, k_rope));
        let q = g.join_heads(q_still, q_rope, count, self.rope);
        let k = g.join_heads(k_still, k_rope, count, self.rope);
        Ok([q, k, v])
    }
}
