//! Which router is asked, and whom to ask when it does not answer.
//!
//! READY routers of a routing group (namespace, kv_identity) in descending order of
//! `XXH3-64(seed 0, u32-LE length and bytes of each part of the group ‖ LE64(router instance id))`: every frontend asks the same one, so that
//! its predictions are whole. SUSPECT ones come behind, and behind those the ones that failed within the last 5 s of health: a router is back
//! after [`BACK_AFTER`] without a failure. When nobody is left the failed ones are asked: doubt is no reason to refuse a request.

use std::collections::HashMap;
use std::time::Duration;

use armature_contracts::ids::InstanceId;
use xxhash_rust::xxh3::xxh3_64;

use super::member::{Kind, Member, Members, Status};

/// Health that a failed router must show before it is asked again.
pub const BACK_AFTER: Duration = Duration::from_secs(5);

/// What routers are partitioned by. Never an alias or adapter name: two routers would book the same workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group<'a> {
    /// The deployment.
    pub namespace: &'a str,
    /// Raw digest of the weights.
    pub kv_identity: &'a [u8],
}

/// The rank of a router in a group: higher is asked first.
pub fn score(group: Group<'_>, router: InstanceId) -> u64 {
    let mut key = Vec::with_capacity(group.namespace.len() + group.kv_identity.len() + 16);
    for part in [group.namespace.as_bytes(), group.kv_identity] {
        key.extend_from_slice(&(part.len() as u32).to_le_bytes());
        key.extend_from_slice(part);
    }
    key.extend_from_slice(&router.0.to_le_bytes());
    xxh3_64(&key)
}

/// Routers that failed, and since when they have been well again. Times are since any fixed origin.
#[derive(Debug, Default)]
pub struct Failures {
    /// `None`: not seen well since it failed.
    since: HashMap<InstanceId, Option<Duration>>,
}

impl Failures {
    /// The router did not answer.
    pub fn failed(&mut self, router: InstanceId) {
        self.since.insert(router, None);
    }

    /// The result of a probe of a failed router.
    pub fn probed(&mut self, router: InstanceId, well: bool, now: Duration) {
        let Some(since) = self.since.get_mut(&router) else { return };
        match (well, *since) {
            (false, _) => *since = None,
            (true, None) => *since = Some(now),
            (true, Some(start)) if now.saturating_sub(start) >= BACK_AFTER => {
                self.since.remove(&router);
            }
            (true, Some(_)) => {}
        }
    }

    /// Forgets routers that are no members, so that the list is bounded by the view.
    pub fn keep(&mut self, members: &Members) {
        self.since.retain(|router, _| members.contains_key(router));
    }

    /// Routers that are failed now: to be probed.
    pub fn pending(&self) -> Vec<InstanceId> {
        self.since.keys().copied().collect()
    }

    fn contains(&self, router: InstanceId) -> bool {
        self.since.contains_key(&router)
    }
}

/// Routers in the order in which they are asked.
pub fn order<'a>(members: &'a Members, group: Group<'_>, failures: &Failures) -> Vec<&'a Member> {
    let mut routers: Vec<_> = members
        .values()
        .filter(|member| member.kind == Kind::Router)
        .filter(|member| matches!(member.status, Status::Ready | Status::Suspect))
        .collect();
    routers.sort_by_key(|member| {
        let suspect = member.status == Status::Suspect;
        (failures.contains(member.id), suspect, std::cmp::Reverse(score(group, member.id)), member.id)
    });
    routers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;
    use proptest::prelude::*;

    const GROUP: Group<'static> = Group { namespace: "default", kv_identity: b"abc" };

    fn routers(ids: impl IntoIterator<Item = u64>) -> Members {
        let member = |id| Member {
            id: InstanceId(id),
            kind: Kind::Router,
            status: Status::Ready,
            address: String::new(),
            http: None,
            card: Digest::default(),
        };
        ids.into_iter().map(|id| (InstanceId(id), member(id))).collect()
    }

    fn ids(members: &Members, failures: &Failures) -> Vec<u64> {
        order(members, GROUP, failures).iter().map(|member| member.id.0).collect()
    }

    #[test]
    fn the_score_is_the_documented_hash() {
        let mut key = Vec::new();
        key.extend_from_slice(&[7, 0, 0, 0]);
        key.extend_from_slice(b"default");
        key.extend_from_slice(&[3, 0, 0, 0]);
        key.extend_from_slice(b"abc");
        key.extend_from_slice(&9_u64.to_le_bytes());
        assert_eq!(score(GROUP, InstanceId(9)), xxh3_64(&key));
    }

    #[test]
    fn a_failed_router_is_last_until_it_was_well_for_five_seconds() {
        let members = routers(1..=3);
        let mut failures = Failures::default();
        let well = ids(&members, &failures);
        let first = InstanceId(well[0]);
        failures.failed(first);
        assert_eq!(ids(&members, &failures), [well[1], well[2], well[0]]);
        let at = Duration::from_secs;
        for second in 1..=5 {
            failures.probed(first, true, at(second));
        }
        assert_eq!(failures.pending(), [first]);
        failures.probed(first, false, at(6));
        failures.probed(first, true, at(7));
        failures.probed(first, true, at(12));
        assert_eq!(ids(&members, &failures), well);
    }

    #[test]
    fn a_suspect_router_is_asked_after_the_ready_ones_and_a_draining_one_never() {
        let mut members = routers(1..=3);
        let well = ids(&members, &Failures::default());
        members.entry(InstanceId(well[0])).and_modify(|member| member.status = Status::Suspect);
        members.entry(InstanceId(well[1])).and_modify(|member| member.status = Status::Draining);
        assert_eq!(ids(&members, &Failures::default()), [well[2], well[0]]);
    }

    proptest! {
        #[test]
        fn losing_a_router_moves_only_its_groups(known in prop::collection::btree_set(1_u64.., 2..8), lost in 0_usize..8) {
            let all: Vec<u64> = ids(&routers(known.iter().copied()), &Failures::default());
            let gone = all[lost % all.len()];
            let fewer = ids(&routers(known.into_iter().filter(|id| *id != gone)), &Failures::default());
            let expected: Vec<u64> = all.into_iter().filter(|id| *id != gone).collect();
            prop_assert_eq!(fewer, expected);
        }
    }
}
