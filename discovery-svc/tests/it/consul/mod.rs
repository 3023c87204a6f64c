//! The backend in Consul, on real agents and in real time: whatever is waited for is a state, with the patience of the test.

mod face;
mod outage;
mod promises;
mod replica;
mod replicas;
mod scale;
mod wrong;
