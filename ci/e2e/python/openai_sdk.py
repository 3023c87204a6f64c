"""What the official OpenAI SDK sees of a running frontend. Usage: openai_sdk.py http://HOST:PORT/v1

Works with any model: end tokens are ignored where the length of an answer matters. Exits 1 on the first thing that is not
as the SDK's users expect it.
"""

import math
import sys
import uuid

import openai


def check(holds, what, *seen):
    if not holds:
        raise AssertionError(f"{what}: {seen}")


def say(client, model, text, **more):
    more.setdefault("max_tokens", 12)
    more.setdefault("extra_body", {"ignore_eos": True})
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


def streamed(client, model, text, **more):
    """Text of each choice, finish reason of each, usage, of a streamed chat."""
    texts, reasons, usage = {}, {}, None
    for chunk in say(client, model, text, stream=True, stream_options={"include_usage": True}, **more):
        check(chunk.object == "chat.completion.chunk", "object of a chunk", chunk.object)
        if chunk.usage is not None:
            check(chunk.choices == [] and usage is None, "usage comes once, in a chunk of its own", chunk)
            usage = chunk.usage
        for choice in chunk.choices:
            check(choice.index not in reasons, "nothing comes after a finish reason", chunk)
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    check(usage is not None, "usage of a stream")
    return texts, reasons, usage


def lists_models(client, model):
    names = [listed.id for listed in client.models.list()]
    check(model in names and len(names) == len(set(names)), "each model is listed once", names)
    check(client.models.retrieve(model).id == model, "a model by its name")


def chats(client, model):
    answer = say(client, model, "Hello")
    choice = answer.choices[0]
    check(answer.object == "chat.completion" and answer.model == model, "an answer says what it is", answer)
    check(choice.message.role == "assistant" and choice.message.content, "an assistant speaks", choice)
    check(choice.finish_reason == "length" and answer.usage.completion_tokens == 12, "it stops at max_tokens", answer)
    usage = answer.usage
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "tokens add up", usage)


def streams_the_same_text(client, model):
    whole = say(client, model, "Stream to me", seed=3, max_completion_tokens=20, max_tokens=None)
    texts, reasons, usage = streamed(client, model, "Stream to me", seed=3, max_tokens=20)
    check(texts == {0: whole.choices[0].message.content}, "a stream says what the whole says", texts, whole)
    check(reasons == {0: "length"}, "a stream says why it ended", reasons)
    check(usage.completion_tokens == 20, "a stream counts its tokens", usage)


def leaves_a_stream(client, model):
    with say(client, model, "Talk for long", stream=True, max_tokens=2000) as stream:
        check(next(iter(stream)).choices[0].delta.role == "assistant", "the first chunk names the role")
    check(say(client, model, "Still there?").choices[0].message.content, "a stream that was left disturbs nobody")


def reuses_a_long_prompt(client, model):
    prompt = "the same beginning, word for word, "
    prompt *= 30
    # A salt of its own: nobody has asked this before, however often the script runs.
    salt = {"cache_salt": uuid.uuid4().hex, "ignore_eos": True}
    first, again = (client.completions.create(model=model, prompt=prompt, max_tokens=4, seed=1, extra_body=salt) for _ in range(2))
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, again)]
    tokens = again.usage.prompt_tokens
    # All full blocks but the last, in which at least one token is computed for its logits.
    check(cached[0] == 0 and tokens - 32 <= cached[1] < tokens, "the second finds the first's prefix", cached, tokens)
    check(first.choices[0].text == again.choices[0].text, "a cached prefix changes no answer", first, again)


def gives_n_choices(client, model):
    answer = say(client, model, "Twice", n=2, seed=5)
    texts = [choice.message.content for choice in answer.choices]
    check([choice.index for choice in answer.choices] == [0, 1], "choices in order", answer)
    check(texts[0] != texts[1], "choices are drawn separately", texts)
    check(answer.usage.completion_tokens == 24, "tokens of all choices count", answer.usage)
    streams, reasons, _ = streamed(client, model, "Twice", n=2, seed=5)
    check(streams == dict(enumerate(texts)), "streamed choices are the same", streams, texts)
    check(reasons == {0: "length", 1: "length"}, "each choice ends", reasons)


