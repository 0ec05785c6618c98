"""kvasir serve over plain HTTP: texts, streams, what is refused, clients that leave, that send junk, the end."""
import concurrent.futures
import errno
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, "tests/serve")
from server import MODEL, TOOL, Server, events


def prompt(i):
    """Prompts of 1 to 271 tokens that begin alike or not, so that chunks and the cache of prompts have work."""
    return ("the cat sat on the mat. " * 12)[i % 3:][:1 + 18 * i]


def asked(i, **more):
    return dict(prompt=prompt(i), max_tokens=5 + i, temperature=(0, 1)[i % 2], seed=i, **more)


def text_of(answer):
    return answer["choices"][0]["text"]


def stream(s, path, **body):
    c = s.connect()
    c.request("POST", path, json.dumps(dict(body, stream=True)))
    answer = c.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream", answer.status
    return c, answer


def same_as_generate(s, *options):
    made = subprocess.run([TOOL, "generate", *MODEL, *options, "--prompt", "once ", "--tokens", "20", "--temperature", "1", "--json"],
                          stdout=subprocess.PIPE, check=True).stdout
    answer = s.complete(prompt="once ", max_tokens=20, seed=0)
    assert text_of(answer) == json.loads(made)["text"], (answer, made)
    assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["total_tokens"] == 5 + json.loads(made)["tokens"]


def ragged_clients(s):
    alone = [text_of(s.complete(**asked(i))) for i in range(16)]
    assert len(set(alone)) > 12, alone
    found = [None] * 16

    def client(i):
        found[i] = text_of(s.complete(**asked(i)))

    for _ in range(2):
        threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert found == alone, [i for i in range(16) if found[i] != alone[i]]


def streams(s):
    for i in (1, 4):
        c, answer = stream(s, "/v1/completions", **asked(i, stream_options={"include_usage": True}))
        got = list(events(answer))
        c.close()
        assert "".join(text_of(e) for e in got if e["choices"]) == text_of(s.complete(**asked(i)))
        assert got[-2]["choices"][0]["finish_reason"] in ("length", "stop") and got[-1]["usage"]["prompt_tokens"] == len(prompt(i))
    c, answer = stream(s, "/v1/chat/completions", messages=[{"role": "system", "content": "S"}, {"role": "user", "content": [
        {"type": "text", "text": "U"}]}], max_tokens=9, seed=3)
    got = list(events(answer))
    c.close()
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    whole = text_of(s.complete(prompt="S\nUser: U\nAssistant:", max_tokens=9, seed=3, stop="\nUser:"))
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in got) == whole


def several(s):
    answer = s.complete(prompt=["ab", "cd"], n=3, max_tokens=6, seed=5)
    texts = [c["text"] for c in answer["choices"]]
    assert [c["index"] for c in answer["choices"]] == list(range(6)) and len(set(texts)) > 4, texts
    assert text_of(s.complete(prompt=[97, 98], max_tokens=6, seed=5)) == texts[0]
    for least in ({"top_p": 0}, {"top_k": 1}):  # the likeliest token, whatever the temperature
        assert text_of(s.complete(prompt="ab", max_tokens=6, **least)) == text_of(s.complete(prompt="ab", max_tokens=6, temperature=0)), least
    text = text_of(s.complete(prompt="q", max_tokens=200, seed=1))
    stop = re.search("[ -~]{2}", text[3:])[0]
    assert text_of(s.complete(prompt="q", max_tokens=200, seed=1, stop=[stop, "~~~"])) == text[:text.index(stop)]


def refusals(s):
    def refused(status, says, body, path="/v1/completions", method="POST"):
        found, text = s.ask(method, path, body)
        assert found == status and says in json.loads(text)["error"]["message"], (body, found, text)

    for body, says in [("", "not JSON"), ("[]", "a JSON object"), ("{", "not JSON"), ("[" * 100000, "not JSON"), ({}, "prompt: expected"),
                       ({"prompt": ""}, "at least one token"), ({"prompt": []}, "prompt: expected"), ({"prompt": [1, "a"]}, "expected tokens"),
                       ({"prompt": [257]}, "tokens from 0 to 256"), ({"prompt": [-1]}, "tokens from 0"), ({"prompt": {"a": 1}}, "prompt: expected"),
                       ({"prompt": "a", "n": 0}, "n: expected"), ({"prompt": "a", "n": 1000}, "n: expected"), ({"prompt": ["a"] * 65}, "at most 64 texts"),
                       ({"prompt": "a", "temperature": -1}, "temperature"), ({"prompt": "a", "temperature": "x"}, "temperature"),
                       ({"prompt": "a", "top_p": -0.1}, "top_p"), ({"prompt": "a", "stop": ""}, "stop"), ({"prompt": "a", "stop": ["a"] * 5}, "stop"),
                       ({"prompt": "a", "stream": 1}, "true or false"), ({"prompt": "a", "logprobs": 3}, "logprobs"),
                       ({"prompt": "a", "stream_options": [1]}, "stream_options: expected"), ({"prompt": "a", "stream_options": "a"}, "stream_options"),
                       ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "messages": []}, "messages"), ({"prompt": "a", "colour": 1}, "colour"),
                       ({"prompt": "a" * 300}, "takes 300 together"), ({"prompt": "a" * 200, "max_tokens": 101}, "takes 300 together"),
                       ({"prompt": "a", "max_tokens": 301}, "max_tokens: expected"), ({"prompt": "a", "x" + "\u00e9" * 99: 1}, "not known")]:
        refused(400, says, body)
    for messages, says in [([], "not empty"), ([{"role": "cook", "content": "a"}], "the role"), ([{"role": "user"}], "content that is text"),
                           ([{"role": "user", "content": [{"type": "image_url"}]}], "content that is text"),
                           ([{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, {"role": "user", "content": "a"}], "tool_calls"),
                           ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "the last message")]:
        refused(400, says, {"messages": messages}, "/v1/chat/completions")
    refused(404, "does not exist", {"prompt": "a", "model": "gpt-9"})
    refused(404, "does not exist", {"prompt": "a", "model": "x" + "\u00e9" * 99})  # a message has a part of it
    refused(404, "nothing here", None, "/v1/nothing", "GET")
    refused(405, "another method", None, "/v1/completions", "GET")
    assert s.ask("HEAD", "/health") == (200, "") and s.ask("HEAD", "/v1/completions") == (405, "")


