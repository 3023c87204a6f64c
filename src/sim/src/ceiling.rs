//! What a cache without bounds would have had: the most that any routing could reuse.

use std::collections::HashSet;

use armature_router::domain::units::SequenceHash;

/// Every block of every prompt so far: 8 bytes and overhead for each block that is different.
#[derive(Debug, Default)]
pub(crate) struct Ceiling {
    seen: HashSet<SequenceHash>,
}

impl Ceiling {
    /// How many of the first `reusable` blocks of a prompt earlier prompts began with; the prompt counts as earlier from now on.
    pub(crate) fn visit(&mut self, prompt: &[SequenceHash], reusable: usize) -> usize {
        let seen = prompt.iter().take(reusable).take_while(|hash| self.seen.contains(hash)).count();
        // A hash stands for everything before it: what is new begins somewhere and goes on to the end.
        self.seen.extend(&prompt[seen..]);
        seen
    }
}
