#!/usr/bin/env bash
# The command line as a user meets it: help, versions, exit codes, the small verbs.
. "$(dirname "$0")/support.sh"

# Help: every verb of the overview has a page with its options.
expect 0 --help
mapfile -t verbs < <(sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' "$work/out")
[ "${#verbs[@]}" -ge 8 ] || fail "the overview lists ${#verbs[@]} verbs"
for verb in "${verbs[@]}"; do
  expect 0 "$verb" --help
  says "kvasir $verb "
  says "Options:"
  says "-h, --help"
  expect 0 "$verb" -h
  expect 2 "$verb" --no-such-option
  says "unknown option '--no-such-option'"
  says "kvasir $verb --help"
done
expect 0 help
says "kvasir VERB"
expect 0 generate --help
says "--chat auto|chatml|llama3|gemma|phi3|zephyr|llama2|mistral|plain"

# A file size limit, as a full disk, is an error with a message that leaves nothing behind.
limited() { # limited FILE ARGUMENT...
  local code=0
  mkdir "$work/full"
  (ulimit -f 1 && KVASIR_CACHE=off "$KVASIR" "${@:2}" -o "$work/full/$1") >"$work/out" 2>&1 || code=$?
  [ "$code" -eq 1 ] || fail "kvasir ${*:2}: exit code $code at a file size limit"
  says "full/$1: error: cannot write it: File too large"
  rmdir "$work/full" || fail "kvasir ${*:2} leaves $(ls "$work/full")"
}
head -c 4000 models/lm.kv >"$work/text"
expect 0 train models/mlp.kv --steps 1 --batch 1 --eval-every 0 --checkpoint "$work/mlp"
limited text.tok data "$work/text"
limited mlp.onnx export models/mlp.kv
limited mlp.safetensors quantize models/mlp.kv --weights "$work/mlp/step-0000000001.safetensors"
limited mlp.o build models/mlp.kv -c
expect 0 --version
grep -qE '^kvasir [0-9]+\.[0-9]+\.[0-9]+$' "$work/out" || fail "--version"

# What a command reads it does not replace.
cp models/mlp.kv "$work/own.kv"
cp tests/data/tasks/items.jsonl "$work/own.jsonl"
expect 0 data "$work/text" -o "$work/own.tok"
keeps() { # keeps FILE OPTION ARGUMENT...
  cp "$work/$1" "$work/before"
  expect 2 "${@:3}" "$2" "$work/$1"
  says "$2 $work/$1 would replace $work/$1, which is read"
  cmp -s "$work/before" "$work/$1" || fail "kvasir ${*:3} $2 $1 changes the file"
}
for option in --metrics --report; do
  keeps own.kv $option train "$work/own.kv" --steps 1
  keeps own.tok $option train models/lm.kv -D vocab=257 --data ngram "--data=tokens:$work/own.tok,length=8" --steps 1
done
keeps own.kv --samples train "$work/own.kv" --steps 1 --sample-every 1
keeps own.kv -o opt "$work/own.kv" --passes=fold
keeps own.kv --trace profile "$work/own.kv" --pin B=1 --pin T=2
keeps own.kv -o profile models/mlp.kv --input "tokens=$work/own.kv"
keeps own.jsonl --details eval models/lm.kv -D vocab=257 --task items --file "$work/own.jsonl"

# Two outputs are two files: the one that is written first would be lost.
apart() { # apart MESSAGE ARGUMENT...
  expect 2 "${@:2}"
  says "$1"
}
apart "--metrics and --report name one file" train models/mlp.kv --steps 1 --metrics "$work/one" --report "$work/one"
[ ! -e "$work/one" ] || fail "a refused command wrote"
apart "--metrics and --report name one file" train models/mlp.kv --steps 1 --metrics "$work/new/one" --report "$work/new/one"
apart "--samples names the file of" train models/lm.kv -D vocab=257 --data random --steps 1 --sample-every 1 \
  --samples "$work/one" --metrics "$work/./one"
apart "-o and --trace name one file" profile models/mlp.kv --pin B=1 --pin T=2 -o "$work/one" --trace "$work//one"
: >"$work/one"
ln -s one "$work/link"
apart "--metrics and --report name one file" train models/mlp.kv --steps 1 --metrics "$work/link" --report "$work/one"
expect 0 train models/mlp.kv --steps 1 --metrics /dev/null --report /dev/null
expect 0 train models/mlp.kv --steps 1 --metrics "$work/one.jsonl" --report "$work/one"

# Exit codes.
expect 2
expect 2 dance
expect 2 run
says "a model is missing"
expect 2 train models/mlp.kv --steps
expect 2 train models/mlp.kv --steps=many
expect 2 run models/mlp.kv --device gpu
says "--device: expected cpu, cuda or ptxsim, found 'gpu'"
for command in "train models/mlp.kv" "show models/mlp.kv --train" "build models/mlp.kv --train -c -o $work/x.o"; do
  expect 2 $command --mesh data
  says "--mesh data: expected data=N"
done
expect 2 train models/mlp.kv --resume
expect 2 train models/mlp.kv --resume run/step.safetensors
says "unexpected argument 'run/step.safetensors'; as the value of --resume it is written --resume=run/step.safetensors"
expect 1 check "$work/absent.onnx"
expect 0 check -- models/mlp.kv
expect 0 check models/lm.kv -D preset=small --json
python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); assert r["unsupported"] == 0 and len(r["operators"]) > 5' \
  "$work/out" || fail "check --json"

