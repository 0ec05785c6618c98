"""Drives chromium over a pipe (its DevTools protocol: JSON objects that zero bytes end, on descriptors 3 and 4)."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "tests/serve")
from server import Server


class Browser:
    def __init__(self, folder):
        to_browser, self.out = os.pipe()
        self.back, from_browser = os.pipe()
        os.set_inheritable(to_browser, True)
        os.set_inheritable(from_browser, True)
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--user-data-dir=" + folder, "--remote-debugging-pipe"]
        redirect = 'exec "$@" 3<&%d 4>&%d' % (to_browser, from_browser)
        self.process = subprocess.Popen(["bash", "-c", redirect, "browser"] + command, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.rest, self.session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                block = os.read(self.back, 65536)
                assert block, "the browser ended"
                self.rest += block
            line, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self.number:
                assert "result" in answer, answer
                return answer["result"]

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression):
        for _ in range(300):
            if self.value(expression):
                return
            time.sleep(0.1)
        raise AssertionError("%s does not become true; the page says: %s" % (expression, self.value("document.body.innerText")))

    def click(self, selector):
        box = self.value("(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('%s').getBoundingClientRect())" % selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, selector, text):
        self.click(selector)
        for character in text:
            self.call("Input.dispatchKeyEvent", type="char", text=character)

    def close(self):
        self.session = None
        self.call("Browser.close")
        self.process.wait(timeout=60)


def check(b, s):
    shown = "document.querySelector('#text').textContent"
    b.call("Page.navigate", url="http://127.0.0.1:%d/" % s.port)
    b.until("document.readyState == 'complete' && document.querySelector('#model').textContent == 'tiny'")
    b.value("document.querySelector('#temperature').value = 0")  # or the end may be drawn at once
    b.type("#prompt", "Once upon a time")
    b.click("#send")
    b.until(shown + ".length > 'Once upon a time'.length + 40 && !document.querySelector('#send').disabled")
    assert b.value(shown).startswith("Once upon a time"), b.value(shown)
    b.click("#chat")
    b.click("#send")
    b.until(shown + ".startsWith('Once upon a time\\n\\n') && !document.querySelector('#send').disabled")
    b.value("document.querySelector('#tokens').value = 100000")
    b.click("#send")
    b.until("document.querySelector('.error') && document.querySelector('.error').textContent.includes('max_tokens')")


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    with Server("--chat", "plain", "--name", "tiny") as server:
        browser = Browser(folder)
        check(browser, server)
        browser.close()
    shutil.rmtree(folder, ignore_errors=True)
