#!/usr/bin/env python3
"""Writes unicode_ranges.inc: the general category of every character, as ranges, from Python's unicodedata (the Unicode
Character Database, https://www.unicode.org/ucd/). Usage: make_unicode_ranges.py > unicode_ranges.inc"""
import sys
import unicodedata

NAMES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
print("/* Made by make_unicode_ranges.py from the Unicode Character Database %s. */" % unicodedata.unidata_version)
ranges, before = [], None
for c in range(0x110000):
    category = unicodedata.category(chr(c))
    # Upper and lower case letters alternate one by one in places; every change is a range of its own.
    if category != before:
        ranges.append(c << 5 | NAMES.index(category))
    before = category
line = ""
for r in ranges:
    word = "0x%x," % r
    if len(line) + len(word) + 1 > 118:
        print(line)
        line = ""
    line += (" " if line else "") + word
print(line)
