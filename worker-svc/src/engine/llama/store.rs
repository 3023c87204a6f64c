//! Weights shared by the engines of a process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::cache::ModelDigest;
use super::weights::Weights;

/// Weights in use, by model digest. It keeps none alive: it is bounded by the engines that do.
#[derive(Default)]
pub struct WeightStore {
    shared: Mutex<HashMap<ModelDigest, Weak<Weights>>>,
}

impl fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightStore").finish_non_exhaustive()
    }
}

impl WeightStore {
    /// A store that shares nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The weights of `digest`, loaded by `load` unless an engine has them. Others wait meanwhile,
    /// so that a model is loaded once.
    pub(super) fn get_or_load<E>(
        &self,
        digest: &ModelDigest,
        load: impl FnOnce() -> Result<Weights, E>,
    ) -> Result<Arc<Weights>, E> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, weights| weights.strong_count() > 0);
        if let Some(weights) = shared.get(digest).and_then(Weak::upgrade) {
            return Ok(weights);
        }
        let weights = Arc::new(load()?);
        shared.insert(*digest, Arc::downgrade(&weights));
        Ok(weights)
    }
}
