//! Two workers: the prompt is computed on one, the rest on the other.

use armature_contracts::error::{Fault, Reason};
use armature_worker::identity::Role;
use tokio_stream::StreamExt;

use crate::harness::{Fleet, TRANSPORTS, disaggregate, prompt, request, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_handed_off_request_has_the_tokens_of_an_aggregated_one() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::tiny();
        let alone = fleet.start(Role::Aggregated, |_| {}).await;
        let p = fleet.start(Role::Prefill, |c| c.transports = vec![transport]).await;
        let d = fleet.start(Role::Decode, |c| c.transports = vec![transport]).await;
        for (length, n) in [(1, 1), (15, 1), (16, 2), (100, 1), (300, 3)] {
            let prompt = prompt(length, length as u32);
            let expected = alone.generate(request(&alone, &prompt, 12, n)).await.unwrap();
            let (on_p, on_d) = (
                p.metric("armature_worker_prompt_tokens_computed_total").await,
                d.metric("armature_worker_prompt_tokens_computed_total").await,
            );
            let landed = d.metric("armature_worker_landed_bytes_total").await;
            let mut asked = request(&d, &prompt, 12, n);
            disaggregate(&mut asked, &[&p]);
            let output = d.generate(asked).await.unwrap();
            assert_eq!(output.tokens, expected.tokens, "{transport:?}, prompt of {length}");
            assert_eq!(output.logprobs, expected.logprobs, "{transport:?}, prompt of {length}");
            assert_eq!(output.prefilled_by, Some(p.rank().instance.0));
            assert_eq!((output.usage.computed_tokens, output.usage.transferred_tokens), (0, length as u32));
            wait_until("the prefill is over", async || {
                p.metric("armature_worker_prompt_tokens_computed_total").await - on_p == length as f64
            })
            .await;
            assert_eq!(d.metric("armature_worker_prompt_tokens_computed_total").await, on_d);
            let bytes = d.metric("armature_worker_landed_bytes_total").await - landed;
            assert_eq!(bytes, (length * d.identity.spec.kv.token_bytes()) as f64);

            // Again, now that both sides have the prefix: only the rest moves, and the tokens are the same.
            let mut again = request(&d, &prompt, 12, n);
            disaggregate(&mut again, &[&p]);
            let again = d.generate(again).await.unwrap();
            let cached = (length - 1) / 16 * 16;
            assert_eq!(
                (again.tokens, again.logprobs),
                (expected.tokens, expected.logprobs),
                "{transport:?}, reused"
            );
            assert_eq!(again.usage.cached_tokens as usize, cached, "{transport:?}, prompt of {length}");
            assert_eq!(again.usage.transferred_tokens as usize, length - cached);
        }
        p.quiet().await;
        d.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_missing_moves() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::sim();
        let p = fleet.start(Role::Prefill, |c| c.transports = vec![transport]).await;
        let d = fleet.start(Role::Decode, |c| c.transports = vec![transport]).await;
        let long = prompt(1000, 1);
        for (length, cached) in [(600, 0), (1000, 592)] {
            let mut asked = request(&d, &long[..length], 4, 1);
            disaggregate(&mut asked, &[&p]);
            let output = d.generate(asked).await.unwrap();
            assert_eq!(output.usage.cached_tokens, cached, "{transport:?}");
            assert_eq!(output.usage.transferred_tokens, length as u32 - cached);
            assert_eq!(output.usage.remote_computed_tokens, length as u32 - cached, "P reuses its own cache");
            d.quiet().await;
        }
        p.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_larger_than_the_grant_passes_in_windows() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::sim();
        let p = fleet.start(Role::Prefill, |c| c.transports = vec![transport]).await;
        let d = fleet
            .start(Role::Decode, |c| {
                c.transports = vec![transport];
                c.kv_blocks = 128;
                c.scheduler.grant_fraction = 0.1;
            })
            .await;
        let mut asked = request(&d, &prompt(1700, 3), 4, 1);
        disaggregate(&mut asked, &[&p]);
        let output = d.generate(asked).await.unwrap();
        assert_eq!(output.usage.transferred_tokens, 1700);
        p.quiet().await;
        d.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_prefill_worker_the_decode_worker_tries_the_next_then_prefills_itself() {
    let mut fleet = Fleet::sim();
    let p = fleet.start(Role::Prefill, |_| {}).await;
    let d = fleet.start(Role::Decode, |_| {}).await;
    let alone = d.generate(request(&d, &prompt(50, 4), 6, 1)).await.unwrap();

    let mut asked = request(&d, &prompt(50, 4), 6, 1);
    disaggregate(&mut asked, &[&p, &p]);
    asked.prefill[0].address = "mem:nobody".into();
    asked.context.as_mut().unwrap().cache_salt = String::new();
    let second = d.generate(asked.clone()).await.unwrap();
    assert_eq!(second.tokens, alone.tokens);
    assert_eq!(second.prefilled_by, Some(p.rank().instance.0));

    let reservation = asked.context.as_mut().unwrap().reservation.as_mut().unwrap();
    reservation.attempt += 1;
    asked.prefill[1].address = "mem:nobody".into();
    let status = d.generate(asked.clone()).await.unwrap_err();
    assert_eq!(Fault::from_status(&status).reason, Reason::PrefillLost, "local prefill is forbidden");

    asked.context.as_mut().unwrap().reservation.as_mut().unwrap().attempt += 1;
    asked.local_prefill_forbidden = false;
    let local = d.generate(asked).await.unwrap();
    assert_eq!(local.tokens, alone.tokens);
    assert_eq!(local.prefilled_by, None);
    p.quiet().await;
    d.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_during_a_hand_off_frees_both_sides() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::sim();
        let p = fleet
            .start(Role::Prefill, |c| {
                c.transports = vec![transport];
                c.sim.speedup = 5.0;
            })
            .await;
        let d = fleet.start(Role::Decode, |c| c.transports = vec![transport]).await;
        for i in 0..4 {
            let mut asked = request(&d, &prompt(900, 10 + i), 50, 2);
            disaggregate(&mut asked, &[&p]);
            let mut stream = d.client.clone().generate(asked).await.unwrap().into_inner();
            stream.next().await.unwrap().unwrap();
        }
        wait_until("disconnects", async || d.metric("armature_worker_disconnects_total").await == 4.0).await;
        d.quiet().await;
        p.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_hand_offs_at_once_all_finish() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::sim();
        let p = fleet.start(Role::Prefill, |c| c.transports = vec![transport]).await;
        let d = fleet.start(Role::Decode, |c| c.transports = vec![transport]).await;
        let requests = (0..40).map(|i| {
            let mut asked = request(&d, &prompt(40 + 13 * i, i as u32), 10, 1 + i as u32 % 3);
            disaggregate(&mut asked, &[&p]);
            asked.local_prefill_forbidden = false;
            d.generate(asked)
        });
        for output in futures_util::future::join_all(requests).await {
            assert!(output.unwrap().tokens.iter().all(|tokens| tokens.len() == 10));
        }
        p.quiet().await;
        d.quiet().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_lost_after_begin_is_replaced_by_the_next_that_the_router_named() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::sim();
        let first = fleet
            .start(Role::Prefill, |c| {
                c.transports = vec![transport];
                c.fault_point = Some(armature_worker::faults::FaultPoint::SourceBegun);
            })
            .await;
        let second = fleet.start(Role::Prefill, |c| c.transports = vec![transport]).await;
        let d = fleet.start(Role::Decode, |c| c.transports = vec![transport]).await;
        let alone = second.generate(request(&second, &prompt(200, 20), 8, 2)).await.unwrap();
        let mut asked = request(&d, &prompt(200, 20), 8, 2);
        disaggregate(&mut asked, &[&first, &second]);
        let asking = {
            let d = d.client.clone();
            async move { d.clone().generate(asked).await }
        };
        let mut stream = asking.await.unwrap().into_inner();
        wait_until("the first has begun", async || {
            first.metric("armature_worker_prefills_total").await == 1.0
        })
        .await;
        wait_until("blocks are granted", async || d.metric("armature_worker_kv_blocks_active").await > 0.0)
            .await;
        drop(first);
        let mut tokens = vec![Vec::new(); 2];
        while let Some(answer) = stream.next().await {
            if let Some(armature_contracts::worker::v1::generate_response::Event::Delta(delta)) =
                answer.unwrap().event
            {
                tokens[delta.choice as usize].extend(delta.tokens.iter().map(|token| token.token_id));
            }
        }
        assert_eq!(tokens, alone.tokens, "{transport:?}");
        d.quiet().await;
        second.quiet().await;
    }
}
