#!/usr/bin/env bash
# The programs of docs/library.md, in C and Python, compile and run as they stand there.
. "$(dirname "$0")/../e2e/support.sh"
: "${KVASIR_LIBRARY:?libkvasir.so}"
root=$PWD

python3 - docs/library.md "$work" <<'PY'
import re, sys
blocks = re.findall(r"^```(\w+)\n(.*?)^```$", open(sys.argv[1]).read(), re.S | re.M)
kinds = [kind for kind, _ in blocks]
assert kinds == ["kv", "sh", "c", "python", "python"], kinds
for i, (kind, text) in enumerate(blocks):
    open(f"{sys.argv[2]}/block{i}.{kind}", "w").write(text)
PY
cp "$work/block0.kv" "$work/classifier.kv"
kvasir() { "$KVASIR" "$@"; }
(cd "$work" && . ./block1.sh) || fail "the model"

sanitize=
[ -z "${KVASIR_SANITIZED:-}" ] || sanitize=-fsanitize=address,undefined
folder=$(dirname "$KVASIR_LIBRARY")
cc -std=c17 -Wall -Wextra -Werror $sanitize -I"$root/tools/library" "$work/block2.c" -o "$work/program" -L"$folder" -lkvasir \
  -Wl,-rpath,"$(realpath "$folder")" || fail "the C program does not compile"
(cd "$work" && ./program) >"$work/out" 2>&1 || fail "the C program"
says "input x"
says "after: "
expect 0 run "$work/classifier.kv" --weights "$work/trained.safetensors" --pin B=1

. "$(dirname "$0")/python.sh"
for block in 3 4; do
  run_python -c 'import os, sys; os.chdir(sys.argv[1]); exec(open(sys.argv[2]).read())' "$work" "block$block.python" \
    >"$work/out" 2>&1 || fail "Python program $block"
done
