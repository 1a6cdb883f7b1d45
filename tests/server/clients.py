"""The official Python clients, unchanged, against a running server of the embedded model.

    python3 -m venv /tmp/clients && /tmp/clients/bin/pip install openai anthropic
    millstream serve --port 8099 --api-key sesame --alias gpt-4o &
    /tmp/clients/bin/python tests/server/clients.py http://127.0.0.1:8099 sesame

Every check prints its line; the first that fails ends it with an error.
"""

import sys
import threading

import anthropic
import openai

BASE, KEY = sys.argv[1], sys.argv[2]
MODEL = "nano-glm-dsa"
TEXT = "It is a truth universally acknowledged, that"
USER = [{"role": "user", "content": TEXT}]
ai = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0)
claude = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0)


def check(name, holds):
    assert holds, name
    print("ok", name)


def expect(name, kind, call):
    try:
        call()
    except kind as error:
        print("ok", name, "->", type(error).__name__, error.status_code, getattr(error, "code", ""))
        return error
    raise AssertionError(name)


def openai_chat():
    ask = dict(model=MODEL, messages=USER, max_tokens=16, temperature=0)
    whole = ai.chat.completions.create(**ask)
    text = whole.choices[0].message.content
    check("openai chat", text.startswith(" it is not") and whole.choices[0].finish_reason == "length")
    check("openai usage", whole.usage.completion_tokens == 16 and whole.usage.total_tokens > 16)
    chunks = list(ai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("openai chat stream", streamed == text and chunks[-1].usage == whole.usage)
    two = ai.chat.completions.create(**{**ask, "temperature": 1.0}, n=2, seed=5)
    check("openai n", [c.index for c in two.choices] == [0, 1] and two.choices[0].message.content != two.choices[1].message.content)
    scored = ai.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    content = scored.choices[0].logprobs.content
    check("openai logprobs", "".join(c.token for c in content) == text and len(content[0].top_logprobs) == 2)
    cut = ai.chat.completions.create(**ask, stop=["t to b"])
    check("openai stop", cut.choices[0].message.content == " it is no" and cut.choices[0].finish_reason == "stop")
    alias = ai.chat.completions.create(**{**ask, "model": "gpt-4o"})
    check("openai alias", alias.model == "gpt-4o" and alias.choices[0].message.content == text)
    with ai.chat.completions.create(**{**ask, "max_tokens": 900}, stream=True) as stream:
        next(iter(stream))
    check("openai stream closed early", True)


def openai_rest():
    done = ai.completions.create(model=MODEL, prompt=TEXT, max_tokens=6, temperature=0)
    check("openai completion", done.choices[0].text.startswith(" it is"))
    parts = list(ai.completions.create(model=MODEL, prompt=TEXT, max_tokens=6, temperature=0, stream=True))
    check("openai completion stream", "".join(p.choices[0].text for p in parts) == done.choices[0].text)
    check("openai models", [m.id for m in ai.models.list()] == [MODEL, "gpt-4o"])
    check("openai model", ai.models.retrieve("gpt-4o").id == "gpt-4o")
    error = expect("openai unknown model", openai.NotFoundError,
                   lambda: ai.chat.completions.create(model="gpt-9", messages=USER))
    check("openai error code", error.code == "model_not_found" and error.param == "model")
    expect("openai bad field", openai.BadRequestError,
           lambda: ai.chat.completions.create(model=MODEL, messages=USER, temperature=9))
    error = expect("openai too long", openai.BadRequestError,
                   lambda: ai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 50000}]))
    check("openai too long code", error.code == "context_length_exceeded")
    wrong = openai.OpenAI(base_url=BASE + "/v1", api_key="wrong", max_retries=0)
    expect("openai wrong key", openai.AuthenticationError, wrong.models.list)


def anthropic_messages():
    # Newer clients have no parameter for the temperature.
    ask = dict(model=MODEL, max_tokens=16, messages=USER, extra_body={"temperature": 0})
    whole = claude.messages.create(**ask)
    text = whole.content[0].text
    check("anthropic message", text.startswith(" it is not") and whole.stop_reason == "max_tokens")
    with claude.messages.stream(**ask) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("anthropic stream", streamed == text and final.usage.output_tokens == 16)
    check("anthropic final", final.content[0].text == text and final.stop_reason == "max_tokens")
    kinds = [event.type for event in claude.messages.create(**ask, stream=True)]
    check("anthropic events", kinds[0] == "message_start" and kinds[-1] == "message_stop")
    cut = claude.messages.create(**ask, stop_sequences=["t to b"])
    check("anthropic stop", cut.stop_reason == "stop_sequence" and cut.stop_sequence == "t to b")
    system = claude.messages.create(**ask, system=[{"type": "text", "text": "Chapter one"}])
    count = claude.messages.count_tokens(model=MODEL, messages=USER, system="Chapter one")
    check("anthropic count", system.usage.input_tokens == count.input_tokens)
    check("anthropic models", [m.id for m in claude.models.list()] == [MODEL, "gpt-4o"])
    expect("anthropic unknown model", anthropic.NotFoundError,
           lambda: claude.messages.create(**{**ask, "model": "claude-9"}))
    expect("anthropic bad field", anthropic.BadRequestError,
           lambda: claude.messages.create(**{**ask, "extra_body": {"top_k": -4}}))
    wrong = anthropic.Anthropic(base_url=BASE, api_key="wrong", max_retries=0)
    expect("anthropic wrong key", anthropic.AuthenticationError, lambda: wrong.messages.create(**ask))


def company():
    texts = ["The", "It was", "Call me", "In the beginning", TEXT, "Marley was dead", "Whether I", "No"]
    say = lambda text: ai.chat.completions.create(
        model=MODEL, max_tokens=40, temperature=0, messages=[{"role": "user", "content": text}]).choices[0].message.content
    alone = [say(text) for text in texts]
    together = [None] * len(texts)

    def one(index):
        together[index] = say(texts[index])
    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(texts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    check("eight at once equal each alone", together == alone)


openai_chat()
openai_rest()
anthropic_messages()
company()
print("openai", openai.__version__, "anthropic", anthropic.__version__, "all good")