def raw(s, data, wait=True):
    """Bytes to the server, and what it says until it closes, or we do."""
    c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    got = b""
    try:
        c.sendall(data)
        if wait:
            c.shutdown(socket.SHUT_WR)
            while block := c.recv(65536):
                got += block
    except OSError as e:  # the server may have closed
        if e.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
            raise
    c.close()
    return got


def junk(s):
    big = b"x" * 10_000_000
    assert b" 413 " in raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"10000\r\n" + big[:65536] + b"\r\n" for _ in range(20))
    assert b" 413 " in raw(s, head + chunks + b"0\r\n\r\n")
    for data in (big, head + chunks * 8, b"\0" * 100000, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"):
        raw(s, data)
        raw(s, data, wait=False)
    assert s.ask("GET", "/health")[0] == 200


def hang_ups(s):
    drawn = s.metric("generated_tokens_total")
    for i in range(12):
        body = json.dumps(asked(1, stream=i % 2 == 0, n=4) | {"max_tokens": 280}).encode()
        raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body, wait=False)
    s.until_idle()
    assert s.metric("generated_tokens_total") - drawn < 12 * 4 * 280, "texts were made to their end without clients"


def prompts_are_kept(s):
    """One that begins another, and what two have in common: the texts are those of prompts that are read whole."""
    begin, long = "A sentence that many texts begin with. ", "0123456789" * 20
    asked = {begin: 0, begin + "One more": len(begin), long + "abc": 0, long + "xyz": len(long), long: len(long) - 1}
    with tempfile.NamedTemporaryFile("w") as file:  # one after the other, without a beginning in common
        file.write("\n".join([begin, long, begin + "One more", long + "abc", begin, long + "xyz"]))
        file.flush()
        made = subprocess.run([TOOL, "generate", *MODEL, "--prompts", file.name, "--batch", "1", "--tokens", "20", "--temperature", "1",
                               "--top-k", "1", "--json"], stdout=subprocess.PIPE, check=True).stdout
    alone = {row["prompt"]: row["text"] for row in map(json.loads, made.splitlines())}
    for prompt, kept in list(asked.items()) + [(prompt, len(prompt)) for prompt in asked]:
        before = s.metric('prompt_tokens_total{from="cache"}')
        answer = s.complete(prompt=prompt, max_tokens=20, top_k=1)
        assert text_of(answer) == alone[prompt], prompt
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == kept, (prompt, answer)
        assert s.metric('prompt_tokens_total{from="cache"}') - before == kept


def texts_are_kept(s):
    """The next turn of a chat begins with a text that was made: all of it but its last token is in memory."""
    for i in range(60):  # one that is ASCII
        begin = f"Turn {i} of a chat, which goes on. "
        text = text_of(s.complete(prompt=begin, max_tokens=3, seed=i))
        if len(text) == 3 and text.isascii():
            break
    asked = begin + text + " And then?"
    made = subprocess.run([TOOL, "generate", *MODEL, "--prompt", asked, "--tokens", "20", "--json"], stdout=subprocess.PIPE, check=True).stdout
    answer = s.complete(prompt=asked, max_tokens=20, top_k=1)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(begin) + 2, answer
    assert text_of(answer) == json.loads(made)["text"], answer


def rest(s):
    status, page = s.ask("GET", "/")
    assert status == 200 and "<textarea" in page
    model = json.loads(s.ask("GET", "/v1/models")[1])["data"][0]
    assert model["id"] == "lm" and model["chat_format"] == "plain", model


