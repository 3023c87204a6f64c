//! Splits the work of a pass over threads, so that every output element is computed by one thread
//! and in the same way as with any other number of them.

use std::fmt;

use super::activations::Activations;
use super::kernels::Kernels;
use super::packed::{GROUP, Packed};

/// The threads of one engine: the caller's own, or a pool.
pub(super) struct Threads {
    pool: Option<rayon::ThreadPool>,
    count: usize,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("count", &self.count).finish()
    }
}

impl Threads {
    /// `count` threads, at least one.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub(super) fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let builder = || rayon::ThreadPoolBuilder::new().num_threads(count);
        let pool =
            (count > 1).then(|| builder().thread_name(|n| format!("llama-{n}")).build()).transpose()?;
        Ok(Self { pool, count: count.max(1) })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Runs `work` on each part, at most one part per thread.
    pub(super) fn each<T: Send>(&self, parts: Vec<T>, work: impl Fn(T) + Sync) {
        match &self.pool {
            Some(pool) if parts.len() > 1 => pool.scope(|scope| {
                for part in parts {
                    scope.spawn(|_| work(part));
                }
            }),
            _ => parts.into_iter().for_each(work),
        }
    }

    /// Multiplies all rows of activations by a matrix, into `out`: rows as wide as the matrix is high.
    pub(super) fn multiply(
        &self,
        kernels: Kernels,
        matrix: Packed<'_>,
        activations: &Activations,
        out: Vec<&mut [f32]>,
    ) {
        let groups = matrix.shape().groups();
        let count = self.count.min(groups);
        let mut rest = out;
        let mut parts = Vec::with_capacity(count);
        for part in 0..count {
            let range = groups * part / count..groups * (part + 1) / count;
            let width = range.len() * GROUP;
            let (mine, others) = rest.into_iter().map(|row| row.split_at_mut(width.min(row.len()))).unzip();
            rest = others;
            parts.push((range, mine));
        }
        self.each(parts, |(range, mut rows): (_, Vec<&mut [f32]>)| {
            kernels.multiply(matrix, range, activations, &mut rows);
        });
    }
}
