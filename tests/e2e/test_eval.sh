#!/usr/bin/env bash
# kvasir eval: loss, perplexity and bits per byte equal those computed in doubles, from a table of bigrams and from logits
# of one run over each window; texts and token files agree; nothing depends on batches and threads.
. "$(dirname "$0")/support.sh"

cat >"$work/bigram.kv" <<'KV'
model bigram (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] table ~ normal(1)
  logits = kv.gather(table, tokens)
}
KV
mkdir "$work/texts"
head -c 700 LICENSE >"$work/texts/a.txt"
printf 'x' >"$work/texts/b.txt"
tail -c 500 README.md >"$work/texts/c.txt"
expect 0 data "$work/texts" -o "$work/texts.tok"

evaluate() { # evaluate NAME ARGUMENTS...
  "$KVASIR" eval "${@:2}" --json >"$work/$1.json" 2>"$work/out" || fail "eval ${*:2}"
}
python3 - "$work" <<'PY'
import json, random, struct, sys
random.seed(1)
table = [struct.unpack("<f", struct.pack("<f", random.gauss(0, 2)))[0] for _ in range(257 * 257)]
header = json.dumps({"table": {"dtype": "F32", "shape": [257, 257], "data_offsets": [0, 4 * len(table)]}}).encode()
with open(sys.argv[1] + "/bigram.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header + struct.pack("<%df" % len(table), *table))
PY
bigram=("$work/bigram.kv" --weights "$work/bigram.safetensors")
evaluate tokens "${bigram[@]}" --data "$work/texts.tok" --context 100
evaluate texts "${bigram[@]}" --data "$work/texts" --context 100 --threads 1
evaluate strided "${bigram[@]}" --data "$work/texts.tok" --context 33 --stride 5
evaluate apart "${bigram[@]}" --data "$work/texts" --context 1 --documents apart
evaluate limited "${bigram[@]}" --data "$work/texts.tok" --limit 700

lm=(models/lm.kv -D vocab=257 -D d=32 -D ffn=48 -D heads=2 -D layers=1 -D shift=true --seed 3)
evaluate lm "${lm[@]}" --data "$work/texts.tok" --context 24 --stride 7 --threads 1
evaluate lm_threads "${lm[@]}" --data "$work/texts.tok" --context 24 --stride 7 --threads 2
python3 - "$work" <<'PY' || fail "numbers of eval"
import json, math, struct, sys
work = sys.argv[1]
read = lambda name: json.load(open("%s/%s.json" % (work, name)))
raw = open(work + "/bigram.safetensors", "rb").read()
values = struct.unpack("<%df" % (257 * 257), raw[-4 * 257 * 257:])
rows = [values[257 * i:257 * i + 257] for i in range(257)]
norms = [math.log(math.fsum(map(math.exp, row))) for row in rows]
tokens = struct.unpack("<1204H", open(work + "/texts.tok", "rb").read()[64:])
nats = [norms[a] - rows[a][b] for a, b in zip((256,) + tokens, tokens)]
loss, bits = math.fsum(nats) / 1204, math.fsum(nats) / math.log(2) / 1201

def near(a, b):
    assert abs(a - b) < 1e-12 * abs(b), (a, b)

for name in "tokens", "texts", "strided", "apart":
    found = read(name)
    assert (found["tokens"], found["documents"], found["bytes"]) == (1204, 3, 1201), found
    near(found["loss"], loss)
    near(found["perplexity"], math.exp(loss))
    near(found["bits_per_byte"], bits)
limited = read("limited")
near(limited["loss"], math.fsum(nats[:700]) / 700)
assert (limited["tokens"], limited["bytes"], limited["documents"]) == (700, 700, 1), limited
one, two = read("lm"), read("lm_threads")
assert one.pop("seconds") >= 0 and two.pop("seconds") >= 0 and one == two, (one, two)

# The windows, for one run over each: tokens [windows, 24], and what each predicts.
stream = (256,) + tokens
begins = list(range(0, len(stream) - 24, 7))
shape = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d, 24), }" % len(begins)
header = shape.ljust(117) + "\n"
with open(work + "/windows.npy", "wb") as f:
    f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    for begin in begins:
        f.write(struct.pack("<24i", *stream[begin:begin + 24]))
json.dump([begins, stream], open(work + "/windows.json", "w"))
PY
mkdir "$work/logits"
expect 0 run "${lm[@]}" --input "tokens=$work/windows.npy" --output "$work/logits"
python3 - "$work" <<'PY' || fail "eval and one run over each window differ"
import json, math, struct, sys
work = sys.argv[1]
begins, stream = json.load(open(work + "/windows.json"))
raw = open(work + "/logits/logits.npy", "rb").read()
logits = raw[10 + struct.unpack("<H", raw[8:10])[0]:]
total, count, done = 0, 0, 0
for w, begin in enumerate(begins):
    for t in range(24):
        if begin + t + 1 <= done:
            continue
        row = struct.unpack_from("<257f", logits, 4 * 257 * (24 * w + t))
        total += math.log(math.fsum(map(math.exp, row))) - row[stream[begin + t + 1]]
        count, done = count + 1, begin + t + 1
