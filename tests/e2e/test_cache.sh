#!/usr/bin/env bash
# The cache of compiled code: the second run of a model takes it and gives the same bits; damaged entries are compiled
# anew; a folder that cannot be used changes nothing; nothing outside of it is written.
. "$(dirname "$0")/support.sh"
export HOME=$work/home XDG_CACHE_HOME=
mkdir "$HOME" "$work/a" "$work/b"
cache=$work/cache
model=(run models/mlp.kv --pin B=2 --pin T=9 --timing)
hits() { grep -q 'from the cache), [1-9][0-9]* kernels$' "$work/out"; }

KVASIR_CACHE=off expect 0 "${model[@]}" -o "$work/a"
hits && fail "KVASIR_CACHE=off uses a cache"
export KVASIR_CACHE=$cache/below
expect 0 "${model[@]}" -o "$work/b"
hits && fail "an empty cache has something"
same_bits() { cmp "$work/a/logits.npy" "$work/b/logits.npy" || fail "$1 gives other bits"; }
same_bits "a miss"
expect 0 "${model[@]}" -o "$work/b"
hits || fail "the second run misses"
same_bits "a hit"
[ "$(stat -c %a "$cache/below")" = 700 ] || fail "the folder is open to others"

# Other shapes, another CPU's lanes, another precision: other entries.
entries() { find "$cache/below" -name '*.kvcode' | wc -l; }
[ "$(entries)" = 1 ] || fail "one model has $(entries) entries"
expect 0 "${model[@]/T=9/T=8}"
hits && fail "another shape hits"
expect 0 "${model[@]}" --precision bf16
hits && fail "another precision hits"
[ "$(entries)" = 3 ] || fail "three models have $(entries) entries"

# Every kind of damage: a byte of the head, of the key, of the code; a cut file; an empty one.
expect 0 "${model[@]}" -o "$work/b"
entry=$(find "$cache/below" -name '*.kvcode' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
damage() { # damage WHAT COMMAND...: the file's name follows
  "${@:2}" "$entry"
  expect 0 "${model[@]}" -o "$work/b"
  hits && fail "$1: taken for whole"
  same_bits "$1"
  expect 0 "${model[@]}" -o "$work/b"
  hits || fail "$1: not mended"
}
flip() { python3 -c 'import sys
d = bytearray(open(sys.argv[2], "rb").read())
d[int(sys.argv[1])] ^= 1
open(sys.argv[2], "wb").write(d)' "$@"; }
for at in 0 9 17 25 33 100 5000 -1 -5000; do damage "byte $at" flip "$at"; done
damage "a cut file" truncate -s 9000
damage "a head alone" truncate -s 40
damage "an empty file" truncate -s 0

# Training, and code for a GPU.
train=(train models/mlp.kv --steps 2 --eval-every 0 --batch 2 --data ngram:length=16)
expect 0 "${train[@]}" --checkpoint "$work/first"
hits && fail "training hits at once"
expect 0 "${train[@]}" --checkpoint "$work/second"
hits || fail "training misses"
cmp "$work/first/step-0000000002.safetensors" "$work/second/step-0000000002.safetensors" || fail "training from the cache"
gpu=(run models/mlp.kv -D vocab=32 --pin B=1 --pin T=4 --device ptxsim --timing)
expect 0 "${gpu[@]}" -o "$work/a"
hits && fail "PTX hits at once"
expect 0 "${gpu[@]}" -o "$work/b"
hits || fail "PTX misses"
same_bits "PTX from the cache"

# doctor tells folder and size; --json too. The training step is several modules, how many depends on the CPU.
[ "$(entries)" -ge 6 ] || fail "six programs have $(entries) entries"
expect 0 doctor
says "$cache/below, $(entries) compiled modules"
expect 0 doctor --json
python3 -c 'import json, sys; c = json.load(open(sys.argv[1]))["cache"]; assert c["entries"] == int(sys.argv[2]) and c["bytes"] > 1e5, c' \
  "$work/out" "$(entries)" || fail "doctor --json"

# Folders that cannot be used: below a file; open to others.
touch "$work/file"
KVASIR_CACHE=$work/file/below expect 0 "${model[@]}" -o "$work/b"
says "compiled in"
! grep -qi "cannot\|error\|warning" "$work/out" || fail "a folder that cannot be made is complained about"
mkdir -m 777 "$work/open"
for i in 1 2; do
  KVASIR_CACHE=$work/open expect 0 "${model[@]}"
  hits && fail "code from a folder that anybody may write to"
done
[ -z "$(ls "$work/open")" ] || fail "a folder that anybody may write to is used"
KVASIR_CACHE=$work/open expect 0 doctor
says "off: $work/open"

# conform keeps code in a folder that is named, and takes it from there.
relu_case "$work/case"
conform() { expect 0 conform "$work/case" && says "1 passed"; }
KVASIR_CACHE=$work/named conform
entry=$(echo "$work"/named/*.kvcode)
touch -d @0 "$entry"
inode=$(stat -c %i "$entry")
KVASIR_CACHE=$work/named conform
[ "$(stat -c %i "$entry")" = "$inode" ] && [ "$(stat -c %Y "$entry")" -gt 0 ] || fail "conform does not take what it kept"
(unset KVASIR_CACHE; conform)

# Where it lies by itself.
[ -z "$(ls -A "$HOME")" ] || fail "the home folder was written to"
unset KVASIR_CACHE
expect 0 "${model[@]}"
[ -n "$(ls "$HOME/.cache/kvasir")" ] || fail "no cache in the home folder"
XDG_CACHE_HOME=$work/xdg expect 0 "${model[@]}"
[ -n "$(ls "$work/xdg/kvasir")" ] || fail "no cache in XDG_CACHE_HOME"