def keys():
    with open_key() as s:
        for header, status in (({}, 401), ({"Authorization": "Bearer secre"}, 401), ({"Authorization": "Bearer secrets"}, 401),
                               ({"Authorization": "secret"}, 401), ({"Authorization": "Bearer secret"}, 200),
                               ({"Authorization": "bearer secret"}, 200), ({"Authorization": "BEARER Secret"}, 401)):
            for path in ("/v1/models", "/metrics"):
                assert s.ask("GET", path, headers=header)[0] == status, (header, path)
        assert s.ask("POST", "/v1/completions", {"prompt": "a"})[0] == 401
        assert s.ask("GET", "/health")[0] == 200


def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        done = subprocess.run([TOOL, "serve", *MODEL, "--port", str(held.getsockname()[1])], capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.endswith(": Address already in use\n"), done


def nothing_said(s):
    """null is as if the member were not there."""
    for name in ("best_of", "response_format", "logprobs", "logit_bias", "stop", "n", "seed", "max_tokens", "stream", "stream_options"):
        assert s.complete(prompt="a", **{name: None})["choices"][0]["index"] == 0, name
    answer = {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None, "function_call": None, "audio": None}
    status, text = s.ask("POST", "/v1/chat/completions", {"messages": [answer, {"role": "user", "content": "a", "tool_calls": []}], "max_tokens": 1})
    assert status == 200, text


def bytes_alone():
    """A model of the 256 bytes: the end of texts is no token of it."""
    with Server("-D", "vocab=256") as s:
        status, text = s.ask("POST", "/v1/completions", {"prompt": [97, 256]})
        assert status == 400 and "tokens from 0 to 255" in text, text
        assert s.complete(prompt=[97, 255])["usage"]["prompt_tokens"] == 2


def quantised():
    with tempfile.TemporaryDirectory() as folder:
        run, packed = folder + "/run", folder + "/packed.safetensors"
        subprocess.run([TOOL, "train", *MODEL, "--data", "random:length=16", "--batch", "2", "--steps", "1", "--checkpoint", run],
                       stdout=subprocess.DEVNULL, check=True)
        weights = run + "/step-0000000001.safetensors"
        for bits in "8", "4":
            subprocess.run([TOOL, "quantize", *MODEL, "--weights", weights, "--bits", bits, "-o", packed], stdout=subprocess.DEVNULL,
                           check=True)
            with Server("--weights", packed) as s:
                same_as_generate(s, "--weights", packed)
    with Server("--kv-cache", "f16") as s:
        same_as_generate(s, "--kv-cache", "f16")


def open_key():
    return Server(environment={"KVASIR_API_KEY": "secret"})


def first_step_counts():
    """A text runs from its first step on, which may be its only one: the end of the server waits for texts that run."""
    with Server("-D", "d=256", "-D", "layers=4", "--context", "600") as s:
        for i in range(20):
            seen = []
            client = threading.Thread(target=s.complete, kwargs=dict(prompt=f"{i:2} " + "x" * 509, max_tokens=1))
            client.start()
            while client.is_alive():
                seen.append(s.metric("texts_running"))
            client.join()
            if 1 in seen:
                return
    raise AssertionError("no text ran")


def silent_client():
    """A client that is silent for a minute after its text is let go, as one that never asked."""
    with Server() as s:
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps(asked(0)))
        assert c.getresponse().read()
        c.sock.settimeout(100)
        assert c.sock.recv(1) == b""
        c.close()


def full_queue_and_end():
    s = Server("--batch", "1", "--queue", "2", "--context", "2000")
    status, text = s.ask("POST", "/v1/completions", {"prompt": ["a", "b", "c"]})  # nor later
    assert status == 400 and "at most 2 texts" in text, (status, text)
    held = []
    for i in range(3):
        while s.metric("texts_waiting") > 1:
            time.sleep(0.001)
        held.append(stream(s, "/v1/completions", prompt="a", max_tokens=1000, seed=i))
    assert s.ask("POST", "/v1/completions", {"prompt": "a", "n": 2})[0] == 429
    s.process.send_signal(signal.SIGTERM)
    for c, answer in held:
        assert list(events(answer))[-1]["choices"][0]["finish_reason"] in ("length", "stop")
        c.close()
    assert s.process.wait(timeout=60) == 0
    assert Server().stop(signal.SIGINT) == 0


if __name__ == "__main__":
    start = time.time()
    silent = concurrent.futures.ThreadPoolExecutor().submit(silent_client)  # beside the others: it takes a minute
    with Server("--chat", "plain", "--prefixes", "16") as server:
        for test in (same_as_generate, ragged_clients, streams, several, refusals, nothing_said, prompts_are_kept, texts_are_kept, rest, junk, hang_ups):
            test(server)
            print("%-20s %.2f s" % (test.__name__, time.time() - start))
    for test in (keys, taken_port, bytes_alone, quantised, first_step_counts, full_queue_and_end):
        test()
        print("%-20s %.2f s" % (test.__name__, time.time() - start))
    silent.result()