# check goes on behind errors: each of a model's gaps is listed once, with its node if it has one.
mkdir "$work/models" && python3 tests/hostile/onnx_models.py "$work/models"
expect 1 check "$work/models/gaps.onnx" --json
python3 - "$work/out" <<'PY' || fail "check --json of a model with gaps"
import json, sys
r = json.load(open(sys.argv[1]))
assert [g.get("node") for g in r["gaps"]] == ["operator", None, "attribute", "shapes", "input", None], r["gaps"]
assert "'c'" in r["gaps"][1]["message"] and "'z'" in r["gaps"][5]["message"], r["gaps"]
assert r["unsupported"] == 1 and sum(not o["supported"] for o in r["operators"]) == 1, r["operators"]
PY

# Of options that are given twice the last counts.
expect 0 show models/mlp.kv -D d=16 -D d=8 --pin T=3 --pin T=4 --stage=graph
says 'float[256, 8] "embed"'
says 'int32[B, 4] tokens'

# ops: the same rows as text and as JSON.
expect 0 ops --json
python3 - "$work/out" <<'PY' || fail "ops --json"
import json, sys
ops = {o["name"]: o for o in json.load(open(sys.argv[1]))}
assert len(ops) > 80, len(ops)
assert ops["kv_shift"]["gradient"] == "rule" and ops["relu"]["lowering"] == "element" and ops["add"]["max_operands"] == 2
assert all(o["gradient"] in ("rule", "zero", "none", "graph") for o in ops.values())
PY
count=$(grep -c '"name"' "$work/out")
expect 0 ops
says "$count operators."

# doctor: 0 here, because this test runs models; the JSON has the same facts.
expect 0 doctor
says "CPU target"
expect 0 doctor --json
python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert d["cpus"] >= 1 and d["cpu_target"] != "none", d
assert set(d["mpi"]) == {"path", "version"}, d
assert d["libraries"]["pcre2"].startswith("10.") and d["libraries"]["jansson"] and d["libraries"]["utf8proc"], d
assert d["libraries"]["libcsv"].startswith("3."), d
assert d["images"].startswith("BMP, PNM"), d
assert d["cpu"]["vector_registers"] in (16, 32) and d["cpu"]["vector_bytes"] >= 16 and d["cpu"]["l2_bytes"] > 0, d
assert [t["name"] for t in d["gpu_targets"] if "warpgroup_mma" in t["features"]] == ["sm_90a"], d' \
  "$work/out" || fail "doctor --json"

# 3, the machine lacks something: memory for a petabyte.
printf '%s\n' 'model m (float[2] x) => (float[2] y) {' '  param float[281474976710656, 2] w ~ zeros' \
  '  y = x + kv.reduce_sum <axes = [0], keepdims = false> (w)' '}' >"$work/huge.kv"
expect 3 run "$work/huge.kv"
says "memory"
