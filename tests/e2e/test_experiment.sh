#!/usr/bin/env bash
# kvasir experiment and report: what ships holds where it is exact, results are kept and equal, mistakes are named.
. "$(dirname "$0")/support.sh"
out=$work/results
steps=150 bar=0.9 low=0
if [ -n "${KVASIR_SANITIZED:-}" ]; then
  steps=30 bar=-1 low=-1
  echo "SKIP: $steps steps under the sanitizers, of which nothing is learnt"
fi

expect 0 experiment --list
for file in models/experiments/*.exp; do
  grep -q "^$(basename "$file" .exp) " "$work/out" || fail "$file is not listed"
done

# Exact ones: every number of theirs is a claim. A second command repeats nothing and says the same.
expect 0 experiment fig2 table5 theorem2 -o "$out"
says "holds   The corrected equation equals attention on one-hot embeddings"
cp -r "$out" "$work/first"
expect 0 experiment fig2 table5 theorem2 -o "$out"
says "20 of 20 runs were done before"
python3 - "$work/first" "$out" <<'EOF' || fail "two runs of one command differ, or lack something"
import json, pathlib, sys, xml.dom.minidom
first, out = (pathlib.Path(p) for p in sys.argv[1:])
for name in ("fig2", "table5", "theorem2"):
    a, b = (json.loads((p / (name + ".json")).read_text()) for p in (first, out))
    assert a.pop("machine") and b.pop("machine")
    assert a == b
    assert a["claims"] and all(c["holds"] for c in a["claims"])
    assert all(r["values"] and r["commands"][0].startswith("kvasir run models/") for r in a["runs"])
for svg in out.glob("*.svg"):
    assert xml.dom.minidom.parse(str(svg)).documentElement.tagName == "svg"
assert len(list(out.glob("*.svg"))) == 4 + 2
page = (out / "all.html").read_text()
assert page.count("<section>") == 3 and "equation 10" in page and "kvasir run models/" in page
EOF

# Results of two runs that are cut off are no results: the runs are made again.
cut=$(basename "$(dirname "$(ls "$out"/runs/*/stdout | head -1)")")
sed -i '$d' "$work/first/runs/$cut/stdout"
rm "$(find "$work/first/runs" -name '*.npy' -not -path "*/$cut/*" | sort | tail -1)"
expect 0 experiment fig2 table5 theorem2 -o "$work/first"
says "the results of a run have changed since they were made; it is run again"
says "18 of 20 runs were done before"

# An experiment of one's own, in no more than 25 lines. The command of a run repeats its curve.
[ "$(wc -l <models/experiments/example.exp)" -le 25 ] || fail "the example is long"
sed 's#"../induction.kv"#"'"$PWD"'/models/induction.kv"#; s/--steps 400/--steps '$steps'/; s/"than": 0.9/"than": '$bar'/' models/experiments/example.exp >"$work/my.exp"
expect 0 experiment "$work/my.exp" -j 1 -o "$work/my"
says "2 of 2 seeds"
again=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["runs"][1]["commands"][0])' "$work/my/my.json")
# shellcheck disable=SC2086
expect 0 ${again#kvasir } --threads 2 --metrics "$work/again.jsonl"
strip() { sed 's/"seconds": [^,]*,//' "$1"; }
kept=
for run in "$work"/my/runs/*/metrics.jsonl; do
  if cmp -s <(strip "$run") <(strip "$work/again.jsonl"); then kept=$run; fi
done
[ -n "$kept" ] || fail "the command of a run gives another curve"
python3 - "$work/my/my.json" "$work/again.jsonl" "$work/my/my.html" <<'EOF' || fail "the page does not say how a curve was made"
import json, sys
run = json.load(open(sys.argv[1]))["runs"][1]
last = [e for e in map(json.loads, open(sys.argv[2])) if e["event"] == "eval"][-1]
assert run["values"]["eval loss"] == last["loss"]
page = open(sys.argv[3]).read()
assert ">ours</th>" in page and ">paper</th>" not in page # the file names no paper
assert run["commands"][0].replace("--seed 1", "--seed 0") in page
for setting in ("data", "batch", "steps", "learning rate", "schedule", "threads", "precision", "device"):
    assert ">%s</td>" % setting in page, setting
EOF

