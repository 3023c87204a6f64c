use super::*;
use crate::address::Address;
use crate::discovery_client::Component;
use proptest::prelude::*;

const T0: Duration = Duration::from_secs(1000);

fn instance(id: u64, lease_epoch: u64, status: Status) -> Instance {
    let starting = Instance::starting(InstanceId(id), "default", Component::Worker, &Address::mem("worker"));
    Instance { status, lease_epoch, ..starting }
}

fn statuses(membership: &Membership) -> Vec<(u64, Status)> {
    membership.view().instances.values().map(|it| (it.id.0, it.status)).collect()
}

#[test]
fn a_draining_instance_stays_draining_in_doubt() {
    let mut it = Membership::new();
    it.snapshot(1, 1, [instance(1, 1, Status::Draining)], T0);
    it.mark_suspect(InstanceId(1));
    assert_eq!(statuses(&it), [(1, Status::Draining)]);
    assert_eq!(it.suspects().len(), 1);
}

#[test]
fn gone_yields_to_a_higher_epoch_and_lasts() {
    let mut it = Membership::new();
    it.snapshot(1, 1, [instance(1, 5, Status::Ready)], T0);
    let gone = |lease_epoch| Change::Gone { id: InstanceId(1), lease_epoch };
    assert_eq!(it.delta(2, gone(4), T0), Applied::Yes);
    assert_eq!(statuses(&it), [(1, Status::Ready)]);
    assert_eq!(it.delta(3, gone(5), T0), Applied::Yes);
    assert_eq!(statuses(&it), []);
    // A replica that has not heard of it does not bring it back, a new lease does.
    it.snapshot(2, 1, [instance(1, 5, Status::Ready)], T0 + Duration::from_secs(60));
    assert_eq!(statuses(&it), []);
    it.delta(2, Change::Put(instance(1, 6, Status::Ready)), T0 + Duration::from_secs(60));
    assert_eq!(statuses(&it), [(1, Status::Ready)]);
}

#[test]
fn a_suspect_of_discovery_is_kept_while_it_answers() {
    let mut it = Membership::new();
    it.snapshot(1, 1, [instance(1, 1, Status::Suspect)], T0);
    for second in 0..60 {
        it.probed(InstanceId(1), 1, true, T0 + Duration::from_secs(second));
    }
    assert_eq!(statuses(&it), [(1, Status::Suspect)]);
    it.probed(InstanceId(1), 1, false, T0 + Duration::from_secs(60));
    it.probed(InstanceId(1), 1, false, T0 + Duration::from_secs(69));
    assert_eq!(statuses(&it), [(1, Status::Suspect)]);
    it.probed(InstanceId(1), 1, false, T0 + Duration::from_secs(70));
    assert_eq!(statuses(&it), []);
    // A heartbeat seen by discovery alone does not show it; an own probe or a new lease does.
    it.delta(2, Change::Put(instance(1, 2, Status::Ready)), T0 + Duration::from_secs(71));
    assert_eq!(statuses(&it), [(1, Status::Ready)]);
}

/// A server that does not know the consumer's position may tell what it has before it dares a
/// snapshot: these are deltas like any other, and what the snapshot leaves out is only doubted.
#[test]
fn another_server_may_tell_before_its_snapshot() {
    let mut it = Membership::new();
    it.snapshot(1, 100, [instance(1, 1, Status::Ready), instance(2, 1, Status::Ready)], T0);
    assert_eq!(it.delta(200, Change::Put(instance(1, 2, Status::Ready)), T0), Applied::Yes);
    it.snapshot(2, 201, [instance(1, 2, Status::Ready)], T0);
    assert_eq!(statuses(&it), [(1, Status::Ready), (2, Status::Suspect)]);
    assert_eq!(it.delta(202, Change::Put(instance(2, 2, Status::Ready)), T0), Applied::Yes);
    assert_eq!(statuses(&it), [(1, Status::Ready), (2, Status::Ready)]);
}

#[test]
fn one_good_probe_starts_the_limit_anew() {
    let mut it = Membership::new();
    it.snapshot(1, 1, [instance(1, 1, Status::Suspect)], T0);
    for second in 0..100 {
        it.probed(InstanceId(1), 1, second % 9 == 0, T0 + Duration::from_secs(second));
    }
    assert_eq!(statuses(&it), [(1, Status::Suspect)]);
}

#[test]
fn an_undoubted_instance_is_not_removed_by_probes() {
    let mut it = Membership::new();
    it.snapshot(1, 1, [instance(1, 1, Status::Ready)], T0);
    for second in 0..100 {
        it.probed(InstanceId(1), 1, false, T0 + Duration::from_secs(second));
    }
    assert_eq!(statuses(&it), [(1, Status::Ready)]);
}

