//! The other worker of a hand-off: it writes landing windows, late ones of broken transfers too, and
//! reads what sources have told.

use armature_worker::domain::ids::{BlockId, RequestId, WindowIndex};
use armature_worker::domain::scheduler::Fallback;

use super::oracle::{chain, next_token, sampled};
use super::world::World;

/// The peer's side of a landing transfer.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) begun: bool,
    pub(super) first_tokens_sent: bool,
    pub(super) complete: bool,
    pub(super) windows: Vec<(std::ops::Range<usize>, Vec<BlockId>, bool)>,
    /// Windows may still be written: until the quarantine is released.
    pub(super) broken: bool,
}

/// What a source has told of its KV.
#[derive(Debug, Default)]
pub(super) struct SourceTold {
    pub(super) computed_to: usize,
    pub(super) blocks: Vec<BlockId>,
}
impl World {
    pub(super) fn break_landing(&mut self, request: RequestId, quarantined: Option<bool>) {
        let landing = self.landings.get_mut(&request).expect("aborted after admission");
        landing.broken = true;
        let writable = landing.windows.iter().any(|(.., landed)| !landed);
        if let Some(quarantined) = quarantined {
            assert_eq!(writable, quarantined, "quarantine is told");
        }
        if !writable {
            self.landings.remove(&request);
        }
    }

    pub(super) fn source_told(&mut self, request: RequestId, computed_to: usize, blocks: Vec<BlockId>) {
        let told = self.sources.entry(request).or_default();
        assert!(computed_to >= told.computed_to && blocks.starts_with(&told.blocks), "told blocks stay");
        *told = SourceTold { computed_to, blocks };
        self.verify_source(request);
    }

    /// What a source has told is there, and stays.
    fn verify_source(&self, request: RequestId) {
        let Some(told) = self.sources.get(&request) else { return };
        let submission = &self.clients[&request].submission;
        let mut tokens = submission.prompt.to_vec();
        tokens.extend(&submission.choices[0].generated);
        let chained = chain(&submission.root, &tokens);
        for (position, tag) in chained.iter().enumerate().take(told.computed_to) {
            let slot = (told.blocks[position / self.block_size()], position % self.block_size());
            assert_eq!(self.slots.get(&slot), Some(tag), "pinned {slot:?} of {request:?} stays");
        }
    }

    /// The next thing that the prefill worker of a landing does.
    pub(super) fn advance_landing(&mut self, request: RequestId, with_first_tokens: bool, commit: bool) {
        let now = self.now;
        let block_size = self.block_size();
        let Some(landing) = self.landings.get_mut(&request).filter(|landing| !landing.broken) else { return };
        let submission = &self.clients[&request].submission;
        let mut tokens = submission.prompt.to_vec();
        tokens.extend(&submission.choices[0].generated);
        let chained = chain(&submission.root, &tokens);
        if !landing.begun {
            landing.begun = true;
            self.scheduler.landing_begin(request, now).unwrap();
        } else if landing.complete {
            self.landings.remove(&request);
            if commit {
                let _ = self.scheduler.landing_committed(request, now);
            }
        } else if let Some(index) = landing.windows.iter().position(|(.., landed)| !landed) {
            let (range, blocks, landed) = &mut landing.windows[index];
            *landed = true;
            for position in range.clone() {
                let block = blocks[(position - range.start) / block_size];
                self.slots.insert((block, position % block_size), chained[position]);
            }
            if index % 2 == 0 {
                self.scheduler.landing_started(request, WindowIndex(index as u32), now).unwrap();
            }
            self.scheduler.landing_landed(request, WindowIndex(index as u32), now).unwrap();
        } else if !landing.first_tokens_sent {
            landing.first_tokens_sent = true;
            if with_first_tokens {
                let position = submission.choices[0].generated.len();
                let last = *chained.last().unwrap();
                let first = submission
                    .choices
                    .iter()
                    .map(|choice| (choice.index, sampled(next_token(last, choice.index, position))));
                let first = first.collect();
                self.scheduler.landing_first_tokens(request, first, now).unwrap();
            }
        } else if landing.windows.last().is_some_and(|(tokens, ..)| tokens.end == landing.to) {
            landing.complete = true;
            self.scheduler.landing_complete(request, now).unwrap();
        }
        self.settle();
    }

    /// Sends the first tokens early: before any window.
    pub(super) fn first_tokens_early(&mut self, request: RequestId, keep: usize) {
        let Some(landing) = self.landings.get_mut(&request) else { return };
        if landing.broken || landing.first_tokens_sent || landing.complete {
            return;
        }
        landing.first_tokens_sent = true;
        let submission = &self.clients[&request].submission;
        let mut tokens = submission.prompt.to_vec();
        tokens.extend(&submission.choices[0].generated);
        let last = *chain(&submission.root, &tokens).last().unwrap();
        let position = submission.choices[0].generated.len();
        let first: Vec<_> = submission
            .choices
            .iter()
            .take(keep)
            .map(|choice| (choice.index, sampled(next_token(last, choice.index, position))))
            .collect();
        self.scheduler.landing_first_tokens(request, first, self.now).unwrap();
        self.settle();
    }

    pub(super) fn fail_landing(&mut self, request: RequestId, local: bool) {
        let fallback = if local { Fallback::Local } else { Fallback::Fail("peer died".to_owned()) };
        let admitted =
            self.landings.get(&request).is_some_and(|landing| !landing.broken && !landing.complete);
        if self.scheduler.landing_failed(request, fallback, self.now).is_ok() && admitted {
            self.break_landing(request, None);
        }
        self.settle();
    }

    /// The broken transfers' last writes arrive, then the proof that no more will.
    pub(super) fn release_quarantine(&mut self, request: RequestId) {
        let Some(landing) = self.landings.get(&request).filter(|landing| landing.broken) else { return };
        for (_, blocks, _) in landing.windows.iter().filter(|(.., landed)| !landed) {
            for block in blocks {
                for slot in 0..self.scheduler.config().block_size {
                    self.slots.insert((*block, slot), 0xdead);
                }
            }
        }
        self.landings.remove(&request);
        self.scheduler.quarantine_released(request, self.now);
        self.settle();
    }

    pub(super) fn release_source(&mut self, request: RequestId) {
        self.verify_source(request);
        self.sources.remove(&request);
        self.scheduler.source_released(request, self.now);
        self.settle();
    }

    pub(super) fn landings(&self) -> Vec<RequestId> {
        self.landings.keys().copied().collect()
    }

    pub(super) fn sources(&self) -> Vec<RequestId> {
        self.sources.keys().copied().collect()
    }
}
