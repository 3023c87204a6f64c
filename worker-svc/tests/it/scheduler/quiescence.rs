//! What is true when nothing is left, and what the event log says on the way.

use armature_worker::domain::kv_events::KvEntry;
use armature_worker::domain::report::Settlement;
use armature_worker::domain::request::{FinishReason, RequestKind};

use super::oracle::oracle;
use super::world::{Client, World};

impl World {
    /// A new incarnation: its readers know nothing yet.
    pub(super) fn begin_events_anew(&mut self) {
        self.scheduler.kv_events().begin_anew(self.now);
        self.batches.clear();
        self.kv_set.clear();
    }

    /// Reads the event log and replays it; `snapshot`: compares with a snapshot, too.
    pub(super) fn replay_events(&mut self, snapshot: bool) {
        let mut batches = Vec::new();
        while let Some(batch) = self.scheduler.poll_kv_events(self.now) {
            batches.push(batch);
        }
        let expected = snapshot.then(|| {
            let (snapshot, rest) = self.scheduler.kv_events().snapshot(self.now);
            batches.extend(rest);
            snapshot
        });
        for batch in batches {
            assert_eq!(batch.number, self.batches.len() as u64 + 1, "numbered without a hole");
            for entry in &batch.stored {
                assert!(self.kv_set.insert(*entry), "stored on absent -> present");
            }
            for entry in &batch.removed {
                assert!(self.kv_set.remove(entry), "removed on present -> absent");
            }
            let pairs = self.kv_set.iter().map(|(hash, tier)| (hash.0, tier.0));
            assert_eq!(batch.digest, armature_kv_hash::set_digest(pairs), "digest after the batch");
            assert_eq!(batch.count, self.kv_set.len() as u64, "count after the batch");
            self.batches.push(batch);
        }
        if let Some(expected) = expected {
            let mut entries: Vec<KvEntry> = self.kv_set.iter().copied().collect();
            entries.sort_unstable();
            assert_eq!(entries, expected.entries);
            assert_eq!(expected.at, self.batches.len() as u64);
        }
    }

    /// Peers and clients do their part until nothing is left; every request has ended then.
    pub(super) fn finish_everything(&mut self) {
        for _ in 0..20_000 {
            for request in self.landings() {
                self.release_quarantine(request);
                self.advance_landing(request, true, true);
            }
            if !self.step() {
                for request in self.sources() {
                    self.release_source(request);
                }
                if self.scheduler.is_idle() && self.landings.is_empty() {
                    return self.assert_at_rest();
                }
            }
        }
        panic!(
            "requests never end: {:?}",
            self.clients.values().filter(|c| !c.is_over()).collect::<Vec<_>>()
        );
    }

    pub(super) fn assert_at_rest(&mut self) {
        self.replay_events(true);
        let report = self.scheduler.report(None, self.now);
        let config = self.scheduler.config();
        assert_eq!((report.running, report.waiting, report.uncomputed_prefill_tokens), (0, 0, 0));
        assert_eq!((report.blocks_active, report.blocks_promised, report.blocks_quarantined), (0, 0, 0));
        assert_eq!(report.blocks_cached + report.blocks_free, config.blocks);
        assert_eq!(report.blocks_cached, self.kv_set.len(), "what is cached is what was told");
        assert!(self.settled.values().all(|state| *state != Settlement::Admitted));
        assert!(self.clients.values().all(Client::is_over));
    }

    /// A choice that ended by itself has exactly the tokens of the oracle; any other has a prefix of them.
    pub(super) fn assert_outputs(&self) {
        for (id, client) in &self.clients {
            for choice in &client.submission.choices {
                let submission = &client.submission;
                let context = self.scheduler.context_length();
                let (tokens, finish) =
                    oracle(&submission.root, &submission.prompt, choice, &submission.stop, context);
                let got = &client.generated[&choice.index];
                assert!(tokens.starts_with(got), "{id:?}/{}: {got:?} of {tokens:?}", choice.index);
                let ended = client.ended.get(&choice.index);
                let by_itself = matches!(ended, Some(FinishReason::Stop(_) | FinishReason::Length));
                if by_itself && !matches!(submission.kind, RequestKind::Source { .. }) {
                    assert_eq!((got, ended), (&tokens, Some(&finish)), "{id:?}/{}", choice.index);
                }
            }
        }
    }
}