def stops_at_strings(client, model):
    plain = say(client, model, "Stop", seed=7, max_tokens=40).choices[0].message.content
    stop = plain[17:20]
    expected = plain[: plain.index(stop)]
    answer = say(client, model, "Stop", seed=7, max_tokens=40, stop=[stop, "never said"])
    check(answer.choices[0].message.content == expected, "text ends before the stop string", answer, plain, stop)
    check(answer.choices[0].finish_reason == "stop", "a stop string is a stop", answer)
    texts, reasons, _ = streamed(client, model, "Stop", seed=7, max_tokens=40, stop=stop)
    check((texts, reasons) == ({0: expected}, {0: "stop"}), "a stream never shows the stop string", texts, reasons)


def repeats_by_seed(client, model):
    texts = [say(client, model, "Seed", seed=seed, temperature=1, max_tokens=40).choices[0].message.content for seed in (9, 9, 10)]
    check(texts[0] == texts[1], "an equal seed gives an equal answer", texts)
    check(texts[0] != texts[2], "another seed gives another", texts)
    greedy = [say(client, model, "Seed", seed=seed, temperature=0).choices[0].message.content for seed in (1, 2)]
    check(greedy[0] == greedy[1], "a greedy answer knows no seed", greedy)


def gives_logprobs(client, model):
    choice = say(client, model, "Logprobs", logprobs=True, top_logprobs=3, temperature=0).choices[0]
    tokens = choice.logprobs.content
    check(len(tokens) == 12, "a logprob for each token", tokens)
    check("".join(token.token for token in tokens) == choice.message.content, "tokens make the text", choice)
    for token in tokens:
        best = [other.logprob for other in token.top_logprobs]
        check(len(best) == 3 and best == sorted(best, reverse=True), "three alternatives, best first", token)
        check(token.token == token.top_logprobs[0].token, "greedy takes the best", token)
        check(sum(map(math.exp, best)) <= 1 + 1e-4, "probabilities", best)
    going_on = {"ignore_eos": True}
    answer = client.completions.create(model=model, prompt="Logprobs", max_tokens=5, logprobs=2, extra_body=going_on)
    old = answer.choices[0].logprobs
    check(len(old.tokens) == len(old.token_logprobs) == len(old.top_logprobs) == 5, "parallel lists", old)


def completes_token_ids(client, model):
    ids = list(b"token ids")
    asked = {"model": model, "max_tokens": 6, "seed": 2, "extra_body": {"ignore_eos": True}}
    answer = client.completions.create(prompt=[ids, ids[:4]], **asked)
    check([choice.index for choice in answer.choices] == [0, 1], "a choice for each prompt", answer)
    check(answer.usage.prompt_tokens == 13 and answer.usage.completion_tokens == 12, "tokens of all prompts", answer)
    text = client.completions.create(prompt="token ids", echo=True, **asked)
    if text.usage.prompt_tokens == len(ids):  # bytes are tokens: the simulated model
        check(text.choices[0].text == "token ids" + answer.choices[0].text, "ids say what text says", text, answer)


def maps_errors(client, model):
    for wrong, param in [
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0, "stream": True}, "n"),
        ({"messages": []}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"max_tokens": 10_000_000}, "messages"),
    ]:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], **wrong}
        try:
            client.chat.completions.create(**body)
        except openai.BadRequestError as error:
            check(error.param == param and error.type == "invalid_request_error", "the parameter is named", wrong, error)
            check(error.request_id, "an error has a request id", error)
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        say(client, "no such model", "x")
    except openai.NotFoundError as error:
        check((error.param, error.code) == ("model", "model_not_found"), "the model is named", error)
    else:
        raise AssertionError("an unknown model was served")


CHECKS = [
    lists_models,
    chats,
    streams_the_same_text,
    leaves_a_stream,
    reuses_a_long_prompt,
    gives_n_choices,
    stops_at_strings,
    repeats_by_seed,
    gives_logprobs,
    completes_token_ids,
    maps_errors,
]


def main():
    # No retries: what fails once must show.
    client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0, timeout=60)
    model = next(iter(client.models.list())).id
    for each in CHECKS:
        each(client, model)
        print("ok", each.__name__)


if __name__ == "__main__":
    main()
