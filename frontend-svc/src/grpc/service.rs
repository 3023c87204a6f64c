//! InferenceService over the pipeline.

use std::sync::Arc;

use armature_contracts::error::Fault;
use armature_contracts::inference::v1 as wire;
use armature_contracts::inference::v1::inference_service_server::InferenceService;
use armature_svc_kit::call::{Call, RequestId};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tonic::{Request, Response, Status};

use super::convert;
use super::status::{invalid, of_prompt, status};
use crate::domain::params::Invalid;
use crate::domain::prompt::Input;
use crate::session::answer::Event;
use crate::session::generate::Generation;
use crate::session::pipeline::Pipeline;

/// Most tokens of one Detokenize: beyond any context length, and decoded in a moment.
const MAX_DETOKENIZE: usize = 4 * 1024 * 1024;

/// The service.
pub struct Inference {
    pipeline: Arc<Pipeline>,
}

impl Inference {
    /// The service in front of `pipeline`.
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline }
    }

    fn counted<T>(&self, endpoint: &'static str, result: Result<T, Fault>) -> Result<Response<T>, Status> {
        let result = result.map_err(status);
        let code = result.as_ref().err().map_or(200, http_class);
        self.pipeline.metrics.answered(endpoint, code);
        result.map(Response::new)
    }

    async fn open(&self, request: Request<wire::GenerateRequest>) -> Result<GenerateStream, Fault> {
        let mut call = request.extensions().get::<Call>().cloned().unwrap_or_default();
        call.request_id.get_or_insert_with(|| RequestId::from_random(self.pipeline.draw()));
        let caller = self.pipeline.caller(call, request.metadata().as_ref()).map_err(invalid)?;
        let message = request.into_inner();
        let tokens = message.return_token_ids
            || message.sampling.as_ref().is_some_and(|sampling| sampling.logprobs.is_some());
        let prompt = convert::prompt_field(&message);
        let ask = convert::ask(message)?;
        let opened = Box::pin(self.pipeline.open(ask, caller)).await;
        let generation = opened.map_err(|fault| of_prompt(fault, prompt))?;
        Ok(messages(generation, tokens))
    }

    async fn tokens(&self, request: wire::TokenizeRequest) -> Result<wire::TokenizeResponse, Fault> {
        let input = match request.input {
            Some(wire::tokenize_request::Input::Text(text)) => Input::Text(text),
            Some(wire::tokenize_request::Input::Messages(messages)) => {
                Input::Chat(convert::chat(messages).map_err(invalid)?)
            }
            None => return Err(invalid(Invalid::new("input", "is required"))),
        };
        let token_ids = self.pipeline.tokenize(&request.model, input).await?;
        Ok(wire::TokenizeResponse { token_ids })
    }

    fn text(&self, request: &wire::DetokenizeRequest) -> Result<wire::DetokenizeResponse, Fault> {
        if request.token_ids.len() > MAX_DETOKENIZE {
            let message = format!("{} tokens, the limit is {MAX_DETOKENIZE}", request.token_ids.len());
            return Err(Fault::invalid("token_ids", message));
        }
        Ok(wire::DetokenizeResponse { text: self.pipeline.detokenize(&request.model, &request.token_ids)? })
    }

    fn models(&self) -> wire::ListModelsResponse {
        let catalogue = self.pipeline.catalogue();
        let model = |(name, set): (&str, &Arc<crate::models::catalogue::ServedSet>)| wire::Model {
            name: name.to_owned(),
            context_length: set.context_length,
            model_digest: set.key.model.0.clone(),
        };
        wire::ListModelsResponse { models: catalogue.names().map(model).collect() }
    }
}

type GenerateStream = BoxStream<'static, Result<wire::GenerateResponse, Status>>;

fn messages(generation: Generation, tokens: bool) -> GenerateStream {
    let first = convert::started(&generation);
    let rest = stream::unfold(generation, move |mut generation| async move {
        let message = match generation.next().await? {
            Ok(Event::Delta(delta)) => Ok(convert::delta(delta, tokens)),
            Ok(Event::Finished(summary)) => Ok(convert::finished(&summary)),
            Err(fault) => Err(status(fault)),
        };
        Some((message, generation))
    });
    stream::once(std::future::ready(Ok(first))).chain(rest).boxed()
}

/// The status class that HTTP would have had, for the count of requests.
fn http_class(status: &Status) -> u16 {
    use tonic::Code;
    match status.code() {
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::Unauthenticated => 400,
        Code::Unimplemented | Code::AlreadyExists | Code::Cancelled | Code::OutOfRange => 400,
        Code::ResourceExhausted => 429,
        Code::Unavailable => 503,
        _ => 500,
    }
}

#[tonic::async_trait]
impl InferenceService for Inference {
    type GenerateStream = GenerateStream;

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<GenerateStream>, Status> {
        let result = self.open(request).await;
        self.counted("generate", result)
    }

    async fn list_models(
        &self,
        _: Request<wire::ListModelsRequest>,
    ) -> Result<Response<wire::ListModelsResponse>, Status> {
        self.counted("list_models", Ok(self.models()))
    }

    async fn tokenize(
        &self,
        request: Request<wire::TokenizeRequest>,
    ) -> Result<Response<wire::TokenizeResponse>, Status> {
        let result = self.tokens(request.into_inner()).await;
        self.counted("tokenize", result)
    }

    async fn detokenize(
        &self,
        request: Request<wire::DetokenizeRequest>,
    ) -> Result<Response<wire::DetokenizeResponse>, Status> {
        let result = self.text(request.get_ref());
        self.counted("detokenize", result)
    }
}
