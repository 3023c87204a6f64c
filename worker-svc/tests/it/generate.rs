//! One worker: tokens, limits, refusals, cancellation, feeds, drain.

use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1::FinishReason;
use armature_contracts::worker::v1 as wire;
use armature_worker::identity::Role;
use tokio_stream::StreamExt;

use crate::harness::{Fleet, prompt, request, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_has_the_same_tokens_with_and_without_a_cached_prefix() {
    let mut fleet = Fleet::tiny();
    let node = fleet.start(Role::Aggregated, |_| {}).await;
    let prompt = prompt(100, 1);
    let first = node.generate(request(&node, &prompt, 20, 1)).await.unwrap();
    assert_eq!(first.tokens[0].len(), 20);
    assert_eq!(first.finish[0], FinishReason::Length as i32);
    assert_eq!((first.usage.cached_tokens, first.usage.computed_tokens), (0, 100));
    let again = node.generate(request(&node, &prompt, 20, 1)).await.unwrap();
    assert_eq!(
        (again.usage.cached_tokens, again.usage.computed_tokens),
        (96, 4),
        "six blocks of 16 are reused"
    );
    assert_eq!(again.tokens, first.tokens);
    assert_eq!(again.logprobs, first.logprobs);
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_preempt_each_other_have_the_tokens_they_have_alone() {
    let mut fleet = Fleet::tiny();
    let roomy = fleet.start(Role::Aggregated, |_| {}).await;
    // Room for one and a half of four sequences of 180 tokens: decoding has to take blocks from others again and again.
    let tight = fleet.start(Role::Aggregated, |config| config.kv_blocks = 18).await;
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(60, 30 + i)).collect();
    let mut alone = Vec::new();
    for prompt in &prompts {
        alone.push(roomy.generate(request(&roomy, prompt, 120, 1)).await.unwrap());
    }
    let together = prompts.iter().map(|prompt| tight.generate(request(&tight, prompt, 120, 1)));
    let together = futures_util::future::join_all(together).await;
    let mut computed = 0;
    for (alone, together) in alone.iter().zip(together) {
        let together = together.unwrap();
        assert_eq!(together.tokens, alone.tokens);
        assert_eq!(together.logprobs, alone.logprobs);
        computed += together.usage.computed_tokens;
    }
    assert!(computed > 4 * 60, "nothing was computed twice, so nothing was preempted: {computed}");
    tight.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_drawn_apart_and_resumed_choices_go_on_as_they_would_have() {
    let mut fleet = Fleet::tiny();
    let node = fleet.start(Role::Aggregated, |_| {}).await;
    let prompt = prompt(40, 2);
    let mut asked = request(&node, &prompt, 12, 3);
    asked.sampling.as_mut().unwrap().temperature = Some(1.0);
    let whole = node.generate(asked.clone()).await.unwrap();
    assert_ne!(whole.tokens[0], whole.tokens[1]);
    for choice in 0..3u32 {
        for cut in 0..12 {
            let mut resumed = request(&node, &prompt, 12, 1);
            resumed.sampling = asked.sampling.clone();
            resumed.choices = vec![wire::ChoiceStart {
                index: choice,
                generated_token_ids: whole.tokens[choice as usize][..cut].to_vec(),
            }];
            let rest = node.generate(resumed).await.unwrap();
            assert_eq!(rest.tokens[choice as usize], whole.tokens[choice as usize][cut..], "cut at {cut}");
            assert_eq!(
                rest.logprobs[choice as usize],
                whole.logprobs[choice as usize][cut..],
                "cut at {cut}"
            );
        }
    }
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_are_refused_with_a_typed_reason() {
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |_| {}).await;
    let good = request(&node, &prompt(40, 3), 4, 1);
    type Change = fn(&mut wire::GenerateRequest);
    let cases: [(&str, Reason, Change); 13] = [
        ("other incarnation", Reason::InstanceFenced, |r| r.worker.as_mut().unwrap().instance_id ^= 1),
        ("other model", Reason::ModelMismatch, |r| r.context.as_mut().unwrap().model_digest = vec![1].into()),
        ("other scheme", Reason::HashSchemeMismatch, |r| r.blocks.as_mut().unwrap().hash_scheme = "x".into()),
        ("other block size", Reason::BlockSizeMismatch, |r| r.blocks.as_mut().unwrap().block_size = 32),
        ("other hash", Reason::HashMismatch, |r| r.blocks.as_mut().unwrap().first = Some(1)),
        ("other tenant than hashed", Reason::HashMismatch, |r| {
            r.context.as_mut().unwrap().tenant = "t".into()
        }),
        ("no prompt", Reason::InvalidArgument, |r| r.prompt_token_ids.clear()),
        ("token out of range", Reason::InvalidArgument, |r| r.prompt_token_ids[0] = 1 << 30),
        ("no choice", Reason::InvalidArgument, |r| r.choices.clear()),
        ("temperature", Reason::InvalidArgument, |r| {
            r.sampling.as_mut().unwrap().temperature = Some(f32::NAN)
        }),
        ("no tokens wanted", Reason::InvalidArgument, |r| r.stop.as_mut().unwrap().max_tokens = Some(0)),
        ("short reservation id", Reason::InvalidArgument, |r| {
            r.context.as_mut().unwrap().reservation.as_mut().unwrap().id = vec![1].into();
        }),
        ("no context", Reason::InvalidArgument, |r| r.context = None),
    ];
    for (name, reason, change) in cases {
        let mut bad = good.clone();
        change(&mut bad);
        let status = node.generate(bad).await.unwrap_err();
        assert_eq!(Fault::from_status(&status).reason, reason, "{name}: {status}");
    }
    node.generate(good.clone()).await.unwrap();
    let status = node.generate(good).await.unwrap_err();
    assert_eq!(Fault::from_status(&status).reason, Reason::DuplicateAttempt);
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_nothing_behind() {
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |config| config.sim.speedup = 20.0).await;
    for _ in 0..3 {
        let asked = request(&node, &prompt(500, 4), 5000, 2);
        let mut stream = node.client.clone().generate(asked).await.unwrap().into_inner();
        let first = stream.next().await.unwrap().unwrap();
        assert!(matches!(first.event, Some(wire::generate_response::Event::Started(_))));
    }
    wait_until("three disconnects", async || node.metric("armature_worker_disconnects_total").await == 3.0)
        .await;
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once_and_says_so() {
    let mut fleet = Fleet::sim();
    let slow = |config: &mut armature_worker::config::Config| {
        config.sim.speedup = 1.0;
        config.scheduler.max_running = 1;
        config.scheduler.max_waiting = 1;
    };
    let node = fleet.start(Role::Aggregated, slow).await;
    let mut streams = Vec::new();
    let refused = loop {
        match node.client.clone().generate(request(&node, &prompt(30, 5), 1000, 1)).await {
            Ok(stream) => streams.push(stream.into_inner()),
            Err(status) => break Fault::from_status(&status),
        }
    };
    assert_eq!(refused.reason, Reason::WorkerBusy);
    assert!(refused.retryable && refused.retry_after.is_some());
    assert!((1..=2).contains(&streams.len()), "{}", streams.len());
    drop(streams);
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_settle_reservations_and_events_tell_the_cache() {
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |_| {}).await;
    let mut states =
        node.client.clone().watch_state(wire::WatchStateRequest::default()).await.unwrap().into_inner();
    let full = states.next().await.unwrap().unwrap();
    assert_eq!((full.report_seq, full.settled.len()), (1, 0));
    let asked = request(&node, &prompt(64, 6), 4, 1);
    let reservation = asked.context.clone().unwrap().reservation.unwrap();
    node.generate(asked).await.unwrap();
    let finished = loop {
        let report = states.next().await.unwrap().unwrap();
        let mine = report.settled.iter().find(|settled| settled.reservation.as_ref() == Some(&reservation));
        if mine.is_some_and(|settled| settled.settlement == wire::Settlement::Finished as i32) {
            break report;
        }
    };
    assert_eq!(finished.ranks[0].running, 0);

    let asked = wire::WatchKvRequest { dp_rank: 0, from_batch: 0 };
    let mut events = node.client.clone().watch_kv(asked).await.unwrap().into_inner();
    let Some(wire::watch_kv_response::Event::Snapshot(chunk)) = events.next().await.unwrap().unwrap().event
    else {
        panic!("a reader from 0 gets a snapshot first");
    };
    let hashes: Vec<u64> = chunk.blocks.iter().flat_map(|blocks| blocks.sequence_hashes.clone()).collect();
    assert_eq!(hashes.len(), 4, "four full blocks of the prompt; the tail is not full");
    assert_eq!(chunk.digest, armature_kv_hash::set_digest(hashes.iter().map(|hash| (*hash, 1))));
    node.generate(request(&node, &prompt(32, 7), 4, 1)).await.unwrap();
    let Some(wire::watch_kv_response::Event::Batch(batch)) = events.next().await.unwrap().unwrap().event
    else {
        panic!("batches follow the snapshot");
    };
    assert_eq!((batch.batch, batch.count), (chunk.batch + 1, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_refuses_new_work_and_finishes_what_runs() {
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |config| config.sim.speedup = 50.0).await;
    let asked = request(&node, &prompt(30, 8), 200, 1);
    let mut running = node.client.clone().generate(asked).await.unwrap().into_inner();
    running.next().await.unwrap().unwrap();
    node.drain.begin();
    let late = request(&node, &prompt(30, 9), 4, 1);
    let client = node.client.clone();
    let finished = tokio::spawn(node.running.finished());
    wait_until("refusal", async || match client.clone().generate(late.clone()).await {
        Err(status) => Fault::from_status(&status).reason == Reason::Draining,
        Ok(_) => false,
    })
    .await;
    let mut tokens = 0;
    while let Some(answer) = running.next().await {
        if let Some(wire::generate_response::Event::Delta(delta)) = answer.unwrap().event {
            tokens += delta.tokens.len();
        }
    }
    assert_eq!(tokens, 200);
    finished.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_cannot_be_published_still_gives_its_streams_up() {
    let mut fleet = Fleet::sim();
    let slow = |config: &mut armature_worker::config::Config| {
        config.sim.speedup = 1.0;
        config.drain_seconds = 0.1;
    };
    // Nobody listens at the discovery address: DRAINING is never published.
    let node = fleet.start(Role::Aggregated, slow).await;
    let asked = request(&node, &prompt(30, 40), 3000, 1);
    let mut running = node.client.clone().generate(asked).await.unwrap().into_inner();
    running.next().await.unwrap().unwrap();
    node.drain.begin();
    let finished = tokio::spawn(node.running.finished());
    let mut last = FinishReason::Unspecified;
    while let Some(answer) = running.next().await {
        if let Some(wire::generate_response::Event::Delta(delta)) = answer.unwrap().event {
            last = delta.finish_reason();
        }
    }
    assert_eq!(last, FinishReason::Migrate);
    finished.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_that_is_ended_is_computed_no_further_and_the_others_go_on() {
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |config| config.sim.speedup = 20.0).await;
    let alone = node.generate(request(&node, &prompt(40, 50), 400, 2)).await.unwrap();
    let asked = request(&node, &prompt(40, 50), 400, 2);
    let end = wire::EndChoicesRequest {
        reservation: asked.context.as_ref().unwrap().reservation.clone(),
        choices: vec![0],
    };
    let before = node.metric("armature_worker_tokens_generated_total").await;
    let mut stream = node.client.clone().generate(asked).await.unwrap().into_inner();
    let (mut tokens, mut ends) = ([Vec::new(), Vec::new()], Vec::new());
    while let Some(answer) = stream.next().await {
        let Some(wire::generate_response::Event::Delta(delta)) = answer.unwrap().event else { continue };
        let choice = delta.choice as usize;
        assert!(!ends.iter().any(|(ended, _)| *ended == choice), "a token of a choice that has ended");
        tokens[choice].extend(delta.tokens.iter().map(|token| token.token_id));
        if delta.finish_reason() != FinishReason::Unspecified {
            ends.push((choice, delta.finish_reason()));
        }
        if choice == 0 && tokens[0].len() == 3 {
            node.client.clone().end_choices(end.clone()).await.unwrap();
            // Again, and for nobody: nothing happens.
            node.client.clone().end_choices(end.clone()).await.unwrap();
            let key =
                armature_contracts::inference::v1::ReservationKey { id: vec![9; 16].into(), attempt: 1 };
            let nobody = wire::EndChoicesRequest { reservation: Some(key), choices: vec![1] };
            node.client.clone().end_choices(nobody).await.unwrap();
        }
    }
    assert_eq!(ends, [(0, FinishReason::Cancelled), (1, FinishReason::Length)]);
    assert_eq!(tokens[1], alone.tokens[1]);
    assert!(tokens[0].len() < 400 && alone.tokens[0].starts_with(&tokens[0]), "{}", tokens[0].len());
    let generated = node.metric("armature_worker_tokens_generated_total").await - before;
    assert_eq!(generated as usize, tokens[0].len() + 400, "nothing was computed for nobody");
    node.quiet().await;
    let status = node.client.clone().end_choices(wire::EndChoicesRequest::default()).await.unwrap_err();
    assert_eq!(Fault::from_status(&status).reason, Reason::InvalidArgument);
}
