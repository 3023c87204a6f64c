//! Blocking queries: one per topic, for ever.
//!
//! The rules of `X-Consul-Index`: it is opaque except that a query with the last one waits for a higher one; one that is lower than the
//! last means that the state behind it was replaced, so the next query starts anew; 0 must not be waited with.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::client::{ANSWER, Ask, Client};
use super::link::{Link, Topic};

/// Longest wait of one query; Consul adds up to a sixteenth.
const WAIT: Duration = Duration::from_secs(10);
/// Shortest time from one answer to the next query: what changes meanwhile comes in one answer.
const COALESCE: Duration = Duration::from_millis(100);
/// First and longest pause after an error.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Where a series of queries is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position(u64);

/// What an answer's index says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Changed,
    Replaced,
}

impl Position {
    fn advance(&mut self, index: u64) -> News {
        let last = std::mem::replace(&mut self.0, index);
        if index < last {
            self.0 = 0;
            return News::Replaced;
        }
        if index == last && index != 0 { News::Nothing } else { News::Changed }
    }
}

/// Follows `ask` whenever Consul is up: each answer is read off the runtime's threads and taken in.
pub async fn follow<T: Send + 'static>(
    client: &Client,
    link: &Link,
    topic: Topic,
    ask: Ask,
    read: fn(&[u8]) -> T,
    mut take: impl FnMut(T),
) {
    loop {
        let generation = link.until_up().await;
        let mut position = Position::default();
        let mut pauses = pauses();
        loop {
            let mut query = ask.clone();
            if position.0 > 0 {
                let limit = WAIT + WAIT / 16 + ANSWER;
                query = query
                    .with("index", position.0)
                    .with("wait", format!("{}s", WAIT.as_secs()))
                    .within(limit);
            }
            let answer = tokio::select! {
                answer = client.ask(query) => answer,
                () = link.until_left(generation) => break,
            };
            let pause = match answer {
                Ok(answer) => {
                    pauses = self::pauses();
                    let news = position.advance(answer.index);
                    if news == News::Replaced {
                        tracing::info!(topic, index = answer.index, "Consul's index went back, reading anew");
                        link.doubt();
                    }
                    let started = Instant::now();
                    if news != News::Nothing {
                        let body = if answer.found { answer.body } else { Bytes::from_static(b"[]") };
                        if let Ok(state) = spawn_blocking(move || read(&body)).await {
                            take(state);
                            link.read(topic, generation);
                        }
                    }
                    // Under a storm of changes at most a third of the time goes into reading.
                    COALESCE.max(2 * started.elapsed())
                }
                Err(error) => {
                    link.complain(&error);
                    pauses.next().unwrap_or(PAUSE.1)
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = link.until_left(generation) => break,
            }
        }
    }
}

fn pauses() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new().with_min_delay(PAUSE.0).with_max_delay(PAUSE.1);
    pauses.without_max_times().with_jitter().build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever Consul tells, no query waits with an index that Consul has left behind, and nothing that changed is passed over.
        #[test]
        fn an_index_that_goes_back_starts_anew(told in prop::collection::vec(0u64..6, 1..50)) {
            let mut position = Position::default();
            let mut last = 0;
            for index in told {
                let before = position;
                let news = position.advance(index);
                prop_assert!(position.0 <= index);
                match news {
                    News::Nothing => prop_assert!(index == last && before == position),
                    News::Changed => prop_assert_eq!(position.0, index),
                    News::Replaced => prop_assert!(index < before.0 && position.0 == 0),
                }
                last = index;
            }
        }
    }
}
