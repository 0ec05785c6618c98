#!/usr/bin/env python3
"""Writes unicode_ranges.inc, the general category of every character as ranges, and unicode_normal.inc, canonical
decompositions, compositions and combining classes, into this folder: from Python's unicodedata (the Unicode Character
Database, https://www.unicode.org/ucd/)."""
import pathlib
import unicodedata

HERE = pathlib.Path(__file__).parent
NAMES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
HEAD = "/* Made by make_unicode_tables.py from the Unicode Character Database %s. */\n" % unicodedata.unidata_version


def wrapped(words):
    text, line = "", ""
    for word in words:
        if len(line) + len(word) + 2 > 119:
            text += line + "\n"
            line = ""
        line += (" " if line else "") + word + ","
    return text + line + "\n"


def runs(value):
    """(first character, value) wherever the value changes."""
    out = []
    for c in range(0x110000):
        v = value(chr(c))
        if not out or v != out[-1][1]:
            out.append((c, v))
    return out


def decompositions():
    """(character, first, second or 0), one step; those in < > are not canonical, Hangul is computed."""
    for c in range(0x110000):
        parts = unicodedata.decomposition(chr(c)).split()
        if parts and not parts[0].startswith("<"):
            yield c, int(parts[0], 16), int(parts[1], 16) if len(parts) > 1 else 0


def array(name, words):
    return "static const uint32_t %s[] = {\n%s};\n" % (name, wrapped(words))


categories = ["0x%x" % (c << 5 | NAMES.index(v)) for c, v in runs(unicodedata.category)]
(HERE / "unicode_ranges.inc").write_text(HEAD + wrapped(categories))
classes = ["0x%x" % (c << 8 | v) for c, v in runs(unicodedata.combining)]
whole = list(decompositions())
pairs = sorted((a, b, c) for c, a, b in whole if b and unicodedata.normalize("NFC", chr(a) + chr(b)) == chr(c))
(HERE / "unicode_normal.inc").write_text(
    HEAD + "/* First character of a range << 8 | canonical combining class. */\n" + array("classes", classes) +
    "/* Character, first part, second part or 0; by character. */\n" +
    array("decompositions", ("0x%x" % x for row in whole for x in row)) +
    "/* First part, second part, composition; by parts. */\n" + array("compositions", ("0x%x" % x for row in pairs for x in row)))