# Another device, in an experiment of a few lines; evaluations of what was trained, on files given by path; what the
# paper's size would take.
cat >"$work/small.exp" <<'EOF'
{"title": "t", "model": "lm.kv", "seeds": 1, "files": {"tasks": "none"},
 "options": "-D vocab=257 -D d=8 -D heads=1 -D ffn=8 -D layers=1 -D ctx=16 --data tokens:{text},length=16 --batch 2 --steps 2 --eval-every 2 --eval-batches 1",
 "full": "-D d=64 -D heads=2 --data tokens:{text},length=32 --batch 64 --micro-batch 8 --steps 100",
 "runs": [{"name": "KV shift"}, {"name": "vanilla", "options": "-D shift=false", "full": "-D shift=false -D layers=2"}],
 "evals": [{"name": "words", "options": "--task lambada --file {tasks}/lambada.jsonl"}],
 "plots": [{"kind": "points", "values": ["words.loss", "last loss"], "at": [1, 2]}],
 "claims": [{"claim": "a", "value": "mean words.items, words.items", "is": "=", "than": 8}]}
EOF
cp models/lm.kv "$work/lm.kv"
expect 1 experiment "$work/small.exp" -o "$work/small" --text README.md
says "$work/none: error: cannot open it"
expect 0 experiment "$work/small.exp" -o "$work/small" --text README.md --file tasks=models/experiments/tasks --device ptxsim
says "holds   a"
grep -q "KV shift, words</td>.*--weights $work/small/runs/[0-9a-f]*/best.safetensors" "$work/small/small.html" ||
  fail "the command of an evaluation is missing"
grep -q "experiment $work/small.exp --seeds 1 --text README.md --file tasks=models/experiments/tasks --device ptxsim<" \
  "$work/small/small.html" || fail "the command of the whole lacks options"
grep -q "<td>device</td>.*ptxsim<" "$work/small/small.html" || fail "the device is missing"
KVASIR_CUDA_LIBRARY=${KVASIR_FAKE_CUDA:?the stand-in for the driver} KVASIR_CUBLASLT_LIBRARY=$KVASIR_FAKE_CUDA \
  expect 0 experiment "$work/small.exp" -o "$work/small" --text README.md --file tasks=models/experiments/tasks --device cuda
says "holds   a"
grep -q "<td>device</td>.*cuda<" "$work/small/small.html" || fail "the device is missing"
expect 0 experiment "$work/small.exp" -o "$work/small" --text README.md --paper --dry-run --file tasks=models/experiments/tasks
python3 - "$work/out" <<'EOF' || fail "the plan of the paper's size"
import re, sys
plans = re.findall(r"^  (.*\S) +(\S+) parameters, .* GiB, (\S+) FLOPs a step, 100 steps: (\S+) FLOPs$", open(sys.argv[1]).read(), re.M)
assert [p[0] for p in plans] == ["KV shift", "vanilla"], plans
for name, parameters, step, all_steps in plans:
    assert float(parameters) > 30000 and abs(float(all_steps) / float(step) - 100) < 1, plans
    assert 3 < float(step) / float(parameters) / (64 * 32) < 8, plans # about 6 a token and parameter, but for the embedding
assert float(plans[0][1]) < float(plans[1][1]), plans
EOF
[ ! -e "$work/small/small-2.svg" ] || fail "a dry run has results"
expect 1 experiment fig2 --file tasks -o "$work/small"
says "expected NAME=PATH"

# Ended and started again: what was done stays, the rest is run.
sed 's/--steps '$steps'/--steps '$((steps * 2 / 3))'/; s/"than": '$bar'/"than": '$low'/' "$work/my.exp" >"$work/short.exp"
"$KVASIR" experiment "$work/short.exp" --seeds 3 -j 1 -o "$work/stopped" >"$work/out" 2>&1 &
pid=$!
for _ in $(seq 600); do
  ! grep -q "(1 of 6)" "$work/out" || break
  sleep 0.1
done
kill -INT $pid
code=0
wait $pid || code=$?
[ "$code" -eq 4 ] || fail "an interrupted experiment ends with $code"
says "the same command goes on"
before=$(find "$work/stopped/runs" -mindepth 1 -maxdepth 1 -type d ! -name '*.tmp' | wc -l)
[ "$before" -ge 1 ] && [ "$before" -lt 6 ] || fail "$before runs were done"
expect 0 experiment "$work/short.exp" --seeds 3 -j 2 -o "$work/stopped"
says "$before of 6 runs were done before"

