// Streams the answer to one chat message over gRPC. Usage: client ADDRESS TEXT [NAME=VALUE...]
//
// The answer goes to standard output, everything about it to standard error. Names: model, max_tokens, seed, cancel_after (deltas),
// deadline (seconds).

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "armature/inference/v1/inference.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace {

namespace inference = armature::inference::v1;
using Options = std::map<std::string, std::string>;

const char *code_name(grpc::StatusCode code) {
  static const char *const names[] = {"OK",          "CANCELLED",         "UNKNOWN",        "INVALID_ARGUMENT", "DEADLINE_EXCEEDED",
                                      "NOT_FOUND",   "ALREADY_EXISTS",    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
                                      "ABORTED",     "OUT_OF_RANGE",      "UNIMPLEMENTED",  "INTERNAL",         "UNAVAILABLE",
                                      "DATA_LOSS",   "UNAUTHENTICATED"};
  return code >= 0 && code < 17 ? names[code] : "UNKNOWN";
}

// The code and message of a failed call, and the google.rpc details that say why and what to do: the trailer grpc-status-details-bin holds a
// google.rpc.Status, and that the details.
int explain(const grpc::Status &error) {
  std::cerr << "error: " << code_name(error.error_code()) << ": " << error.error_message() << std::endl;
  google::rpc::Status status;
  status.ParseFromString(error.error_details());
  for (const auto &detail : status.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) {
      std::cerr << "  reason: " << info.reason() << " (" << info.domain() << "), scope " << (*info.mutable_metadata())["scope"] << std::endl;
    }
    google::rpc::BadRequest bad;
    if (detail.UnpackTo(&bad)) {
      for (const auto &violation : bad.field_violations()) {
        std::cerr << "  field: " << violation.field() << ": " << violation.description() << std::endl;
      }
    }
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&retry)) {
      const auto &delay = retry.retry_delay();
      std::cerr << "  retry after: " << delay.seconds() * 1000 + delay.nanos() / 1000000 << " ms" << std::endl;
    }
  }
  return 1;
}

std::string reason_name(inference::FinishReason reason) {
  return inference::FinishReason_Name(reason).substr(std::string("FINISH_REASON_").size());
}

int chat(inference::InferenceService::Stub &stub, const std::string &text, Options &options) {
  inference::GenerateRequest request;
  if (options.count("model")) {
    request.set_model(options["model"]);
  } else {
    grpc::ClientContext context;
    inference::ListModelsResponse listed;
    const grpc::Status status = stub.ListModels(&context, inference::ListModelsRequest(), &listed);
    if (!status.ok()) return explain(status);
    if (listed.models().empty()) return std::cerr << "error: no model is served" << std::endl, 1;
    request.set_model(listed.models(0).name());
  }
  auto *message = request.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(text);
  request.mutable_stop()->set_max_tokens(options.count("max_tokens") ? std::stoul(options["max_tokens"]) : 64);
  if (options.count("seed")) request.mutable_sampling()->set_seed(std::stoull(options["seed"]));
  const long cancel_after = options.count("cancel_after") ? std::stol(options["cancel_after"]) : 0;

  grpc::ClientContext context;
  if (options.count("deadline")) {
    const auto patience = std::chrono::milliseconds(std::lround(std::stod(options["deadline"]) * 1000));
    context.set_deadline(std::chrono::system_clock::now() + patience);
  }
  const auto stream = stub.Generate(&context, request);
  inference::GenerateResponse response;
  long deltas = 0;
  inference::FinishReason reason = inference::FINISH_REASON_UNSPECIFIED;
  while (stream->Read(&response)) {
    if (response.has_started()) {
      const auto &started = response.started();
      std::cerr << "started: " << started.model() << " on " << started.decode_worker() << ", seed " << started.seed() << std::endl;
    } else if (response.has_delta()) {
      std::cout << response.delta().text() << std::flush;
      if (response.delta().finish_reason() != inference::FINISH_REASON_UNSPECIFIED) reason = response.delta().finish_reason();
      if (++deltas == cancel_after) {
        // All work behind the stream ends, on every worker.
        context.TryCancel();
        std::cerr << "cancelled: after " << deltas << " deltas" << std::endl;
        break;
      }
    } else if (response.has_finished()) {
      const auto tokens = response.finished().usage().completion_tokens();
      std::cerr << "finished: " << reason_name(reason) << " after " << tokens << " tokens" << std::endl;
    }
  }
  const grpc::Status status = stream->Finish();
  const bool as_wished = status.ok() || (status.error_code() == grpc::StatusCode::CANCELLED && deltas == cancel_after);
  return as_wished ? 0 : explain(status);
}

}  // namespace

int main(int count, char **arguments) {
  if (count < 3) return std::cerr << "usage: client ADDRESS TEXT [NAME=VALUE...]" << std::endl, 64;
  Options options;
  for (int i = 3; i < count; ++i) {
    const std::string option = arguments[i];
    const auto equals = option.find('=');
    if (equals == std::string::npos) return std::cerr << "not NAME=VALUE: " << option << std::endl, 64;
    options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  const auto channel = grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials());
  const auto stub = inference::InferenceService::NewStub(channel);
  return chat(*stub, arguments[2], options);
}
