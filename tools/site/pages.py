"""The pages of the documentation: Markdown files of the source tree, and a reference made from the public headers.

    pages.py --check      links of all pages lead to files and headings that exist; exit 1 names each that does not
    pages.py --stage DIR  writes the pages for mkdocs: links to files that are no pages lead to copies of those"""
import os
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def files():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE,
                            text=True)
    if listed.returncode == 0:
        return set(listed.stdout.split("\n")) - {""}
    return {posixpath.relpath(posixpath.join(d, f), ROOT) for d, _, names in os.walk(ROOT) for f in names}


# ---- reference ---------------------------------------------------------------------------------------------------


def public_headers():
    """What CMakeLists.txt installs, the compiler's header first."""
    found = re.findall(r"file\(GLOB (?:public|base)_headers ([^)]*)\)", read("CMakeLists.txt"))
    names = [n for text in found for n in text.split() if n.endswith(".h")]
    headers = [h for n in names for h in sorted(files()) if re.fullmatch(n.replace("*", r"[^/]*"), h)]
    library = "tools/library/kvasir.h"
    return ([library] if library in files() else []) + headers


def plain(comment):
    """The text of a C comment; indented lines are code."""
    lines = [re.sub(r"^ ?\* ?", "", l.strip() if not l.startswith(" *") else l) for l in comment.split("\n")]
    lines[0] = lines[0].lstrip("/* ")
    lines[-1] = re.sub(r" ?\*/$", "", lines[-1])
    out, code = [], False
    for line in lines:
        if line.startswith("  ") != code:
            out += ["", "```c"] if not code else ["```", ""]
            code = not code
        out.append(line)
    return "\n".join(out + (["```"] if code else [])).strip()


def name_of(declaration):
    struct = re.search(r"}\s*(\w+);$", declaration.rstrip())
    if struct:
        return struct.group(1)
    function = re.search(r"(\w+)\(", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", declaration))
    if function and function.group(1) != "enum":
        return function.group(1)
    constant = re.search(r"#define (\w+)", declaration) or re.search(r"(\w+)(?:\[[^;]*\])?;", declaration)
    return constant.group(1) if constant else ""


def declarations(text):
    """(comment, declaration) pairs, and (heading, None) for rulers."""
    token = re.compile(r"/\* -+ (?P<ruler>.*?) -+ \*/|(?P<comment>/\*.*?\*/)|(?P<macro>^#.*?(?<!\\)$)|"
                       r"(?P<declaration>^[a-zA-Z_][^;{]*(?:\{[^\n]*\}[^;\n]*;|\{.*?^\}[^;]*;|;))", re.S | re.M)
    comment, comment_end = "", 0
    for m in token.finditer(text):
        if m.group("ruler"):
            yield m.group("ruler"), None
        elif m.group("comment"):
            comment, comment_end = m.group("comment"), m.end()
        elif m.group("declaration"):
            near = text[comment_end:m.start()].count("\n") <= 1
            yield plain(comment) if comment and near else "", m.group("declaration")
            comment = ""


def reference_page(header):
    text = read(header)
    head = re.match(r"/\*.*?\*/", text, re.S)
    include = posixpath.basename(header) if header.startswith("tools/") else header
    out = ["# %s" % posixpath.basename(header), "", "`#include <%s>`" % include, "", plain(head.group(0)), ""]
    for comment, declaration in declarations(text[head.end():]):
        if declaration is None:
            out += ["## %s" % comment.capitalize(), ""]
            continue
        if re.match(r'(extern "C"|typedef struct (\w+) \2;$)', declaration) and not comment:
            continue
        out += ["### %s" % (name_of(declaration) or "types"), "", comment, "", "```c", declaration.strip(), "```", ""]
    return "\n".join(out) + "\n"


# ---- pages -------------------------------------------------------------------------------------------------------


def pages():
    shown = sorted(f for f in files() if f.endswith(".md"))
    return {f: read(f) for f in shown}


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def links(text):
    return [m.group(1) for m in re.finditer(r"\]\(([^)\s]+)\)", without_code(text))]


def anchors(text):
    slug = lambda title: re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.replace("`", "").lower()).strip())
    return {slug(m.group(1)) for m in re.finditer(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)}


def target_of(page, link):
    path, _, anchor = link.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, anchor


def is_outside(link):
    return re.match(r"[a-z]+:", link)


def check():
    known, all_pages, wrong = files(), pages(), []
    folders = {posixpath.dirname(f) for f in known}
    for page, text in all_pages.items():
        for link in links(text):
            if is_outside(link):
                continue
            target, anchor = target_of(page, link)
            if target not in known and target not in folders:
                wrong.append("%s: %s: no such file" % (page, link))
            elif anchor and anchor not in anchors(all_pages.get(target, "")):
                wrong.append("%s: %s: no such heading" % (page, link))
    print("\n".join(wrong) if wrong else "%d pages: all links lead somewhere" % len(all_pages))
    return bool(wrong)


def write(folder, path, text):
    out = os.path.join(folder, path)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w", encoding="utf-8") as f:
        f.write(text)


def stage(folder):
    all_pages, known = pages(), files()
    for page, text in all_pages.items():
        for link in links(text):
            target, _ = target_of(page, link)
            if is_outside(link) or target in all_pages:
                continue
            if target in known:  # a source file: shown as plain text
                os.makedirs(os.path.join(folder, posixpath.dirname(target)), exist_ok=True)
                shutil.copyfile(os.path.join(ROOT, target), os.path.join(folder, target + ".txt"))
                text = text.replace("](%s)" % link, "](%s.txt)" % link)
            elif posixpath.join(target, "README.md") in all_pages:
                text = text.replace("](%s)" % link, "](%s/README.md)" % link.rstrip("/"))
        write(folder, page, re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.M))
    index = ["# Reference", "", "The public headers: what an installed Kvasir offers to C programs.", ""]
    for header in public_headers():
        name = "reference/%s.md" % header.replace("/", "_")
        write(folder, name, reference_page(header))
        index.append("- [%s](%s)" % (header, posixpath.basename(name)))
    write(folder, "reference/README.md", "\n".join(index) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    if len(sys.argv) == 3 and sys.argv[1] == "--stage":
        sys.exit(stage(sys.argv[2]))
    sys.exit(__doc__)