# One command at a time writes to a folder: a second one would remove what the first is writing.
sed 's/--steps [0-9]*/--steps 100000000/' "$work/my.exp" >"$work/long.exp"
"$KVASIR" experiment "$work/long.exp" -j 1 -o "$work/stopped" >"$work/long.out" 2>&1 &
pid=$!
for _ in $(seq 600); do
  [ -z "$(find "$work/stopped/runs" -path '*.tmp/metrics.jsonl')" ] || break
  sleep 0.1
done
expect 1 experiment "$work/short.exp" -j 1 -o "$work/stopped"
says "$work/stopped: error: another kvasir experiment writes its results to this folder: process $pid on"
kill -INT $pid
code=0
wait $pid || code=$?
[ "$code" -eq 4 ] || fail "an interrupted experiment ends with $code beside another"

# One that is killed takes its runs with it.
runs_of() { grep -la "$1/runs/" /proc/[0-9]*/cmdline 2>/dev/null || true; }
"$KVASIR" experiment "$work/long.exp" -j 1 -o "$work/killed" >"$work/long.out" 2>&1 &
pid=$!
for _ in $(seq 600); do
  [ -z "$(find "$work/killed" -path '*.tmp/metrics.jsonl' 2>/dev/null)" ] || break
  sleep 0.1
done
[ -n "$(runs_of "$work/killed")" ] || fail "an experiment has no runs: $(cat "$work/long.out")"
kill -KILL $pid
wait $pid || true
for _ in $(seq 300); do
  [ -n "$(runs_of "$work/killed")" ] || break
  sleep 0.1
done
left=$(runs_of "$work/killed" | tr -dc '0-9\n')
# shellcheck disable=SC2086
[ -z "$left" ] || { kill -KILL $left; fail "runs of an experiment that was killed go on: $left"; }

# Another model is another run, and too few steps show.
sed 's/normal(0.02)/normal(0.03)/; s/clip = 1.0/clip = 0/' models/induction.kv >"$work/induction.kv"
sed 's#"/[^"]*/induction.kv"#"induction.kv"#; s/--steps '$steps'/--steps 10/; s/"than": '$bar'/"than": 0.9/' "$work/my.exp" >"$work/other.exp"
expect 1 experiment "$work/other.exp" --seeds 1 -o "$work/my"
says "FAILED  Shifted keys suffice"
says "(2 of 2)"

# Run again from the start, with other parallelism: the same results but for the machine and the time.
expect 1 experiment "$work/other.exp" --seeds 1 -j 1 -o "$work/second"
says "(2 of 2)"
cmp <(sed '/"machine"/,$d' "$work/my/other.json") <(sed '/"machine"/,$d' "$work/second/other.json") || fail "two runs differ"
grep -q '"eval loss"' "$work/second/other.json" || fail "no losses in the results"

# A loss that is not finite is a result: the last loss is infinite.
cat >"$work/diverges.exp" <<'EOF'
{"title": "t", "model": "induction.kv", "options": "--steps 20 --lr 1e30 --eval-every 1", "runs": [{"name": "a"}],
 "claims": [{"claim": "c", "value": "last loss", "is": ">", "than": 1e300}]}
EOF
expect 0 experiment "$work/diverges.exp" -o "$work/my"
says "last loss inf > 1e+300"

# ... its other metrics are no numbers then, and neither is the best of values that are none: no claim holds of them.
cat >"$work/nan.kv" <<'EOF'
model nan (float[B, 2] x) => (float[B, 2] y) {
  param float w ~ ones
  y = x * w
}
train nan (float[B, 2] target) {
  loss = kv.reduce_mean <keepdims = false> (y - target)
  metric quality = loss * 0 + 0.5
  metric none = kv.sqrt(quality - 1)
  optimizer = SGD <lr = 1e-2>
  steps = 4
  batch = 2
}
EOF
python3 - "$work" <<'EOF'
import sys, struct
head = "{'descr': '<f4', 'fortran_order': False, 'shape': (40, 2), }".ljust(117) + "\n"
data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<80f", *([1.0] * 80))
open(sys.argv[1] + "/ones.npy", "wb").write(data)
EOF
cat >"$work/nan.exp" <<EOF
{"title": "t", "model": "nan.kv", "options": "--data npy:x=$work/ones.npy,target=$work/ones.npy --eval-every 1",
 "runs": [{"name": "good"}, {"name": "diverges", "options": "--lr 1e38"}],
 "plots": [{"kind": "table", "values": ["best none", "last quality"]}],
 "claims": [{"claim": "it is there", "value": "last quality", "is": "=", "than": 0.5},
            {"claim": "a good end", "value": "last quality", "of": "diverges", "is": ">", "than": 0.1},
            {"claim": "at most", "value": "best none", "is": "<", "than": 1},
            {"claim": "at least", "value": "least none", "is": ">", "than": 0}]}
