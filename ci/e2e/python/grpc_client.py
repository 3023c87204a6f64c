"""What a gRPC client of another language sees of a running frontend. Usage: grpc_client.py HOST:PORT PROTO_DIR

Builds its stubs from the .proto files, in a temporary folder. Works with any model of a context of 8,192 tokens or more that
takes longer than half a second for them. Exits 1 on the first thing that is not as the contract says.
"""

import pathlib
import sys
import tempfile

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status
from grpc_tools import protoc

SERVICE = "armature.inference.v1.InferenceService"
TEXT = "Grüße an 🦀 und 👩‍👩‍👧, 日本語 <|im_end|>"


def check(holds, what, *seen):
    if not holds:
        raise AssertionError(f"{what}: {seen}")


def build_stubs(protos):
    """Compiles every contract and makes the stubs importable."""
    folder = tempfile.mkdtemp(prefix="armature-stubs-")
    files = sorted(str(path.relative_to(protos)) for path in protos.glob("armature/**/*.proto"))
    included = pathlib.Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{protos}", f"-I{included}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    check(protoc.main(arguments + files) == 0, "the contracts compile", files)
    sys.path.insert(0, folder)


def generate(stub, request, **more):
    """Started, all text of choice 0, the deltas, Finished."""
    events = list(stub.Generate(request, timeout=60, **more))
    kinds = [event.WhichOneof("event") for event in events]
    check(kinds[0] == "started" and kinds[-1] == "finished", "an answer has a beginning and an end", kinds)
    check(set(kinds[1:-1]) == {"delta"}, "and deltas between", kinds)
    deltas = [event.delta for event in events[1:-1]]
    text = "".join(delta.text for delta in deltas if delta.choice == 0)
    return events[0].started, text, deltas, events[-1].finished


def lists_models(stub, pb, model):
    listed = stub.ListModels(pb.ListModelsRequest()).models
    check(len(listed) == len({it.name for it in listed}), "each model once", listed)
    check(all(it.context_length > 0 and len(it.model_digest) == 32 for it in listed), "models say what they are", listed)


def generates_from_messages(stub, pb, model):
    messages = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="Hello")])
    request = pb.GenerateRequest(model=model, messages=messages, n=2, stop={"max_tokens": 16, "ignore_eos": True})
    started, text, deltas, finished = generate(stub, request, metadata=[("x-request-id", "from-python")])
    check(started.model == model and started.request_id == "from-python", "the caller's request id is kept", started)
    check(len(started.decode_worker) == 16, "the worker is named", started)
    check({delta.choice for delta in deltas} == {0, 1}, "two choices", deltas)
    ends = [delta.finish_reason for delta in deltas if delta.finish_reason]
    check(ends == [pb.FINISH_REASON_LENGTH] * 2, "each choice ends once", ends)
    usage = finished.usage
    check(usage.prompt_tokens == started.prompt_tokens and usage.completion_tokens == 32, "usage", finished)
    parts = usage.cached_tokens + usage.transferred_tokens + usage.computed_tokens
    check(parts == usage.prompt_tokens, "each prompt token was found, received or computed", usage)
    request.sampling.seed = started.seed
    check(generate(stub, request)[1] == text, "the seed that was said gives the same answer")


def generates_from_text_and_ids(stub, pb, model):
    asked = {"sampling": {"seed": 4, "logprobs": 2}, "stop": {"max_tokens": 16, "ignore_eos": True}, "return_token_ids": True}
    from_text = generate(stub, pb.GenerateRequest(model=model, text="a text", **asked))
    ids = stub.Tokenize(pb.TokenizeRequest(model=model, text="a text")).token_ids
    from_ids = generate(stub, pb.GenerateRequest(model=model, token_ids={"token_ids": ids}, **asked))
    check(from_text[1] == from_ids[1] != "", "text and its ids say the same", from_text, from_ids)
    tokens = [token for delta in from_ids[2] for token in delta.tokens]
    check(len(tokens) == 16 and all(len(it.top) == 2 and it.logprob <= 0 for it in tokens), "tokens with logprobs", tokens)
    back = stub.Detokenize(pb.DetokenizeRequest(model=model, token_ids=[it.token_id for it in tokens])).text
    check(back == from_ids[1], "the ids are those of the text", back, from_ids[1])