found = json.load(open(work + "/lm.json"))
rest = found["tokens"] - count  # the last window is shorter than the others
assert 0 <= rest < 7, rest
mean = (found["loss"] * found["tokens"] - total) / rest if rest else math.log(257)
assert abs(mean - math.log(257)) < 1, mean
with open(work + "/expected", "w") as f:
    f.write("%d %.17g" % (count, total / count))
PY
read -r count loss <"$work/expected" || true
evaluate exact "${lm[@]}" --data "$work/texts.tok" --context 24 --stride 7 --limit "$count"
python3 - "$work/exact.json" "$count" "$loss" <<'PY' || fail "eval and one run over each window differ"
import json, sys
found = json.load(open(sys.argv[1]))
assert found["tokens"] == int(sys.argv[2]) and abs(found["loss"] - float(sys.argv[3])) < 1e-9, (found, sys.argv)
PY

expect 0 eval "${bigram[@]}" --data "$work/texts" --context 64
says "1204 tokens of 3 documents, one after the other; context 64, stride 64"
says "of 1201 bytes"

# By default windows are as long as what the model trains on, which its data source may say in a text.
{ cat "$work/bigram.kv" && printf '%s\n' 'train bigram (int32[B, T] targets) {' \
  '  loss = kv.reduce_mean <keepdims = false> (kv.cross_entropy(logits, targets))' '  data = "tokens:t.tok,length=48"' '}'; } \
  >"$work/trained.kv"
expect 0 eval "$work/trained.kv" --data "$work/texts"
says "context 48, stride 48"

# JSON has no infinity: a perplexity beyond doubles is null, and so is all that a probability of zero gives.
cat >"$work/far.kv" <<'KV'
model far <never = false> (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] table ~ normal(1e4)
  if never { table = kv.log(kv.relu(table)) }
  logits = kv.gather(table, tokens)
}
KV
evaluate far "$work/far.kv" --data "$work/texts"
evaluate never "$work/far.kv" -D never=true --data "$work/texts"
python3 - "$work" <<'PY' || fail "numbers that are not finite"
import json, sys
def constant(name):
    raise ValueError(name)
far, never = (json.load(open("%s/%s.json" % (sys.argv[1], name)), parse_constant=constant) for name in ("far", "never"))
assert far["loss"] > 1e3 and far["perplexity"] is None and far["bits_per_byte"] > 1e3, far
assert [never[name] for name in ("loss", "perplexity", "bits_per_byte")] == [None] * 3 and never["bytes"] == 1201, never
PY

# A window ends where the model has no more positions.
short=(-D vocab=257 -D d=16 -D heads=2 -D layers=1 -D ctx=24)
expect 0 export models/gpt2.kv "${short[@]}" -o "$work/short.onnx"
evaluate kv_positions models/gpt2.kv "${short[@]}" --data "$work/texts"
evaluate onnx_positions "$work/short.onnx" --data "$work/texts"
python3 - "$work" <<'PY' || fail "positions"
import json, sys
kv, onnx = (json.load(open("%s/%s_positions.json" % (sys.argv[1], name))) for name in ("kv", "onnx"))
assert kv["context"] == onnx["context"] == onnx["stride"] == 24, (kv, onnx)
assert abs(kv["loss"] - onnx["loss"]) < 1e-6, (kv, onnx)
PY

refused() { # refused CODE MESSAGE ARGUMENT...
  expect "$1" eval "${@:3}"
  says "$2"
}
refused 2 'a model is missing' --data x
refused 2 'what to evaluate on is missing' "$work/bigram.kv"
refused 2 '--stride is at most --context' "$work/bigram.kv" --data x --context 4 --stride 5
refused 2 '--context' "$work/bigram.kv" --data x --context 0
refused 1 'at most the context of 256 tokens' "${lm[@]}" --data "$work/texts" --stride 257
refused 1 'the model has positions for 24 tokens, found 25' "$work/short.onnx" --data "$work/texts" --context 25
refused 1 'the model knows 8000 tokens' models/lm.kv --data "$work/texts"
refused 1 'vocabulary of 257, the model'"'"'s has 100' models/lm.kv -D vocab=100 --data "$work/texts.tok"
refused 1 'expected a model of tokens' tests/data/shift_conv.onnx --data "$work/texts"
: >"$work/empty"
refused 1 'nothing to predict' "$work/bigram.kv" --data "$work/empty"
cat >"$work/later.kv" <<'KV'
model later (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] embed ~ normal(1)
  x = kv.gather(embed, tokens)
  logits = x + kv.cumsum <axis = 1, reverse = true> (x)
}
KV
refused 1 'it runs from the last row to the first' "$work/later.kv" --data "$work/texts"
