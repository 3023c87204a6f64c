//! The generations of one call, as one stream of events: prompt i's choice c has the index i * n + c.

use armature_contracts::error::Fault;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream, SelectAll};

use crate::domain::text::Delta;
use crate::session::answer::{Event, Summary};
use crate::session::generate::Generation;

/// Generations side by side. Dropping it cancels them all.
pub struct Answers {
    running: SelectAll<BoxStream<'static, (usize, Result<Event, Fault>)>>,
    choices_each: u32,
    total: Summary,
    over: bool,
}

/// What comes, in order: deltas, then one summary of all.
#[derive(Debug)]
pub enum Step {
    /// New in one choice.
    Delta {
        /// Number of its prompt.
        prompt: usize,
        /// With the index of the choice in the whole answer.
        delta: Delta,
    },
    /// All is said.
    Finished(Summary),
}

impl Answers {
    /// The generations of the prompts, in their order, of `choices_each` choices.
    pub fn new(generations: Vec<Generation>, choices_each: u32) -> Self {
        let follow = |(prompt, generation)| {
            stream::unfold(generation, move |mut generation: Generation| async move {
                let event = generation.next().await?;
                Some(((prompt, event), generation))
            })
            .boxed()
        };
        let running = generations.into_iter().enumerate().map(follow).collect();
        Self { running, choices_each, total: Summary::default(), over: false }
    }

    /// What comes next; `None` after the summary or an error.
    pub async fn next(&mut self) -> Option<Result<Step, Fault>> {
        loop {
            if self.over {
                return None;
            }
            match self.running.next().await {
                Some((prompt, Ok(Event::Delta(mut delta)))) => {
                    delta.choice += u32::try_from(prompt).unwrap_or(u32::MAX) * self.choices_each;
                    return Some(Ok(Step::Delta { prompt, delta }));
                }
                Some((_, Ok(Event::Finished(summary)))) => self.total.add(&summary),
                Some((_, Err(fault))) => {
                    self.over = true;
                    self.running.clear();
                    return Some(Err(fault));
                }
                None => {
                    self.over = true;
                    return Some(Ok(Step::Finished(self.total.clone())));
                }
            }
        }
    }
}
