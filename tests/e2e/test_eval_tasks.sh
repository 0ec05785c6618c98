#!/usr/bin/env bash
# kvasir eval --task: a table of bigrams gives every continuation a probability that Python computes in doubles from the
# same files and the prompts that docs/evaluation.md shows; so choices, targets and answers of every format score exactly.
. "$(dirname "$0")/support.sh"
tasks=tests/data/tasks

cat >"$work/bigram.kv" <<'KV'
model bigram (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] table ~ normal(1)
  logits = kv.gather(table, tokens)
}
KV
cat >"$work/expected.py" <<'PY'
import csv, glob, json, math, random, re, struct, sys
random.seed(7)
table = [struct.unpack("<f", struct.pack("<f", random.gauss(0, 2)))[0] for _ in range(257 * 257)]
for a, b in zip(b"abc", b"bca"):  # what the model writes after "abcabc" never ends
    table[257 * a + b] = 40.0
table[257 * ord(":") + ord(" ")] = table[257 * ord(" ") + ord("1")] = table[257 * ord("1") + ord("\n")] = 40.0
rows = [table[257 * i:257 * i + 257] for i in range(257)]
norms = [math.log(math.fsum(map(math.exp, row))) for row in rows]

def write(path):
    header = json.dumps({"table": {"dtype": "F32", "shape": [257, 257], "data_offsets": [0, 4 * len(table)]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + struct.pack("<%df" % len(table), *table))

def log_p(context, continuation):
    a, b = (256,) + tuple(context.encode()), continuation.encode()
    return math.fsum(rows[x][y] - norms[x] for x, y in zip(a[-1:] + tuple(b[:-1]), b))

def chosen(context, continuation):
    a, b = context.encode()[-1:], continuation.encode()
    return all(max(range(257), key=rows[x].__getitem__) == y for x, y in zip(a + b[:-1], b))

def last_word(text):
    text = text.rstrip()
    return text[:text.rindex(" ")], text[text.rindex(" "):]

def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8") if line.strip()]

def plain(text):
    return re.sub(" +", " ", re.sub(r"\[[^]]*\]", "", text))

def hellaswag(path):
    for o in lines(path):
        yield [(plain(o["activity_label"] + ": " + o["ctx"]), plain(" " + e)) for e in o["endings"]], o["label"]

def winogrande(path):
    for o in lines(path):
        before, after = o["sentence"].split("_")
        yield [(before + o["option%d" % i], after) for i in (1, 2)], int(o["answer"]) - 1

def arc(path):
    for o in lines(path):
        q = o["question"]
        context = "Question: %s\nAnswer:" % q["stem"]
        yield [(context, " " + c["text"]) for c in q["choices"]], [c["label"] for c in q["choices"]].index(o["answerKey"])

def mmlu(path):
    for name in sorted(glob.glob(path + "/*.csv")) or [path]:
        for r in csv.reader(open(name, encoding="utf-8", newline="")):
            context = "%s\nA. %s\nB. %s\nC. %s\nD. %s\nAnswer:" % tuple(r[:5])
            yield [(context, " " + c) for c in "ABCD"], "ABCD".index(r[5])

def mmlu_shots(test, dev, shots):
    for name in sorted(glob.glob(test + "/*.csv")):
        subject = name.split("/")[-1][:-len("_test.csv")]
        examples = list(mmlu("%s/%s_dev.csv" % (dev, subject)))[:shots]
        intro = "The following are multiple choice questions (with answers) about %s.\n\n" % subject.replace("_", " ")
        before = intro + "".join("%s%s\n\n" % texts[right] for texts, right in examples)
        for texts, right in mmlu(name):
            yield [(before + a, b) for a, b in texts], right

def cmmlu(path):
    for r in csv.DictReader(open(path, encoding="utf-8", newline="")):
        context = "题目：%s\nA. %s\nB. %s\nC. %s\nD. %s\n答案是：" % tuple(r[k] for k in ("Question", "A", "B", "C", "D"))
        yield [("以下是单项选择题，请直接给出正确答案的选项。\n\n" + context, c) for c in "ABCD"], "ABCD".index(r["Answer"])

def items(path):
    for o in lines(path):
        if "choices" in o:
            yield [(o["context"], c) for c in o["choices"]], o["answer"]
        elif "contexts" in o:
            yield [(c, o["target"]) for c in o["contexts"]], o["answer"]

def close(a, b):
    assert abs(a - b) < 1e-9 * max(1, abs(b)), (a, b)

def check(name, all_items, targets=()):
    score = json.load(open(name + ".json"))
    details = lines(name + ".details")
    by = {"accuracy": [], "accuracy_by_tokens": [], "accuracy_by_bytes": []}
    found = [d for d in details if "chosen" in d]
    all_items = list(all_items)
    assert len(found) == len(all_items) > 0 or not all_items, (len(found), len(all_items))
    for (texts, right), d in zip(all_items, found):
        p = [log_p(*t) for t in texts]
        sizes = [len(t[1].encode()) for t in texts]
        for a, b in zip(d["log_p"], p):
            close(a, b)
        assert d["tokens"] == sizes and d["answer"] == right and d["chosen"] == p.index(max(p)), (d, p)
        q = [a / b for a, b in zip(p, sizes)]
        by["accuracy"].append(p.index(max(p)) == right)
        by["accuracy_by_tokens"].append(q.index(max(q)) == right)  # a token is a byte
        by["accuracy_by_bytes"].append(q.index(max(q)) == right)
    if targets:
        by["accuracy"] += [chosen(*t) for t in targets]
        mean = math.fsum(-log_p(*t) for t in targets) / len(targets)
        close(score["loss"], mean)
        close(score["perplexity"], math.exp(mean))
    for key, right in by.items():
        if right:
            close(score[key], sum(right) / len(right))
            assert 0 <= score[key + "_stderr"] <= 0.5, score
    return score
PY
(cd "$work" && python3 -c 'from expected import write; write("bigram.safetensors")')

task() { # task NAME ARGUMENTS...
  "$KVASIR" eval "$work/bigram.kv" --weights "$work/bigram.safetensors" "${@:2}" --details "$work/$1.details" --json \
    >"$work/$1.json" 2>"$work/out" || fail "eval ${*:2}"
}
task items --task items --file "$tasks/items.jsonl" --threads 1 --answer-tokens 3
task lambada --task lambada --file "$tasks/lambada.jsonl"
task passages --task lambada --file "$tasks/lambada.txt"
task winogrande --task winogrande --file "$tasks/winogrande.jsonl"
task hellaswag --task=hellaswag --file "$tasks/hellaswag.jsonl"
task arc --task arc --file "$tasks/arc.jsonl"
task none --task arc --file "$tasks/arc.jsonl" --shots 0
task mmlu --task mmlu --file "$tasks/mmlu/test" --shots 2 --shots-file "$tasks/mmlu/dev"
task cmmlu --task cmmlu --file "$tasks/cmmlu"
task math --task math --file "$tasks/math"
task again --task items --file "$tasks/items.jsonl" --threads 2 --answer-tokens 3
task short --task hellaswag --file "$tasks/hellaswag.jsonl" --context 1
task drawn --task arc --file "$tasks/arc.jsonl" --shots 1
PYTHONPATH="$work" python3 - "$work" "$tasks" <<'PY' || fail "scores"
import os, sys
from expected import *
tasks = os.path.abspath(sys.argv[2])
os.chdir(sys.argv[1])
targets = [("Rain falls from the", " clouds"), last_word("She closed the gate and walked home\n")]
one = check("items", items(tasks + "/items.jsonl"), targets)
assert one["items"] == 6 and one["exact_match"] == 1, one
check("lambada", [], [last_word(o["text"]) for o in lines(tasks + "/lambada.jsonl")])
check("passages", [], [last_word(line) for line in open(tasks + "/lambada.txt")])
check("winogrande", winogrande(tasks + "/winogrande.jsonl"))
check("hellaswag", hellaswag(tasks + "/hellaswag.jsonl"))
check("arc", arc(tasks + "/arc.jsonl"))
check("mmlu", mmlu_shots(tasks + "/mmlu/test", tasks + "/mmlu/dev", 2))
check("cmmlu", cmmlu(tasks + "/cmmlu/made_up.csv"))
# A bigram's shot changes no probability; of two items the other one is shown.
check("drawn", arc(tasks + "/arc.jsonl"))
maths = check("math", [])
assert maths["exact_match"] == 0.5, maths  # the table writes 1 after "Answer:"
written = [d["written"] for d in lines("math.details")]
assert written == [" 1", " 1"], written
short = check("short", hellaswag(tasks + "/hellaswag.jsonl"))  # one token of context is enough for bigrams
assert short["cut"] == 6, short
again = json.load(open("again.json"))
one.pop("seconds"), again.pop("seconds")
assert one == again, (one, again)
PY

# A model of two layers: what a shared context is computed once for, has the bits of its own run.
lm=(models/lm.kv -D vocab=257 -D d=32 -D ffn=48 -D heads=2 -D layers=2 --seed 3)
expect 0 eval "${lm[@]}" --task hellaswag --file "$tasks/hellaswag.jsonl" --details "$work/together"
python3 - "$tasks/hellaswag.jsonl" "$work" <<'PY'
import json, sys
for i, line in enumerate(open(sys.argv[1], encoding="utf-8")):
    item = json.loads(line)
    for k, ending in enumerate(item["endings"]):
        with open("%s/alone-%d-%d.jsonl" % (sys.argv[2], i, k), "w") as f:
            json.dump(dict(item, endings=[ending], label=0), f)
PY
: >"$work/alone"
for i in 0 1; do
  for alone in "$work/alone-$i"-*.jsonl; do
    expect 0 eval "${lm[@]}" --task hellaswag --file "$alone" --details "$work/one"
    cat "$work/one" >>"$work/alone"
  done
done
python3 - "$work/together" "$work/alone" <<'PY' || fail "choices together differ from each alone"
import json, sys
read = lambda path: [p for line in open(path) for p in json.loads(line)["log_p"]]
assert read(sys.argv[1]) == read(sys.argv[2]) and len(read(sys.argv[1])) == 6
PY

expect 0 eval "${lm[@]}" --task items --file "$tasks/items.jsonl"
says "items: 6 items, 0 shots"

refused() { # refused CODE MESSAGE ARGUMENT...
  expect "$1" eval "$work/bigram.kv" "${@:3}"
  says "$2"
}
refused 2 'give one of them' --task arc --data x
refused 2 '--file is missing' --task arc
refused 2 'what to evaluate on is missing' --json
refused 2 'belong to --task' --data x --file y
refused 2 'belong to --data' --task arc --file x --stride 3
refused 2 '--shots-file without --shots' --task arc --file x --shots-file y
refused 2 'expected items, lambada' --task nothing --file x
refused 2 '--bootstrap' --task arc --file x --bootstrap -1
refused 1 'No such file' --task arc --file "$work/nothing"
refused 1 'arc.jsonl:1: error: expected a string "activity_label"' --task hellaswag --file "$tasks/arc.jsonl"
refused 1 'found 1 other items to show' --task arc --file "$tasks/arc.jsonl" --shots 2
refused 1 'of subject made up' --task cmmlu --file "$tasks/cmmlu" --shots 2
refused 1 'six fields' --task mmlu --file "$tasks/cmmlu"
refused 1 'named by the first record' --task cmmlu --file "$tasks/mmlu/dev"
printf '{"context": "a", "choices": ["b"], "answer": 1}\n' >"$work/bad.jsonl"
refused 1 'bad.jsonl:1: error: expected a whole number "answer" from 0 to 0' --task items --file "$work/bad.jsonl"
printf '\n{"context": "a", "target": "b", "tagret": 1}\n' >"$work/bad.jsonl"
refused 1 'bad.jsonl:2: error: unknown "tagret"' --task items --file "$work/bad.jsonl"
printf '{"context": "a", "target": ""}\n' >"$work/bad.jsonl"
refused 1 'a continuation that is not empty' --task items --file "$work/bad.jsonl"
printf '{"text": "word"}\n' >"$work/bad.jsonl"
refused 1 'at least two words' --task items --file "$work/bad.jsonl"
printf '{"text": "two words"}\n{"text": ' >"$work/bad.jsonl"
refused 1 'bad.jsonl:2: error: expected a JSON object' --task items --file "$work/bad.jsonl"

# A model with positions for 24 tokens: of 40 bytes and the end token before them 20 stay before the last word, which is
# 5 bytes of which the last is not read; before an answer of at most 8 tokens 17 do.
short=(models/gpt2.kv -D vocab=257 -D d=16 -D heads=2 -D layers=1 -D ctx=24 --task items --json --answer-tokens 8)
printf '%s\n' '{"text": "she closed the old gate, and walked home"}' \
  '{"context": "Q: how many did walk over the bridge?\nA:", "write": " two"}' >"$work/short.jsonl"
for item in 1:20 2:17; do
  sed -n "${item%:*}p" "$work/short.jsonl" >"$work/one.jsonl"
  for context in '' "--context ${item#*:}"; do
    # shellcheck disable=SC2086
    expect 0 eval "${short[@]}" --file "$work/one.jsonl" --details "$work/details${context:+.cut}" $context
    says '"cut": 1'
  done
  cmp "$work/details" "$work/details.cut" || fail "positions: $(cat "$work/details" "$work/details.cut")"
done
expect 1 eval "${short[@]}" --file "$work/short.jsonl" --answer-tokens 25
says 'short.jsonl:2: error: the model has positions for 24 tokens: too few for what follows the context'

# A probability of zero is null among the details, in its place.
cat >"$work/never.kv" <<'KV'
model never (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] ones ~ ones
  logits = kv.gather(kv.log(ones * kv.cast <to = float> (kv.iota <shape = [257], axis = 0, dtype = int32> () != 120)), tokens)
}
KV
printf '%s\n' '{"context": "a", "choices": ["b", "x", "c"], "answer": 0}' >"$work/never.jsonl"
expect 0 eval "$work/never.kv" --task items --file "$work/never.jsonl" --details "$work/never.details"
grep -qE '"log_p":\[-[0-9.]*,null,-[0-9.]*\]' "$work/never.details" || fail "details: $(cat "$work/never.details")"

# Logits that are no numbers choose nothing, also in an answer.
sed 's/ones \*/ones \/ 0 */' "$work/never.kv" >"$work/nan.kv"
printf '%s\n' '{"context": "a", "write": "b"}' >"$work/write.jsonl"
for items in never write; do
  expect 1 eval "$work/nan.kv" --task items --file "$work/$items.jsonl"
  says "the model's logits after 2 tokens are not numbers"
done

# Nothing of an item goes unread.
item() { # item JSON MESSAGE
  printf '%s\n' "$1" >"$work/item.jsonl"
  expect 1 eval "$work/never.kv" --task items --file "$work/item.jsonl"
  says "item.jsonl:1: error: $2"
}
item '{"context": "a", "choices": ["x", "y"], "target": "z", "answer": 1}' 'unknown "target" beside "choices"; an item has text,'
item '{"text": "a b", "context": "x"}' 'unknown "context" beside "text"'
item '{"context": "a", "target": "b", "answer": 0}' 'unknown "answer" beside "target"'
item '{"context": "a"}' 'expected text, or context and one of choices'
