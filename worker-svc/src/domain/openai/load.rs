//! What an engine says of its load on its metrics page.

use super::dialect::Dialect;

/// The engine's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineLoad {
    /// Requests that it computes.
    pub running: u32,
    /// Requests that wait in it.
    pub waiting: u32,
    /// Share of its KV memory that requests hold, 0 to 1; `None` when it does not say.
    pub kv_used: Option<f64>,
    /// Tokens that its KV memory has room for; `None` when it does not say.
    pub kv_tokens: Option<u64>,
}

impl EngineLoad {
    /// Reads a page in Prometheus' text form. `None`: it has none of the numbers that this kind of engine has.
    pub fn read(page: &str, dialect: Dialect) -> Option<Self> {
        let (running, waiting, used) = match dialect {
            Dialect::Vllm => (
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                // Newer versions first.
                ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
            ),
            Dialect::Sglang => {
                ("sglang:num_running_reqs", "sglang:num_queue_reqs", ["sglang:token_usage"; 2])
            }
            Dialect::LlamaCpp => (
                "llamacpp:requests_processing",
                "llamacpp:requests_deferred",
                ["llamacpp:kv_cache_usage_ratio"; 2],
            ),
            Dialect::OpenAi => return None,
        };
        let samples = samples(page);
        let sum = |name: &str| {
            let values: Vec<f64> = of(&samples, name).map(|(_, value)| value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>())
        };
        let most = |name: &str| of(&samples, name).map(|(_, value)| value).reduce(f64::max);
        let kv_tokens = match dialect {
            Dialect::Vllm => of(&samples, "vllm:cache_config_info").find_map(|(labels, _)| {
                let number = |name: &str| label(labels, name)?.parse::<u64>().ok();
                number("block_size")?.checked_mul(number("num_gpu_blocks")?)
            }),
            Dialect::Sglang => most("sglang:max_total_num_tokens").map(|tokens| tokens as u64),
            Dialect::LlamaCpp | Dialect::OpenAi => None,
        };
        Some(Self {
            running: sum(running)? as u32,
            waiting: sum(waiting).unwrap_or_default() as u32,
            kv_used: used.into_iter().find_map(most).filter(|share| (0.0..=1.0).contains(share)),
            kv_tokens: kv_tokens.filter(|tokens| *tokens > 0),
        })
    }
}

/// (name, labels, value) of each sample.
fn samples(page: &str) -> Vec<(&str, &str, f64)> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &'_ str| -> Option<(usize, usize, f64)> {
        let name = line.find(['{', ' '])?;
        let rest = match line[name..].starts_with('{') {
            true => name + line[name..].rfind('}')? + 1,
            false => name,
        };
        let value: f64 = line[rest..].split_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some((name, rest, value))
    };
    lines
        .filter_map(|line| sample(line).map(|(name, rest, value)| (&line[..name], &line[name..rest], value)))
        .collect()
}

fn of<'a>(samples: &'a [(&'a str, &'a str, f64)], name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    samples.iter().filter(move |(it, ..)| *it == name).map(|(_, labels, value)| (*labels, *value))
}

/// The value of a label in `{name="value",...}`.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let begin = labels.find(&format!("{name}=\""))? + name.len() + 2;
    labels[begin..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_says_requests_cache_and_its_size() {
        let page = r#"# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a } b"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="2048"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0
"#;
        let load = EngineLoad { running: 5, waiting: 4, kv_used: Some(0.5), kv_tokens: Some(32768) };
        assert_eq!(EngineLoad::read(page, Dialect::Vllm), Some(load));
        assert_eq!(EngineLoad::read(page, Dialect::LlamaCpp), None);
        let old = "vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.125\n";
        let load = EngineLoad { running: 1, kv_used: Some(0.125), ..EngineLoad::default() };
        assert_eq!(EngineLoad::read(old, Dialect::Vllm), Some(load));
    }

    #[test]
    fn llama_cpp_and_sglang_have_names_of_their_own() {
        let page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 6\n";
        let load = EngineLoad { running: 1, waiting: 6, ..EngineLoad::default() };
        assert_eq!(EngineLoad::read(page, Dialect::LlamaCpp), Some(load));
        let page = "sglang:num_running_reqs{model_name=\"m\"} 2.0\nsglang:num_queue_reqs{model_name=\"m\"} 1.0\n\
            sglang:token_usage{model_name=\"m\"} 0.75\nsglang:max_total_num_tokens{model_name=\"m\"} 1000\n";
        let load = EngineLoad { running: 2, waiting: 1, kv_used: Some(0.75), kv_tokens: Some(1000) };
        assert_eq!(EngineLoad::read(page, Dialect::Sglang), Some(load));
    }

    #[test]
    fn nonsense_is_no_load() {
        for page in
            ["", "<html>", "vllm:num_requests_running NaN", "vllm:num_requests_running{", "{} 1\n= \" 3"]
        {
            assert_eq!(EngineLoad::read(page, Dialect::Vllm), None, "{page}");
        }
    }
}
