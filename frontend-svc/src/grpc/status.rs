//! The one place where errors become gRPC statuses: parameters are named as the fields of the request message.

use armature_contracts::error::{Fault, Reason};
use tonic::Status;

use crate::domain::params::Invalid;

/// A wrong parameter.
pub fn invalid(invalid: Invalid) -> Fault {
    Fault::invalid(field(&invalid.param), invalid.message)
}

/// A fault, with its parameters renamed.
pub fn status(mut fault: Fault) -> Status {
    if fault.reason == Reason::ModelNotFound {
        fault.violations.push(("model".to_owned(), fault.message.clone()));
    }
    for (name, _) in &mut fault.violations {
        *name = field(name);
    }
    fault.into()
}

/// `fault`, with the prompt named as the field that holds it.
pub fn of_prompt(mut fault: Fault, field: &str) -> Fault {
    for (name, _) in fault.violations.iter_mut().filter(|(name, _)| name == "prompt") {
        field.clone_into(name);
    }
    fault
}

/// The path of a parameter in GenerateRequest; names of the domain are those of the HTTP API. A path stays as it is.
fn field(param: &str) -> String {
    let (name, _) = param.split_once('.').unwrap_or((param, ""));
    let group = match name {
        "temperature" | "top_p" | "top_k" | "min_p" | "presence_penalty" | "frequency_penalty"
        | "repetition_penalty" | "logit_bias" | "seed" | "logprobs" => "sampling.",
        "max_tokens" | "min_tokens" | "stop_token_ids" | "ignore_eos" => "stop.",
        "stop" if param == "stop" => return "stop_strings".to_owned(),
        _ => "",
    };
    format!("{group}{param}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_named_by_their_path() {
        assert_eq!(field("temperature"), "sampling.temperature");
        assert_eq!(field("logit_bias.7"), "sampling.logit_bias.7");
        assert_eq!(field("max_tokens"), "stop.max_tokens");
        assert_eq!(field("stop"), "stop_strings");
        assert_eq!(field("messages"), "messages");
        for param in ["temperature", "logit_bias.7", "max_tokens", "stop", "messages[0].role"] {
            assert_eq!(field(&field(param)), field(param));
        }
    }
}
