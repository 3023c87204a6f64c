//! One script of disturbances for every kind of server.

use std::time::Duration;

use armature_kv_events::fleet::Fleet;
use armature_kv_events::sim::{SimRedis, Weather};
use armature_kv_redis::Connector;
use rand::RngExt as _;
use tokio::time::sleep;

/// What can be done to a server. A simulated one can do all of it, a real one most.
pub trait Server {
    fn kill(&mut self);
    fn revive(&mut self);
    fn freeze(&mut self);
    fn thaw(&mut self);
    fn full(&mut self, full: bool);
    fn replicate(&mut self) {}
    fn fail_over(&mut self) {}
    fn weather(&mut self, _weather: Weather) {}
}

impl Server for SimRedis {
    fn kill(&mut self) {
        SimRedis::kill(self);
    }
    fn revive(&mut self) {
        SimRedis::revive(self);
    }
    fn freeze(&mut self) {
        SimRedis::freeze(self);
    }
    fn thaw(&mut self) {
        SimRedis::thaw(self);
    }
    fn full(&mut self, full: bool) {
        SimRedis::full(self, full);
    }
    fn replicate(&mut self) {
        SimRedis::replicate(self);
    }
    fn fail_over(&mut self) {
        SimRedis::fail_over(self);
    }
    fn weather(&mut self, weather: Weather) {
        SimRedis::weather(self, weather);
    }
}

/// Disturbs for `steps` steps, heals everything, and waits until every router has every worker's set and reads it from Redis.
pub async fn disturb<C>(fleet: &mut Fleet<C>, server: &mut impl Server, steps: usize, patience: Duration)
where
    C: Connector + Clone,
    C::Store: Clone,
{
    let (mut down, mut frozen, mut full) = (false, false, false);
    for _ in 0..steps {
        fleet.change();
        sleep(Duration::from_millis(fleet.rng.random_range(5..400))).await;
        fleet.check();
        match fleet.rng.random_range(0..24) {
            0 if !down => {
                server.kill();
                down = true;
                frozen = false;
                server.thaw();
            }
            1..=3 if down => {
                server.revive();
                (down, full) = (false, false);
                server.full(false);
            }
            4 if !down => {
                server.freeze();
                frozen = true;
            }
            5..=8 if frozen => {
                server.thaw();
                frozen = false;
            }
            9 if !frozen && !down => {
                full = !full;
                server.full(full);
            }
            10 => {
                let at = fleet.rng.random_range(0..fleet.workers.len());
                fleet.restart_worker(at);
            }
            11 => {
                let at = fleet.rng.random_range(0..fleet.routers.len());
                fleet.restart_router(at);
            }
            12 | 13 => server.replicate(),
            14 => server.fail_over(),
            15 | 16 => server.weather(Weather {
                delay_ms: fleet.rng.random_range(0..300),
                lost: fleet.rng.random_range(0.0..0.2),
                unheard: fleet.rng.random_range(0.0..0.5),
            }),
            17 => server.weather(Weather::default()),
            _ => {}
        }
    }
    if frozen {
        server.thaw();
    }
    if down {
        server.revive();
    }
    server.full(false);
    server.weather(Weather::default());
    fleet.settles(patience).await;
    fleet.check();
    fleet.reads_redis_only(patience).await;
    // Redis alone brings what comes now.
    fleet.change();
    fleet.settles(patience).await;
    fleet.check();
}