#[test]
fn tombstones_are_bounded_and_expire() {
    let mut it = Membership::new();
    it.snapshot(1, 0, [], T0);
    for id in 1..=2 * MAX_TOMBSTONES as u64 {
        it.delta(id, Change::Gone { id: InstanceId(id), lease_epoch: 1 }, T0);
    }
    assert_eq!(it.tombstones.epochs.len(), MAX_TOMBSTONES);
    let later = T0 + TOMBSTONE_LIFE;
    it.delta(u64::MAX, Change::Put(instance(2 * MAX_TOMBSTONES as u64, 1, Status::Ready)), later);
    assert_eq!(it.view().instances.len(), 1);
    assert_eq!(it.tombstones.epochs.len(), 0);
}

/// What may happen to a view, in small numbers so that things meet.
#[derive(Clone, Debug)]
enum Event {
    Snapshot { epoch: u64, instances: Vec<(u64, u64, Status)> },
    Put(u64, u64, Status),
    Gone(u64, u64),
    MarkSuspect(u64),
    Probed { id: u64, lease_epoch: u64, alive: bool },
    Away,
    Wait(u64),
}

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![Just(Status::Ready), Just(Status::Draining), Just(Status::Suspect), Just(Status::Starting)]
}

fn event() -> impl Strategy<Value = Event> {
    let member = || (1..4u64, 1..4u64, status());
    prop_oneof![
        (1..3u64, prop::collection::vec(member(), 0..4))
            .prop_map(|(epoch, instances)| Event::Snapshot { epoch, instances }),
        member().prop_map(|(id, epoch, status)| Event::Put(id, epoch, status)),
        (1..4u64, 1..4u64).prop_map(|(id, epoch)| Event::Gone(id, epoch)),
        (1..4u64).prop_map(Event::MarkSuspect),
        (1..4u64, 1..4u64, any::<bool>()).prop_map(|(id, lease_epoch, alive)| Event::Probed {
            id,
            lease_epoch,
            alive
        }),
        Just(Event::Away),
        (1..15u64).prop_map(Event::Wait),
    ]
}

proptest! {
    /// The rules of the module, checked at every step of any history.
    #[test]
    fn an_instance_leaves_only_by_the_rules(events in prop::collection::vec(event(), 1..60)) {
        let mut it = Membership::new();
        let mut now = T0;
        let mut revision = 0;
        for event in events {
            let before = it.view();
            let epoch_before = it.epoch;
            revision += 1;
            match event.clone() {
                Event::Snapshot { epoch, instances } => {
                    let instances = instances.into_iter().map(|(id, lease, status)| instance(id, lease, status));
                    it.snapshot(epoch, revision, instances, now);
                }
                Event::Put(id, lease, status) => {
                    it.delta(revision, Change::Put(instance(id, lease, status)), now);
                }
                Event::Gone(id, lease_epoch) => {
                    it.delta(revision, Change::Gone { id: InstanceId(id), lease_epoch }, now);
                }
                Event::MarkSuspect(id) => it.mark_suspect(InstanceId(id)),
                Event::Probed { id, lease_epoch, alive } => it.probed(InstanceId(id), lease_epoch, alive, now),
                Event::Away => it.set_live(false),
                Event::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            let after = it.view();
            for (id, held) in &before.instances {
                match after.instances.get(id) {
                    Some(kept) => prop_assert!(kept.lease_epoch >= held.lease_epoch, "an older lease won"),
                    None => {
                        let allowed = match &event {
                            Event::Gone(gone, epoch) => *gone == id.0 && *epoch >= held.lease_epoch,
                            Event::Snapshot { epoch, .. } => epoch_before == Some(*epoch),
                            // DRAINING hides the doubt in the status.
                            Event::Probed { id: probed, alive, .. } => {
                                *probed == id.0
                                    && !alive
                                    && matches!(held.status, Status::Suspect | Status::Draining)
                            }
                            _ => false,
                        };
                        prop_assert!(allowed, "{id} left by {event:?}");
                    }
                }
            }
            prop_assert!(it.suspects().len() <= it.members.len());
        }
    }

    /// Replicas may be read in any order: the highest lease epoch is what remains.
    #[test]
    fn puts_commute(epochs in prop::collection::vec(1..100u64, 1..10).prop_shuffle()) {
        let mut it = Membership::new();
        it.snapshot(1, 0, [], T0);
        for (index, epoch) in epochs.iter().enumerate() {
            it.delta(index as u64 + 1, Change::Put(instance(1, *epoch, Status::Ready)), T0);
        }
        let highest = epochs.iter().max().copied();
        prop_assert_eq!(it.view().instances.get(&InstanceId(1)).map(|it| it.lease_epoch), highest);
    }
}
