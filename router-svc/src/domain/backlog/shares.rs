//! Whose turn it is: start-time fair queuing over tenants, in tokens.
//!
//! A tenant's tag is the virtual time at which its next request begins; the smallest tag is next, virtual time goes on to it, and what the
//! request is given is added to it. A tenant that begins to wait starts at the present virtual time: having been idle is no credit, and what
//! it was given before is still counted. Of two tenants that always have a request that fits, neither is given more than the other by more
//! than the largest request of each.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::units::Tokens;

/// Tenants without a waiting request that are remembered for what they were given; beyond it those are forgotten that were given least.
const MAX_REMEMBERED: usize = 1024;

/// Name of a tenant.
pub type Tenant = Arc<str>;

#[derive(Debug, Clone, Copy)]
struct Share {
    tag: u64,
    waits: bool,
}

/// What tenants were given.
#[derive(Debug, Default)]
pub struct Shares {
    now: u64,
    shares: HashMap<Tenant, Share>,
    waiting: usize,
}

impl Shares {
    /// A tenant begins to wait. Answers its tag.
    pub fn join(&mut self, tenant: &Tenant) -> u64 {
        let share = self.shares.entry(tenant.clone()).or_insert(Share { tag: 0, waits: false });
        share.tag = share.tag.max(self.now);
        self.waiting += usize::from(!share.waits);
        share.waits = true;
        share.tag
    }

    /// The tenant whose turn it is was given something. Answers its next tag.
    pub fn serve(&mut self, tenant: &Tenant, given: Tokens) -> u64 {
        let Some(share) = self.shares.get_mut(tenant) else { return self.now };
        self.now = self.now.max(share.tag);
        // A request that is given nothing still takes a turn.
        share.tag = share.tag.saturating_add(given.0.max(1));
        share.tag
    }

    /// It was this tenant's turn, but nothing of it fitted anywhere: it is as if it had not waited. Answers its tag.
    pub fn pass(&mut self, tenant: &Tenant) -> u64 {
        let Some(share) = self.shares.get_mut(tenant) else { return self.now };
        share.tag = share.tag.max(self.now);
        share.tag
    }

    /// Nothing of the tenant waits any more.
    pub fn leave(&mut self, tenant: &Tenant) {
        let Some(share) = self.shares.get_mut(tenant) else { return };
        self.waiting -= usize::from(share.waits);
        share.waits = false;
        if self.waiting == 0 {
            // Nobody is left to be compared with.
            *self = Self::default();
        } else if self.shares.len() - self.waiting > MAX_REMEMBERED {
            self.forget();
        }
    }

    /// Tenants known.
    pub fn tenants(&self) -> usize {
        self.shares.len()
    }

    fn forget(&mut self) {
        let now = self.now;
        self.shares.retain(|_, share| share.waits || share.tag > now);
        let mut idle: Vec<_> = self.shares.iter().filter(|(_, share)| !share.waits).collect();
        idle.sort_unstable_by_key(|(tenant, share)| (share.tag, (*tenant).clone()));
        // A tenth at once, so that a crowd of tenants does not sort each time.
        let over = idle.len().saturating_sub(MAX_REMEMBERED * 9 / 10);
        let least: Vec<Tenant> = idle.into_iter().take(over).map(|(tenant, _)| tenant.clone()).collect();
        for tenant in least {
            self.shares.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(n: usize) -> Tenant {
        n.to_string().into()
    }

    #[test]
    fn idle_time_is_no_credit_and_debts_are_kept() {
        let mut shares = Shares::default();
        let (a, b, c) = (tenant(1), tenant(2), tenant(3));
        shares.join(&c);
        assert_eq!(shares.join(&a), 0);
        shares.serve(&a, Tokens(100));
        // b was idle meanwhile: it begins where a began, not before.
        assert_eq!(shares.join(&b), 0);
        shares.serve(&b, Tokens(10));
        assert_eq!(shares.serve(&b, Tokens(10)), 20);
        shares.leave(&a);
        assert_eq!(shares.join(&a), 100);
        // Alone again, everybody is equal.
        for tenant in [&a, &b, &c] {
            shares.leave(tenant);
        }
        assert_eq!((shares.join(&a), shares.tenants()), (0, 1));
    }

    #[test]
    fn tenants_are_bounded() {
        let mut shares = Shares::default();
        shares.join(&tenant(0));
        for n in 1..5 * MAX_REMEMBERED {
            shares.join(&tenant(n));
            shares.serve(&tenant(n), Tokens(n as u64));
            shares.leave(&tenant(n));
            assert!(shares.tenants() <= MAX_REMEMBERED + 1);
        }
    }
}
