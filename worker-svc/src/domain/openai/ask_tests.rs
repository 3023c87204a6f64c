#![allow(clippy::unwrap_used)]
use super::*;

const ALL: [Dialect; 4] = [Dialect::OpenAi, Dialect::Vllm, Dialect::Sglang, Dialect::LlamaCpp];

fn abilities(dialect: Dialect) -> Abilities {
    Abilities { dialect, prompt: PromptForm::Ids, tells_ids: dialect != Dialect::OpenAi }
}

fn ask(params: &SamplingParams) -> Ask<'_> {
    Ask {
        model: "m",
        params,
        ignore_eos: false,
        max_tokens: 9,
        min_tokens: 0,
        seed: 7,
        context: 512,
        cache_salt: "",
    }
}

/// The names that an engine is sent for a parameter, or the name that it is refused by.
fn said(dialect: Dialect, change: fn(&mut SamplingParams, &mut Ask<'_>)) -> Result<Value, &'static str> {
    let mut params = SamplingParams::default();
    change(&mut params, &mut ask(&SamplingParams::default()));
    let mut ask = ask(&params);
    change(&mut SamplingParams::default(), &mut ask);
    check(&ask, abilities(dialect)).map_err(|refused| refused.parameter)?;
    Ok(body(&ask, Prompt::Ids(&[1, 2]), abilities(dialect)))
}

/// One row per parameter: the value that each engine is sent under its own name, `None` where it is refused by the parameter's name.
type Row = (&'static str, fn(&mut SamplingParams, &mut Ask<'_>), [Option<(&'static str, Value)>; 4]);

fn rows() -> Vec<Row> {
    let all = |name, value: Value| [0, 1, 2, 3].map(|_| Some((name, value.clone())));
    let but_openai = |name, value: Value| {
        [None, Some((name, value.clone())), Some((name, value.clone())), Some((name, value))]
    };
    vec![
        ("temperature", |p, _| p.temperature = 0.5, all("temperature", json!(0.5))),
        ("top_p", |p, _| p.top_p = 0.25, all("top_p", json!(0.25))),
        ("top_k", |p, _| p.top_k = 40, but_openai("top_k", json!(40))),
        ("min_p", |p, _| p.min_p = 0.125, but_openai("min_p", json!(0.125))),
        ("presence_penalty", |p, _| p.presence_penalty = 1.5, all("presence_penalty", json!(1.5))),
        ("frequency_penalty", |p, _| p.frequency_penalty = -0.5, all("frequency_penalty", json!(-0.5))),
        (
            "repetition_penalty",
            |p, _| p.repetition_penalty = 1.25,
            [
                None,
                Some(("repetition_penalty", json!(1.25))),
                Some(("repetition_penalty", json!(1.25))),
                Some(("repeat_penalty", json!(1.25))),
            ],
        ),
        (
            "logit_bias",
            |p, _| p.logit_bias = vec![(5, 1.0), (5, 0.5), (9, -100.0)],
            [
                Some(("logit_bias", json!({"5": 1.5, "9": -100.0}))),
                Some(("logit_bias", json!({"5": 1.5, "9": -100.0}))),
                Some(("logit_bias", json!({"5": 1.5, "9": -100.0}))),
                Some(("logit_bias", json!([[5, 1.0], [5, 0.5], [9, -100.0]]))),
            ],
        ),
        (
            "stop_token_ids",
            |p, _| p.stop_token_ids = vec![3],
            // llama.cpp is not told: the adapter ends the choice itself.
            [
                None,
                Some(("stop_token_ids", json!([3]))),
                Some(("stop_token_ids", json!([3]))),
                Some(("return_tokens", json!(true))),
            ],
        ),
        (
            "min_tokens",
            |_, ask| ask.min_tokens = 4,
            [None, Some(("min_tokens", json!(4))), Some(("min_tokens", json!(4))), None],
        ),
        ("ignore_eos", |_, ask| ask.ignore_eos = true, but_openai("ignore_eos", json!(true))),
        (
            "logprobs",
            |p, _| p.logprobs = Some(0),
            [None, Some(("logprobs", json!(0))), Some(("logprobs", json!(0))), Some(("n_probs", json!(1)))],
        ),
        (
            "logprobs",
            |p, _| p.logprobs = Some(5),
            [None, Some(("logprobs", json!(5))), None, Some(("n_probs", json!(5)))],
        ),
        (
            "max_tokens",
            |_, ask| ask.max_tokens = 77,
            [
                Some(("max_tokens", json!(77))),
                Some(("max_tokens", json!(77))),
                Some(("max_tokens", json!(77))),
                Some(("n_predict", json!(77))),
            ],
        ),
        (
            "seed",
            |_, ask| ask.seed = 8,
            [
                Some(("seed", json!(4))),
                Some(("seed", json!(4))),
                Some(("seed", json!(4))),
                Some(("seed", json!(8))),
            ],
        ),
        (
            "cache_salt",
            |_, ask| ask.cache_salt = "s",
            [None, Some(("cache_salt", json!("s"))), Some(("cache_salt", json!("s"))), None],
        ),
    ]
}

#[test]
fn every_parameter_is_mapped_or_refused_by_name() {
    for (parameter, change, expected) in rows() {
        for (dialect, expected) in ALL.into_iter().zip(expected) {
            match (said(dialect, change), expected) {
                (Ok(body), Some((name, value))) => {
                    assert_eq!(body[name], value, "{parameter} for {dialect}: {body}");
                }
                (Err(refused), None) => assert_eq!(refused, parameter, "{dialect}"),
                (said, expected) => panic!("{parameter} for {dialect}: {said:?}, not {expected:?}"),
            }
        }
    }
}

#[test]
fn an_engines_own_defaults_are_overruled() {
    let params = SamplingParams::default();
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let body = body(&ask(&params), Prompt::Ids(&[1, 2]), abilities(dialect));
        let wanted = json!({
            "model": "m", "prompt": [1, 2], "stream": true, "stream_options": {"include_usage": true},
            "max_tokens": 9, "min_tokens": 0, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": 3,
            "ignore_eos": false, "stop_token_ids": [], "skip_special_tokens": false, "return_token_ids": true,
        });
        assert_eq!(body, wanted, "{dialect}");
    }
    let body = body(&ask(&params), Prompt::Text("a b"), abilities(Dialect::LlamaCpp));
    let wanted = json!({
        "prompt": "a b", "stream": true, "n_predict": 9, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repeat_penalty": 1.0, "repeat_last_n": 0, "seed": 7,
        "ignore_eos": false, "return_tokens": true, "cache_prompt": true,
    });
    assert_eq!(body, wanted);
}

#[test]
fn seeds_fit_what_the_engine_takes_and_differ_by_choice_and_position() {
    let params = SamplingParams::default();
    for seed in [0, 1, u64::MAX, 0xffff_ffff, 0xffff_ffff_0000_0000] {
        let ask = Ask { seed, ..ask(&params) };
        let of = |dialect| body(&ask, Prompt::Ids(&[1]), abilities(dialect))["seed"].as_u64().unwrap();
        assert!(of(Dialect::Vllm) <= i64::MAX as u64);
        assert!(of(Dialect::LlamaCpp) < u64::from(u32::MAX), "all bits set would be a random one");
    }
    let seeds = [choice_seed(1, 0, 0), choice_seed(1, 1, 0), choice_seed(1, 0, 1), choice_seed(2, 0, 0)];
    for (i, seed) in seeds.iter().enumerate() {
        assert!(!seeds[..i].contains(seed));
    }
    assert_eq!(choice_seed(1, 0, 0), seeds[0]);
}
