//! What has to be done at the agent so that it shows an instance as it should: a pure decision.

use crate::domain::instance::{Component, LeaseEpoch, ReplicaId};

/// What an agent has of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct There {
    /// Of its service.
    pub component: Component,
    /// Who wrote it.
    pub holder: ReplicaId,
    /// Of the lease that it was written for.
    pub epoch: LeaseEpoch,
    /// As it was written.
    pub record: String,
    /// What the check of its lease says; unknown after the agent was asked anew.
    pub leased: Option<bool>,
    /// Whether it is in maintenance, if that is known.
    pub maintenance: Option<bool>,
}

/// What an agent should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who writes it.
    pub holder: ReplicaId,
    /// Of its lease.
    pub epoch: LeaseEpoch,
    /// As it should be written.
    pub record: String,
    /// What the check of its lease should say.
    pub leased: bool,
    /// In maintenance is what is not READY: Consul's own users do not get it either.
    pub maintenance: bool,
}

/// One call to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes the service anew, with its check.
    Register,
    /// Lets the check of the lease pass or fail.
    Lease(bool),
    /// Into maintenance, or out of it.
    Maintenance(bool),
    /// Takes the service away.
    Deregister,
}

/// The steps from what is there to what should be. What nobody wants is taken away only when it is `useless`: what another replica has
/// written through the same agent is not.
pub fn steps(wanted: Option<&Wanted>, there: Option<&There>, useless: bool) -> Vec<Step> {
    let Some(wanted) = wanted else {
        return there.filter(|_| useless).map(|_| Step::Deregister).into_iter().collect();
    };
    // Another replica has written through the same agent and won: this one reads that in a moment.
    if there.is_some_and(|there| (there.epoch, there.holder) > (wanted.epoch, wanted.holder)) {
        return Vec::new();
    }
    let mut steps = Vec::new();
    match there {
        Some(there) if there.record == wanted.record => {
            if there.leased != Some(wanted.leased) {
                steps.push(Step::Lease(wanted.leased));
            }
        }
        _ => steps.push(Step::Register),
    }
    let maintenance = there.map_or(Some(false), |there| there.maintenance);
    if maintenance != Some(wanted.maintenance) {
        steps.push(Step::Maintenance(wanted.maintenance));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wanted(leased: bool, maintenance: bool) -> Wanted {
        let (holder, epoch) = (ReplicaId(1), LeaseEpoch(1));
        Wanted { holder, epoch, record: "a".to_owned(), leased, maintenance }
    }

    fn there(record: &str, leased: Option<bool>, maintenance: Option<bool>) -> There {
        let (component, holder, epoch) = (Component::Worker, ReplicaId(1), LeaseEpoch(1));
        There { component, holder, epoch, record: record.to_owned(), leased, maintenance }
    }

    fn done(wanted: &Wanted, there: Option<There>, step: Step) -> Option<There> {
        match (step, there) {
            (Step::Deregister, _) => None,
            (Step::Register, before) => Some(There {
                leased: Some(wanted.leased),
                maintenance: before.map_or(Some(false), |it| it.maintenance),
                ..self::there(&wanted.record, None, None)
            }),
            (Step::Lease(leased), Some(it)) => Some(There { leased: Some(leased), ..it }),
            (Step::Maintenance(on), Some(it)) => Some(There { maintenance: Some(on), ..it }),
            (Step::Lease(_) | Step::Maintenance(_), None) => None,
        }
    }

    proptest! {
        /// After the steps the agent has what it should, and there is nothing left to do.
        #[test]
        fn the_steps_lead_there(
            before in prop::option::of((prop::sample::select(vec!["a", "b"]), any::<Option<bool>>(), any::<Option<bool>>())),
            leased: bool,
            maintenance: bool,
        ) {
            let wanted = wanted(leased, maintenance);
            let before = before.map(|(record, leased, maintenance)| there(record, leased, maintenance));
            let mut after = before.clone();
            for step in steps(Some(&wanted), before.as_ref(), true) {
                after = done(&wanted, after, step);
            }
            prop_assert_eq!(after.as_ref(), Some(&there("a", Some(leased), Some(maintenance))));
            prop_assert_eq!(steps(Some(&wanted), after.as_ref(), true), vec![]);
        }
    }

    #[test]
    fn only_what_is_useless_is_taken_away() {
        let it = there("a", Some(true), Some(false));
        assert_eq!(steps(None, Some(&it), false), []);
        assert_eq!(steps(None, Some(&it), true), [Step::Deregister]);
        assert_eq!(steps(None, None, true), []);
    }

    #[test]
    fn what_another_replica_has_won_is_not_overwritten() {
        let mine = wanted(true, false);
        for (epoch, holder, steps_to_mine) in [(1, 2, 0), (2, 0, 0), (1, 0, 1), (0, 2, 1)] {
            let there = There {
                epoch: LeaseEpoch(epoch),
                holder: ReplicaId(holder),
                ..there("b", None, Some(false))
            };
            assert_eq!(steps(Some(&mine), Some(&there), false).len(), steps_to_mine, "{epoch} {holder}");
        }
    }

    #[test]
    fn a_new_instance_that_is_ready_takes_one_call() {
        let wanted = wanted(true, false);
        assert_eq!(steps(Some(&wanted), None, false), [Step::Register]);
    }
}
