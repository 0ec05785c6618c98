#!/usr/bin/env bash
# The official OpenAI client (pip install openai) completes, streams, cancels.
set -euo pipefail
"$KVASIR" doctor --json | grep -q '"libmicrohttpd": null' && { echo "SKIP: built without libmicrohttpd"; exit 77; }
python3 -c 'import openai' 2>/dev/null || { echo "SKIP: the Python package openai is not installed"; exit 77; }
python3 - <<'PY'
import re
import sys
import time

import openai

sys.path.insert(0, "tests/serve")
from server import Server

with Server("--chat", "plain", "--name", "org/tiny", environment={"KVASIR_API_KEY": "secret"}) as s:
    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="secret", max_retries=0)
    assert [m.id for m in client.models.list()] == ["org/tiny"]
    assert client.models.retrieve("org/tiny") == client.models.list().data[0]
    try:
        client.models.retrieve("tiny")
        raise SystemExit("no error for another model")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found", e
    asked = dict(model="org/tiny", prompt="Once upon", max_tokens=12, seed=4)
    whole = client.completions.create(**asked)
    assert whole.usage.completion_tokens <= 12 and whole.choices[0].text, whole
    assert "".join(e.choices[0].text for e in client.completions.create(**asked, stream=True)) == whole.choices[0].text

    chat = dict(model="org/tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=12, seed=4)
    answer = client.chat.completions.create(**chat)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content, answer
    for name, harmless, other in (("service_tier", "auto", None), ("parallel_tool_calls", True, None), ("tool_choice", "none", "required"),
                                  ("top_logprobs", 0, 2), ("response_format", {"type": "text"}, {"type": "json_object"})):
        assert client.chat.completions.create(**chat, **{name: harmless}).choices[0].message == answer.choices[0].message
        try:
            if other:
                client.chat.completions.create(**chat, **{name: other})
                raise SystemExit("no error: %s %s" % (name, other))
        except openai.BadRequestError as e:
            assert name in str(e), e
    pieces = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == answer.choices[0].message.content
    assert pieces[-1].usage.prompt_tokens == answer.usage.prompt_tokens

    for wrong, error in ((dict(model="other"), openai.NotFoundError), (dict(max_tokens=100000), openai.BadRequestError)):
        try:
            client.completions.create(**(asked | wrong))
            raise SystemExit("no error: %s" % wrong)
        except error:
            pass
    try:
        client.with_options(api_key="wrong").models.list()
        raise SystemExit("no error for a wrong key")
    except openai.AuthenticationError:
        pass

    stream = client.completions.create(model="org/tiny", prompt="x", max_tokens=290, n=8, stream=True, seed=1)
    next(iter(stream))
    stream.close()  # cancelled: the server ends the texts
    key = {"Authorization": "Bearer secret"}
    for _ in range(500):
        text = s.ask("GET", "/metrics", headers=key)[1]
        if "\nkvasir_texts_running 0\n" in text:
            break
        time.sleep(0.02)
    assert int(re.search(r"\nkvasir_generated_tokens_total (\d+)", text)[1]) < 8 * 290, text
PY