EOF
expect 1 experiment "$work/nan.exp" -o "$work/my"
says "holds   it is there"
says "FAILED  a good end"
says "last quality nan > 0.1"
says "FAILED  at most"
says "FAILED  at least"
grep -q "<td>nan</td>" "$work/my/nan.html" || fail "a value that is none has a range"

# Every file that a word names, whose bytes are part of what a run is.
head -c 288 "$work/ones.npy" >"$work/zeros.npy"
head -c 160 /dev/zero >>"$work/zeros.npy"
cat >"$work/words.exp" <<'EOF'
{"title": "t", "model": "nan.kv", "files": {"x": "ones.npy", "y": "zeros.npy"},
 "options": "--data npy:x={x},target={y} --eval-every 1 --steps 1", "runs": [{"name": "a"}],
 "claims": [{"claim": "the mean of y - target", "value": "last loss", "is": ">", "than": 0.2}]}
EOF
expect 0 experiment "$work/words.exp" -o "$work/my"
says "(1 of 1)"
expect 0 experiment "$work/words.exp" -o "$work/my"
says "1 of 1 runs were done before"
cp "$work/ones.npy" "$work/zeros.npy"
expect 1 experiment "$work/words.exp" -o "$work/my"
says "(1 of 1)"

# Options are known in each of their spellings: sources of data replace those before, evaluations take the model's settings.
cat >"$work/spelt.exp" <<'EOF'
{"title": "t", "model": "lm.kv",
 "options": "-Dvocab=257 --define=d=8 --define heads=1 -D ffn=8 -D layers=1 -D ctx=16 --data=random:length=8 --batch 2 --steps 1 --eval-batches 1",
 "runs": [{"name": "a", "options": "--data ngram:pairs=3,length=16"}, {"name": "b", "options": "--data=induction:length=16"}],
 "evals": [{"name": "text", "options": "--data {text} --limit 100"}],
 "claims": [{"claim": "texts are read", "value": "text.tokens", "is": "=", "than": 100}]}
EOF
expect 0 experiment "$work/spelt.exp" -o "$work/my" --text README.md
says "holds   texts are read"
grep -q "kvasir eval $work/lm.kv -D vocab=257 -D d=8 -D heads=1 -D ffn=8" "$work/my/spelt.html" || fail "settings of an evaluation"
! grep -q "random:length" "$work/my/spelt.html" || fail "a source of data that was replaced"

# A single evaluation of a model that is there.
cat >"$work/single.exp" <<'EOF'
{"title": "t", "verb": "eval", "model": "lm.kv", "options": "-D vocab=257 -D d=8 -D heads=1 -D ffn=8 -D layers=1",
 "runs": [{"name": "a"}], "evals": [{"name": "text", "options": "--data {text} --context 16"}],
 "claims": [{"claim": "six tokens", "value": "text.tokens", "is": "=", "than": 6}]}
EOF
mkdir "$work/texts"
echo some >"$work/texts/a"
expect 0 experiment "$work/single.exp" -o "$work/my" --text "$work/texts"
says "holds   six tokens"
expect 0 experiment "$work/single.exp" -o "$work/my" --text "$work/texts"
says "1 of 1 runs were done before"

# Texts that change are other runs.
echo more >"$work/texts/b"
expect 1 experiment "$work/single.exp" -o "$work/my" --text "$work/texts"
says "text.tokens 12 = 6"

# Experiments of one name would write the same files.
mkdir "$work/other"
sed 's#"model": "#&../#' "$work/single.exp" >"$work/other/single.exp"
cp "$work/single.exp" "$work/all.exp"
expect 1 experiment "$work/single.exp" "$work/other/single.exp" -o "$work/twice" --text "$work/texts"
says "$work/other/single.exp: error: results would replace those of $work/single.exp, which has the same name"
expect 1 experiment "$work/single.exp" "$work/all.exp" -o "$work/twice" --text "$work/texts"
says "$work/all.exp: error: among several, no experiment can be called 'all'"
[ ! -e "$work/twice" ] || fail "a refused command made its folder"

