//! Engines that do it wrong: what comes of each way is told with its right name, and others do not notice.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1::FinishReason;
use armature_contracts::worker::v1 as wire;
use armature_worker::domain::openai::dialect::Dialect;
use serde_json::{Value, json};
use tonic::Request;
use wire::generate_response::Event;

use super::scripted_engine::{Act, token};
use super::{ask, pair, tokens};
use crate::harness::{Node, wait_until};

/// Tokens that came before the end, and how it ended.
async fn outcome(node: &Node, request: wire::GenerateRequest) -> (Vec<u32>, Result<i32, Fault>) {
    let mut generated = Vec::new();
    let mut finish = 0;
    let mut stream = match node.client.clone().generate(request).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return (generated, Err(Fault::from_status(&status))),
    };
    loop {
        match stream.message().await {
            Ok(Some(answer)) => match answer.event.unwrap() {
                Event::Delta(delta) => {
                    generated.extend(delta.tokens.iter().map(|token| token.token_id));
                    finish = delta.finish_reason.max(finish);
                }
                Event::Started(_) => {}
                Event::Finished(_) => return (generated, Ok(finish)),
            },
            Ok(None) => panic!("no last message"),
            Err(status) => return (generated, Err(Fault::from_status(&status))),
        }
    }
}

fn status(code: u16, headers: &str, body: &str) -> Act {
    Act::Raw(format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()))
}

fn raw(text: &str) -> Act {
    Act::Raw(text.to_owned())
}

fn piece(position: usize, finish: Value) -> Act {
    Act::Event(json!({"choices": [{"text": "x", "token_ids": [token(position)], "finish_reason": finish}]}))
}

#[tokio::test]
async fn each_way_to_fail_has_its_reason() {
    let huge = format!("data: {}", "x".repeat((1 << 20) + 16));
    let two = [Act::Head, Act::Tokens(2)];
    let after_two = |more: &[Act]| [&two[..], more].concat();
    let scripts: Vec<(&str, Vec<Act>, usize, Reason)> = vec![
        ("half-closed in the middle", after_two(&[Act::HalfClose]), 2, Reason::WorkerLost),
        ("reset in the middle", after_two(&[Act::Reset]), 2, Reason::WorkerLost),
        ("reset before the answer", vec![Act::Reset], 0, Reason::EngineFailed),
        ("closed before the answer", vec![Act::HalfClose], 0, Reason::EngineFailed),
        ("no HTTP", vec![raw("SSH-2.0-OpenSSH\r\n\r\n"), Act::HalfClose], 0, Reason::EngineFailed),
        (
            "malformed JSON",
            after_two(&[raw("data: {\"choices\": [\n\n"), Act::Hang]),
            2,
            Reason::EngineFailed,
        ),
        ("an event without end", after_two(&[raw(&huge), Act::Hang]), 2, Reason::EngineFailed),
        (
            "two choices",
            after_two(&[Act::Event(json!({"choices": [{"text": "a"}, {"text": "b"}]})), Act::Hang]),
            2,
            Reason::EngineFailed,
        ),
        ("done without a finish_reason", after_two(&[Act::Done, Act::Hang]), 2, Reason::EngineFailed),
        ("end without a finish_reason", after_two(&[Act::HalfClose]), 2, Reason::WorkerLost),
        (
            "an error in the middle",
            after_two(&[Act::Event(json!({"error": {"message": "out of memory", "code": 500}})), Act::Hang]),
            2,
            Reason::EngineFailed,
        ),
        ("aborted", after_two(&[piece(2, json!("abort")), Act::Hang]), 2, Reason::EngineFailed),
        ("500", vec![status(500, "", "{\"error\":{\"message\":\"boom\"}}")], 0, Reason::EngineFailed),
        ("503", vec![status(503, "", "")], 0, Reason::WorkerBusy),
        ("429", vec![status(429, "retry-after: 7\r\n", "{}")], 0, Reason::WorkerBusy),
        ("400", vec![status(400, "", "{\"error\":{\"message\":\"too long\"}}")], 0, Reason::InvalidArgument),
        ("401", vec![status(401, "", "")], 0, Reason::EngineFailed),
        ("404", vec![status(404, "", "")], 0, Reason::ModelMismatch),
    ];
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    for (what, script, tokens_before, reason) in scripts {
        engine.script(&script);
        let (generated, ended) = outcome(&node, ask(&node, 9)).await;
        let fault = ended.expect_err(what);
        assert_eq!((generated, fault.reason), (tokens(tokens_before), reason), "{what}: {fault}");
        assert_eq!(fault.work_done, tokens_before > 0, "{what}");
        if what == "429" {
            assert_eq!(fault.retry_after, Some(Duration::from_secs(7)));
        }
        if what == "400" {
            assert!(fault.message.contains("too long"), "{fault}");
        }
        wait_until(what, async || engine.running() == 0).await;
    }
    node.quiet().await;
}