def stops_at_strings(stub, pb, model):
    request = pb.GenerateRequest(model=model, text="stop", sampling={"seed": 6}, stop={"max_tokens": 40, "ignore_eos": True})
    plain = generate(stub, request)[1]
    request.stop_strings.append(plain[15:18])
    _, text, deltas, _ = generate(stub, request)
    check(text == plain[: plain.index(plain[15:18])], "text ends before the stop string", text, plain)
    check(deltas[-1].finish_reason == pb.FINISH_REASON_STOP, "a stop string is a stop", deltas)


def tokenizes_and_back(stub, pb, model):
    ids = stub.Tokenize(pb.TokenizeRequest(model=model, text=TEXT)).token_ids
    check(stub.Detokenize(pb.DetokenizeRequest(model=model, token_ids=ids)).text == TEXT, "there and back", ids)
    messages = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=TEXT)])
    rendered = stub.Tokenize(pb.TokenizeRequest(model=model, messages=messages)).token_ids
    check(TEXT in stub.Detokenize(pb.DetokenizeRequest(model=model, token_ids=rendered)).text, "a message in its template")


def long_request(pb, model):
    return pb.GenerateRequest(model=model, text="for ever", stop={"max_tokens": 8_000, "ignore_eos": True})


def keeps_deadlines(stub, pb, model):
    try:
        events = list(stub.Generate(long_request(pb, model), timeout=0.5))
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, "a deadline ends it", error)
    else:
        raise AssertionError(f"a deadline was ignored: {len(events)} events")


def cancels(stub, pb, model):
    call = stub.Generate(long_request(pb, model), timeout=60)
    check(next(call).WhichOneof("event") == "started", "it began")
    check(next(call).delta.text, "it speaks")
    call.cancel()
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.CANCELLED, "it was cancelled", error)
    check(generate(stub, pb.GenerateRequest(model=model, text="next", stop={"max_tokens": 9, "ignore_eos": True}))[1], "the next is served")


def refused(call):
    """Code, ErrorInfo and fields of BadRequest of a call that must fail."""
    try:
        call()
    except grpc.RpcError as error:
        status = rpc_status.from_call(error)
        check(status is not None, "an error has details", error)
        info, fields = error_details_pb2.ErrorInfo(), []
        bad = error_details_pb2.BadRequest()
        for detail in status.details:
            detail.Unpack(info)
            if detail.Unpack(bad):
                fields = [violation.field for violation in bad.field_violations]
        return error.code(), info, fields
    raise AssertionError("it was taken")


def explains_errors(stub, pb, model):
    invalid, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    for request, code, reason, field in [
        ({"sampling": {"temperature": float("nan")}}, invalid, "INVALID_ARGUMENT", "sampling.temperature"),
        ({"stop": {"max_tokens": 0}}, invalid, "INVALID_ARGUMENT", "stop.max_tokens"),
        ({"stop": {"max_tokens": 2**32 - 1}}, invalid, "CONTEXT_LENGTH_EXCEEDED", "text"),
        ({"n": 129}, invalid, "INVALID_ARGUMENT", "n"),
        ({"model": "no such model"}, missing, "MODEL_NOT_FOUND", "model"),
    ]:
        message = pb.GenerateRequest(**{"model": model, "text": "x", **request})
        got, info, fields = refused(lambda: list(stub.Generate(message, timeout=60)))
        check((got, info.domain, info.reason) == (code, "armature", reason), "why", request, got, info)
        check(fields == [field], "the field is named", request, fields)
        check(info.metadata["scope"] == "REQUEST", "no other worker would do better", info)


def answers_health_and_reflection(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        status = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
        check(status == health_pb2.HealthCheckResponse.SERVING, "it serves", service, status)
    database = ProtoReflectionDescriptorDatabase(channel)
    check(SERVICE in database.get_services(), "reflection lists the service")
    described = database.FindFileContainingSymbol(SERVICE)
    methods = {method.name for service in described.service for method in service.method}
    check({"Generate", "ListModels", "Tokenize", "Detokenize"} <= methods, "reflection describes it", methods)


CHECKS = [
    lists_models,
    generates_from_messages,
    generates_from_text_and_ids,
    stops_at_strings,
    tokenizes_and_back,
    keeps_deadlines,
    cancels,
    explains_errors,
]


def main():
    address, protos = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    build_stubs(protos)
    from armature.inference.v1 import inference_pb2, inference_pb2_grpc, types_pb2

    for name, value in types_pb2.FinishReason.items():
        setattr(inference_pb2, name, value)
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        answers_health_and_reflection(channel)
        model = stub.ListModels(inference_pb2.ListModelsRequest()).models[0].name
        for each in CHECKS:
            each(stub, inference_pb2, model)
            print("ok", each.__name__)


if __name__ == "__main__":
    main()