# A run that fails stops no other, and is named at the end. What does not depend on it is judged and drawn.
cat >"$work/fails.exp" <<'EOF'
{"title": "t", "model": "induction.kv", "options": "--steps 5 --eval-every 1",
 "runs": [{"name": "good", "x": 1, "group": "g"}, {"name": "bad", "options": "--stops 3", "x": 2, "group": "g"}],
 "plots": [{"kind": "curves", "value": "loss"}, {"kind": "points", "value": "last loss"}, {"kind": "table", "values": ["last loss"]}],
 "claims": [{"claim": "one", "value": "last loss", "is": ">", "than": 0},
            {"claim": "two", "value": "last loss", "is": "<", "than": "bad"}]}
EOF
expect 1 experiment "$work/fails.exp" table5 -j 1 --seeds 1 -o "$work/fails"
says "  FAILED: ended with code 2"
says "holds   one"
says "FAILED  two"
says "holds   The other rows"
says "fails.exp: the run 'bad' with seed 0 ended with code 2: kvasir train:"
grep -q "<td>failed</td>" "$work/fails/fails.html" || fail "no page beside the failed run"
python3 - "$work/fails/fails.json" <<'EOF' || fail "the failed run is not in the results"
import json, sys
good, bad = json.load(open(sys.argv[1]))["runs"]
assert good["values"] and "failed" not in good and not bad["values"] and bad["failed"].startswith("ended with code 2")
EOF
expect 1 experiment "$work/fails.exp" -j 1 --seeds 1 -o "$work/fails"
says "1 of 2 runs were done before"

# Mistakes.
refuse() { # refuse MESSAGE SED-EXPRESSION
  sed "$2" "$work/my.exp" >"$work/bad.exp"
  expect 1 experiment "$work/bad.exp" --seeds 2 -o "$work/my"
  says "$1"
}
refuse "'best acuracy'" 's/best accuracy/best acuracy/'
refuse "has no value 'reach accuracy'" 's/best accuracy/reach accuracy/'
refuse "has no value 'best accuracy 0.5'" 's/best accuracy/best accuracy 0.5/'
refuse "no run has the name" 's/"of": "keys alone"/"of": "keys"/'
refuse "steeds" 's/"seeds"/"steeds"/'
refuse '"is" must be <, > or =' 's/"is": ">"/"is": ">="/'
refuse "bad.exp:1:" '1s/{/{ {/'
refuse "two evaluations have this name" '1s/{/{ "evals": [{"name": "e", "options": ""}, {"name": "e", "options": "--limit 1"}],/'
refuse "config: no evaluation can have this name" '1s/{/{ "evals": [{"name": "config", "options": ""}],/'
refuse "two runs have this name" 's/"name": "values alone"/"name": "keys alone"/'
expect 1 experiment nothing
says "no experiment 'nothing'"
expect 2 experiment --all --list
expect 2 experiment fig2 --quick --paper

# Curves of any runs on one page; seeds of one setting are a band.
mapfile -t runs < <(ls "$work"/stopped/runs/*/metrics.jsonl)
expect 0 report "one=${runs[0]}" "one=${runs[1]}" "other=${runs[2]}" -o "$work/report.html"
grep -q 'class="band c0"' "$work/report.html" || fail "no band over seeds"
grep -q "Learned shift weights" "$work/report.html" || fail "no shift scalars"
expect 2 report "${runs[0]}"
mkdir "$work/lr=0.1" "$work/lr=0.2"
cp "${runs[0]}" "$work/lr=0.1/m.jsonl"
cp "${runs[1]}" "$work/lr=0.2/m.jsonl"
(cd "$work" && expect 0 report lr=0.1/m.jsonl lr=0.2/m.jsonl "a=lr=0.1/m.jsonl" -o paths.html)
for name in lr=0.1/m.jsonl lr=0.2/m.jsonl a; do
  grep -q ">$name<" "$work/paths.html" || fail "no curve $name"
done
expect 1 report "$work/nothing.jsonl" -o "$work/report.html"
says "nothing.jsonl: error: cannot open it"
[ "$(wc -l <"$work/out")" -eq 1 ] || fail "an error of two lines"
: >"$work/empty.jsonl"
expect 1 report "$work/empty.jsonl" -o "$work/empty.html"
says "empty.jsonl: error: has no steps to draw"
[ ! -e "$work/empty.html" ] || fail "a page without a curve"
echo "experiments: ok"
