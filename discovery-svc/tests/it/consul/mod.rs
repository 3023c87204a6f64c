//! The backend in Consul, on real agents and in real time: whatever is waited for is a state, with the patience of the test.

mod promises;
mod replica;