#[tokio::test]
async fn what_is_only_counted_wrong_is_an_answer() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let usage = |generated: u32| {
        Act::Event(json!({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": generated}}))
    };
    let scripts = [
        ("usage missing", vec![Act::Head, piece(0, json!(null)), piece(1, json!("stop")), Act::Done]),
        (
            "usage and done missing",
            vec![Act::Head, piece(0, json!(null)), piece(1, json!("stop")), Act::HalfClose],
        ),
        ("reset behind the end", vec![Act::Head, piece(0, json!(null)), piece(1, json!("stop")), Act::Reset]),
        (
            "nonsense behind the end",
            vec![Act::Head, piece(0, json!(null)), piece(1, json!("stop")), raw("data: {\n\n"), Act::Hang],
        ),
        (
            "silence behind the end",
            vec![Act::Head, piece(0, json!(null)), piece(1, json!("stop")), Act::Hang],
        ),
        (
            "a wrong count",
            vec![Act::Head, piece(0, json!(null)), piece(1, json!("stop")), usage(99), Act::Done],
        ),
    ];
    for (what, script) in scripts {
        engine.script(&script);
        let output = node.generate(ask(&node, 9)).await.unwrap_or_else(|status| panic!("{what}: {status}"));
        assert_eq!((&output.tokens[0], output.finish[0]), (&tokens(2), FinishReason::Stop as i32), "{what}");
        assert_eq!(output.usage.completion_tokens, 2, "{what}: what came, not what was counted");
    }
    let page = node.metrics().await;
    assert!(page.contains("engine_disagreements_total{what=\"generated_tokens\"} 1"), "{page}");
}

#[tokio::test]
async fn an_engine_that_does_not_stop_is_cut_off_at_what_was_asked_for() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let all: Vec<Act> = (0..30).map(|position| piece(position, json!(null))).collect();
    engine.script(&[&[Act::Head], &all[..], &[Act::Hang]].concat());
    let output = node.generate(ask(&node, 4)).await.unwrap();
    assert_eq!((&output.tokens[0], output.finish[0]), (&tokens(4), FinishReason::Length as i32));
    wait_until("the engine has heard of it", async || engine.running() == 0).await;
}

#[tokio::test]
async fn a_request_that_hangs_ends_at_its_deadline_and_delays_no_other() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    for script in [vec![Act::Hang], vec![Act::Head, Act::Tokens(2), Act::Hang]] {
        let before = script.len().saturating_sub(1);
        engine.script(&script);
        let mut late = Request::new(ask(&node, 9));
        late.set_timeout(Duration::from_millis(400));
        let late = tokio::spawn({
            let mut client = node.client.clone();
            async move {
                let mut stream = client.generate(late).await.unwrap().into_inner();
                let mut generated = 0;
                loop {
                    match stream.message().await {
                        Ok(Some(answer)) => {
                            if let Some(Event::Delta(delta)) = answer.event {
                                generated += delta.tokens.len();
                            }
                        }
                        Ok(None) => panic!("no last message"),
                        Err(status) => return (generated, Fault::from_status(&status)),
                    }
                }
            }
        });
        wait_until("the hanging one is in the engine", async || engine.running() == 1).await;
        for _ in 0..3 {
            assert_eq!(node.generate(ask(&node, 5)).await.unwrap().tokens[0], tokens(5));
        }
        let (generated, fault) = late.await.unwrap();
        assert_eq!((generated, fault.reason), (before, Reason::DeadlineExceeded), "{fault}");
        wait_until("the engine has heard of it", async || engine.running() == 0).await;
    }
    node.quiet().await;
}
