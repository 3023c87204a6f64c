//! Which (layer, token) cells of a transfer have been seen: each at most once.

use std::collections::BTreeMap;

use super::range::{LayerRange, TokenRange};

/// Disjoint token intervals, neighbours joined: at most one entry per gap.
#[derive(Debug, Clone, Default)]
struct Intervals(BTreeMap<u32, u32>);

impl Intervals {
    fn overlaps(&self, tokens: TokenRange) -> bool {
        self.0.range(..tokens.end).next_back().is_some_and(|(_, end)| *end > tokens.start)
    }

    fn insert(&mut self, mut tokens: TokenRange) {
        if let Some((start, end)) = self.0.range(..=tokens.start).next_back().map(|(s, e)| (*s, *e))
            && end == tokens.start
        {
            tokens.start = start;
        }
        if let Some(end) = self.0.remove(&tokens.end) {
            tokens.end = end;
        }
        self.0.insert(tokens.start, tokens.end);
    }
}

/// A set of cells. Bounded by layers x tokens of the transfer, and in practice by the number of
/// its gaps.
#[derive(Debug, Clone)]
pub(crate) struct CellSet {
    layers: Vec<Intervals>,
    cells: u64,
}

impl CellSet {
    pub(crate) fn new(layers: u32) -> Self {
        Self { layers: vec![Intervals::default(); layers as usize], cells: 0 }
    }

    /// Cells in the set.
    pub(crate) fn len(&self) -> u64 {
        self.cells
    }

    /// Adds all cells of `layers` x `tokens`; adds none and answers false when one is there already
    /// or a layer does not exist.
    pub(crate) fn insert(&mut self, layers: LayerRange, tokens: TokenRange) -> bool {
        let Some(rows) = self.layers.get_mut(layers.start as usize..layers.end as usize) else {
            return false;
        };
        if rows.iter().any(|row| row.overlaps(tokens)) {
            return false;
        }
        if !tokens.is_empty() {
            rows.iter_mut().for_each(|row| row.insert(tokens));
        }
        self.cells += u64::from(layers.len()) * u64::from(tokens.len());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_set_of_pairs(pieces in prop::collection::vec((0u32..5, 1u32..3, 0u32..40, 1u32..12), 0..40)) {
            let mut cells = CellSet::new(4);
            let mut model: HashSet<(u32, u32)> = HashSet::new();
            for (layer, layer_count, token, token_count) in pieces {
                let members: Vec<_> = (layer..layer + layer_count)
                    .flat_map(|l| (token..token + token_count).map(move |t| (l, t))).collect();
                let fits = layer + layer_count <= 4 && members.iter().all(|m| !model.contains(m));
                let inserted = cells.insert(
                    LayerRange::new(layer, layer + layer_count), TokenRange::new(token, token + token_count));
                prop_assert_eq!(inserted, fits);
                if fits {
                    model.extend(members);
                }
                prop_assert_eq!(cells.len(), model.len() as u64);
            }
        }
    }
}
