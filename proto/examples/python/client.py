"""Streams the answer to one chat message over gRPC. Usage: client.py ADDRESS TEXT [NAME=VALUE...]

The answer goes to standard output, everything about it to standard error. Names: model, max_tokens, seed, cancel_after (deltas),
deadline (seconds). Needs grpcio, grpcio-status and the stubs; README.md in the folder above says how they are made.
"""

import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from armature.inference.v1 import inference_pb2, inference_pb2_grpc, types_pb2


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def explain(error):
    """The code and message of a failed call, and the google.rpc details that say why and what to do."""
    say(f"error: {error.code().name}: {error.details()}")
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            say(f"  reason: {info.reason} ({info.domain}), scope {info.metadata['scope']}")
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            for violation in bad.field_violations:
                say(f"  field: {violation.field}: {violation.description}")
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            say(f"  retry after: {retry.retry_delay.ToMilliseconds()} ms")


def chat(stub, text, options):
    model = options.get("model") or stub.ListModels(inference_pb2.ListModelsRequest()).models[0].name
    request = inference_pb2.GenerateRequest(model=model)
    request.messages.messages.add(role="user", content=text)
    request.stop.max_tokens = int(options.get("max_tokens", 64))
    if "seed" in options:
        request.sampling.seed = int(options["seed"])
    deadline = float(options["deadline"]) if "deadline" in options else None
    cancel_after = int(options.get("cancel_after", 0))

    call = stub.Generate(request, timeout=deadline)
    deltas, reason = 0, "UNSPECIFIED"
    for response in call:
        event = response.WhichOneof("event")
        if event == "started":
            say(f"started: {response.started.model} on {response.started.decode_worker}, seed {response.started.seed}")
        elif event == "delta":
            print(response.delta.text, end="", flush=True)
            if response.delta.finish_reason:
                reason = types_pb2.FinishReason.Name(response.delta.finish_reason).removeprefix("FINISH_REASON_")
            deltas += 1
            if deltas == cancel_after:
                # All work behind the stream ends, on every worker.
                call.cancel()
                return say(f"cancelled: after {deltas} deltas")
        elif event == "finished":
            say(f"finished: {reason} after {response.finished.usage.completion_tokens} tokens")


def main():
    address, text, options = sys.argv[1], sys.argv[2], dict(argument.split("=", 1) for argument in sys.argv[3:])
    with grpc.insecure_channel(address) as channel:
        try:
            chat(inference_pb2_grpc.InferenceServiceStub(channel), text, options)
        except grpc.RpcError as error:
            explain(error)
            sys.exit(1)


if __name__ == "__main__":
    main()
