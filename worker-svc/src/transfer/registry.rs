//! The open transfers of an endpoint, by id, and no more than so many.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ids::TransferId;
use super::reason::OpenError;

#[derive(Debug)]
pub(crate) struct Registry<T> {
    open: Mutex<HashMap<TransferId, Arc<T>>>,
    limit: usize,
}

impl<T> Registry<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: Mutex::new(HashMap::new()), limit }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<TransferId, Arc<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, transfer: TransferId, core: Arc<T>) -> Result<(), OpenError> {
        let mut open = self.open();
        let full = open.len() >= self.limit;
        match open.entry(transfer) {
            Entry::Occupied(_) => Err(OpenError::InUse),
            Entry::Vacant(_) if full => Err(OpenError::TooManyTransfers),
            Entry::Vacant(place) => {
                place.insert(core);
                Ok(())
            }
        }
    }

    pub(crate) fn find(&self, transfer: TransferId) -> Option<Arc<T>> {
        self.open().get(&transfer).cloned()
    }

    pub(crate) fn remove(&self, transfer: TransferId) {
        self.open().remove(&transfer);
    }

    pub(crate) fn len(&self) -> usize {
        self.open().len()
    }
}
