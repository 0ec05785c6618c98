"""Executes the code blocks of a Markdown file, in order, in a folder of their own.

    ```sh                  runs, in one shell with the blocks before it; a command that fails fails the test
    ```sh not-run: REASON  does not run; its commands of kvasir must name verbs and options that exist
    ```python              runs as a program of its own
    ```LANG file=NAME      is written to the file NAME, for the blocks that follow
    ```kv, ```text         a piece of a model (tests/frontend/test_kv_docs.c has those of docs/language.md); no code

A first line `<!-- tested by: FILE -->` names the test of a document that has one of its own, `<!-- needs: PROGRAM ... -->` what
its blocks call. The folder shows the source tree's files by links; build/release is the build that is tested, `kvasir` its tool.
Exit 77: a program that the file needs is missing; the reason is printed."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

LANGUAGES = {"sh", "python", "kv", "text", "c", "cmake"}


class Block:
    def __init__(self, line, info):
        self.line, self.lines = line, []
        self.language, _, self.rest = info.partition(" ")

    def text(self):
        return "\n".join(self.lines) + "\n"

    def reason(self):
        return self.rest[len("not-run:"):].strip() if self.rest.startswith("not-run:") else None

    def file(self):
        return self.rest[len("file="):] if self.rest.startswith("file=") else None


def fail(path, line, what):
    sys.exit("FAILED: %s:%d: %s" % (path, line, what))


def read_blocks(path):
    blocks, block, before = [], None, ""
    for number, line in enumerate(open(path, encoding="utf-8").read().split("\n"), 1):
        if line.startswith("```"):
            if block is None:
                block = Block(number, line[3:])
                if block.language not in LANGUAGES:
                    fail(path, number, "a block of '%s': expected one of %s" % (block.language, sorted(LANGUAGES)))
                blocks.append(block)
            else:
                block = None
        elif block is not None:
            block.lines.append(line)
        elif line.startswith("    ") and not before.strip():
            fail(path, number, "an indented code block: expected ``` with a language, so that it is tested")
        before = line
    if block is not None:
        fail(path, block.line, "a block without an end")
    return blocks


def commands(block):
    """The commands of kvasir in a block, without comments, continued lines joined."""
    for line in block.text().replace("\\\n", " ").split("\n"):
        for command in re.split(r"&&|[|;]", line.split(" #")[0]):
            found = re.match(r"\s*(?:\S*/)?kvasir\s+([a-z]+)(.*)", command)
            if found:
                yield found.group(1), found.group(2)


def check_options(path, block):
    for verb, rest in commands(block):
        text = subprocess.run([os.environ["KVASIR"], verb, "--help"], stdout=subprocess.PIPE, text=True)
        if text.returncode != 0:
            fail(path, block.line, "no verb '%s'" % verb)
        for option in re.findall(r"\s(--?[a-zA-Z][a-z-]*)", rest):
            if not re.search(re.escape(option) + r"(?![a-z-])", text.stdout):
                fail(path, block.line, "kvasir %s has no option %s" % (verb, option))


def show_tree(folder):
    root = os.getcwd()
    for name in os.listdir(root):
        if name not in (".git", "build"):
            os.symlink(os.path.join(root, name), os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "build"))
    os.symlink(os.path.dirname(os.environ["KVASIR"]), os.path.join(folder, "build", "release"))
    os.mkdir(os.path.join(folder, ".bin"))
    os.symlink(os.environ["KVASIR"], os.path.join(folder, ".bin", "kvasir"))


def python():
    return os.environ.get("KVASIR_PYTHON", "python3")


def script_of(path, blocks, folder):
    """One script for all blocks, so that variables and folders carry over."""
    lines = ["set -euo pipefail"]
    for block in blocks:
        if block.reason() is not None:
            check_options(path, block)
            print("not run: %s:%d: %s" % (path, block.line, block.reason()))
        elif block.file():
            with open(os.path.join(folder, block.file()), "w", encoding="utf-8") as out:
                out.write(block.text())
        elif block.language == "sh":
            lines += ["echo '== %s:%d'" % (path, block.line), block.text()]
        elif block.language == "python":
            name = ".block%d.py" % block.line
            with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                out.write(block.text())
            lines += ["echo '== %s:%d'" % (path, block.line), "%s %s" % (python(), name)]
        elif block.language in ("c", "cmake"):
            fail(path, block.line, "a program without file=NAME: it would not be tested")
    return "\n".join(lines)


def said_of(path, what):
    """The words behind `what` in the comment of the first line; none: no such comment."""
    found = re.match(r"<!-- %s: (.*) -->" % what, open(path, encoding="utf-8").readline())
    return found.group(1).split() if found else []


def main(path):
    lacking = [p for p in said_of(path, "needs") if not shutil.which(p)]
    if lacking:
        print("SKIP: no %s" % ", ".join(lacking))
        return 77
    for test in said_of(path, "tested by"):
        print("see %s" % test)
        return not os.path.exists(test)
    folder = tempfile.mkdtemp()
    try:
        show_tree(folder)
        script = script_of(path, read_blocks(path), folder)
        environment = dict(os.environ, HOME=folder, PATH=os.path.join(folder, ".bin") + ":" + os.environ["PATH"])
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL)
        if done.returncode:
            print("FAILED: the block named last ends with %d" % done.returncode)
        return done.returncode != 0
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
