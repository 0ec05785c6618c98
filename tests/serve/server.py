"""A server of a small model with random values, for the tests of this folder: with Server("--queue", "2") as s."""
import http.client
import json
import os
import re
import signal
import subprocess
import time

MODEL = ["models/lm.kv", "-D", "vocab=257", "-D", "d=32", "-D", "ffn=48", "-D", "heads=2", "-D", "layers=1"]
TOOL = os.environ["KVASIR"]


class Server:
    def __init__(self, *options, environment=None):
        self.process = subprocess.Popen([TOOL, "serve", *MODEL, "--port", "0", "--context", "300", *options], stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **(environment or {})})
        line = self.process.stdout.readline()
        found = re.match(r"serving (\S+) at http://(127\.0\.0\.1):(\d+)$", line)
        assert found, line
        self.port = int(found[3])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, method, path, body=None, headers={}):
        """Status and text of the answer."""
        c = self.connect()
        c.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers)
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        return answer.status, text

    def complete(self, **body):
        status, text = self.ask("POST", "/v1/completions", body)
        assert status == 200, (status, text)
        return json.loads(text)

    def metric(self, name):
        return float(re.search("^kvasir_%s (.*)$" % re.escape(name), self.ask("GET", "/metrics")[1], re.M)[1])

    def until_idle(self):
        for _ in range(500):
            if not self.metric("texts_running") and not self.metric("texts_waiting"):
                return
            time.sleep(0.02)
        raise AssertionError("texts go on without clients")

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is not None:
            return
        code = self.stop()
        assert kind or code == 0, code


def events(answer):
    """The objects of a stream of server-sent events, up to [DONE]."""
    for line in answer:
        line = line.decode().rstrip("\n")
        if line == "data: [DONE]":
            return
        assert not line or line.startswith("data: "), line
        if line:
            yield json.loads(line[6:])
    raise AssertionError("the stream has no end")
