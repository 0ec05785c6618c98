#!/usr/bin/env bash
# kvasir data: token files from texts, and training on them and on arrays.
. "$(dirname "$0")/support.sh"

mkdir -p "$work/texts/b" "$work/texts/a"
for i in $(seq 60); do printf 'The quick brown fox %d jumps over the lazy dog.\n' $((i % 7)); done >"$work/texts/b/fox"
printf 'Gr\xc3\xbc\xc3\x9fe: it'\''s kvasir.\n' >"$work/texts/a/one"
cp "$work/texts/a/one" "$work/texts/z-copy"
printf 'bin\0ary' >"$work/texts/binary"
ln -s b/fox "$work/texts/link"

expect 0 data "$work/texts" -o "$work/bytes.tok"
says "of a vocabulary of 257, from 2 files"
says "left out: 1 binary files, 1 copies, 0 that cannot be read"
expect 0 data info "$work/bytes.tok"
says "documents   2, ended by token 256"
expect 0 data decode "$work/bytes.tok" --count 24
says "Grüße: it's kvasir."
says "<|end|>"
expect 0 data info "$work/bytes.tok" --json
python3 - "$work/out" "$work/bytes.tok" "$work/texts" <<'PY' || fail "token file"
import json, pathlib, struct, sys
info, data, texts = json.load(open(sys.argv[1])), open(sys.argv[2], "rb").read(), pathlib.Path(sys.argv[3])
expected = []
for name in ("a/one", "b/fox"):
    expected += list((texts / name).read_bytes()) + [256]
assert data[:8] == b"KVATOKEN" and struct.unpack_from("<II", data, 8) == (1, 4)
assert list(struct.unpack("<%dH" % ((len(data) - 64) // 2), data[64:])) == expected
assert info["tokens"] == len(expected) and info["documents"] == 2 and info["distinct"] == len(set(expected))
assert info["shortest"] == len((texts / "a/one").read_bytes())
PY

# The same file again; .gz files give the text within; a limit cuts.
expect 0 data make "$work/texts" -o "$work/again.tok"
cmp "$work/bytes.tok" "$work/again.tok" || fail "not the same file twice"
# A text of the folder is not replaced.
expect 1 data "$work/texts" -o "$work/texts/b/fox"
says "fox: error: is one of the texts, and -o would replace it"
grep -q "quick brown" "$work/texts/b/fox" || fail "a text was replaced"
[ "$(ls "$work/texts/b")" = fox ] || fail "left behind: $(ls "$work/texts/b")"
# A link, and what it leads to, stay what they are.
ln -s again.tok "$work/link.tok"
ln -s /dev/null "$work/null.tok"
: >"$work/again.tok"
for name in link null; do
  expect 0 data "$work/texts" -o "$work/$name.tok"
  [ -L "$work/$name.tok" ] || fail "data -o replaces the link $name.tok"
done
cmp "$work/bytes.tok" "$work/again.tok" || fail "not written through the link"
gzip -9 <"$work/texts/b/fox" >"$work/fox.gz"
if "$KVASIR" data "$work/fox.gz" -o "$work/gz.tok" >"$work/out" 2>&1; then
  expect 0 data "$work/texts/b/fox" -o "$work/plain.tok"
  cmp "$work/plain.tok" "$work/gz.tok" || fail ".gz"
  head -c 60 "$work/fox.gz" >"$work/cut.gz"
  expect 1 data "$work/cut.gz" -o "$work/x.tok"
  says "damaged"
  cp "$work/texts/b/fox" "$work/text.gz"
  expect 1 data "$work/text.gz" -o "$work/x.tok"
  says "text.gz: error: is no .gz file"
else
  says "without zlib"
fi
expect 0 data "$work/texts" --limit 0.1k -o "$work/cut.tok" --json
says '"bytes": 100,'
! ls "$work" | grep -q tmp || fail "a temporary file is left"

# Tokenizers.
expect 0 data "$work/texts" --tokenizer tests/data/tokenizer_gpt2.json -o "$work/bpe.tok"
says "of a vocabulary of 602"
expect 0 data decode "$work/bpe.tok" --tokenizer tests/data/tokenizer_gpt2.json --count 1000
says "Grüße: it's kvasir."
says "<|endoftext|>"
says "brown fox 3 jumps"
expect 1 data decode "$work/bpe.tok"
says "vocabulary of 602, the tokenizer 257"
expect 1 data "$work/texts" --tokenizer tests/data/tokenizer_gpt2.json --end "<eos>" -o "$work/x.tok"
says "no token '<eos>'"
expect 1 data "$work/texts" --tokenizer README.md -o "$work/x.tok"
says "malformed JSON"
expect 2 data "$work/texts"
expect 2 data "$work/texts" -o "$work/x.tok" --limit ten
expect 2 data info "$work/bytes.tok" -o "$work/x.tok"
expect 2 data decode "$work/bytes.tok" --json
says "--json is for make and info"
count=$("$KVASIR" data info "$work/bytes.tok" --json | sed 's/{"tokens": \([0-9]*\),.*/\1/')
expect 0 data decode "$work/bytes.tok" --at $((count - 1))
expect 1 data decode "$work/bytes.tok" --at "$count"
says "bytes.tok: error: --at $count lies behind its last token: it has $count"
expect 1 data "$work/none" -o "$work/x.tok"
expect 1 data "$work/texts/binary" -o "$work/x.tok"
says "there is no text"
[ ! -e "$work/x.tok" ] || fail "a failed run left a file"
head -c 1000 "$work/bytes.tok" >"$work/short.tok"
expect 1 data info "$work/short.tok"
says "it is damaged"

# A model learns the text; with the same seed twice the same, whatever the threads.
train() { # train NAME ARGUMENTS...
  expect 0 train models/mlp.kv -D vocab=257 -D d=16 -D hidden=64 --batch 8 --data "tokens:$work/bytes.tok,length=32" \
    --steps 150 --eval-every 75 --eval-batches 2 --metrics "$work/$1.jsonl" "${@:2}"
}
train one --threads 1
train two --threads 2 --report "$work/report.html"
python3 - "$work/one.jsonl" "$work/two.jsonl" "$work/report.html" <<'PY' || fail "training on tokens"
import json, sys
one, two = ([json.loads(l) for l in open(p)] for p in sys.argv[1:3])
assert [l["loss"] for l in one] == [l["loss"] for l in two]
assert one[0]["loss"] > 5 and one[-1]["event"] == "eval" and one[-1]["loss"] < 2, one[-1]
report = open(sys.argv[3]).read()
for text in ("tokens a second", "Bytes in use over the steps", "GFLOP/s", "Time by step"):
    assert text in report, text
PY
expect 1 train models/mlp.kv --data "tokens:$work/bytes.tok,length=32" --steps 1
says "vocabulary of 257, the model's has 256"
expect 1 train models/mlp.kv -D vocab=257 --data "tokens:$work/bytes.tok" --pin T=4000 --steps 1
says "there is nothing to train on: sequences of 4000 need 4001 tokens, the longest file has $count;"

# What a run could only open after compiling is opened before, and named.
printf 'x%.0s' {1..99} >"$work/junk"
mkdir "$work/folder"
refused() { # refused TEXT OPTION...: before anything is compiled
  expect 1 train models/mlp.kv -D vocab=257 -D d=16 -D hidden=64 --steps 1 "${@:2}"
  says "$1"
  ! grep -q "compiled in" "$work/out" || fail "compiled before it was refused: ${*:2}"
}
refused "$work/none: error: cannot open it" --data "tokens:$work/none"
refused "$work/junk: error: is no token file" --data "tokens:$work/junk"
refused "$work/folder: error: is not a regular file" --data "tokens:$work/folder"
refused "$work/none: error: cannot open it" --data "npy:tokens=$work/none"
refused "the program has no data input 'x'; it has: tokens, targets" --data "npy:x=$work/junk"
refused "$work/junk: error: is no safetensors file" --data "safetensors:$work/junk"
refused "no data source is called 'other'" --data other
refused "$work/none: error: cannot open it" "--resume=$work/none"
refused "$work/junk: error: is no safetensors file" "--resume=$work/junk"
refused "there is no checkpoint in $work/folder" "--resume=$work/folder"

# The train block may name files, too.
sed "s|data = ngram.*|data = \"tokens:bytes.tok,length=32\"|" models/mlp.kv >"$work/mlp.kv"
expect 0 train "$work/mlp.kv" -D vocab=257 -D d=16 -D hidden=64 --batch 8 --steps 150 --eval-every 75 --eval-batches 2 \
  --metrics "$work/three.jsonl"
python3 - "$work/one.jsonl" "$work/three.jsonl" <<'PY' || fail "a train block with a file"
import json, sys
one, three = ([json.loads(l)["loss"] for l in open(p)] for p in sys.argv[1:3])
assert one == three
PY

# A mixture there may have generators, with arguments and without.
for generator in random "random:all=1" "random:length=32" "random:length=32,weight=2"; do
  sed "s|data = ngram.*|data = \"tokens:bytes.tok,length=32;$generator\"|" models/mlp.kv >"$work/mlp.kv"
  expect 0 train "$work/mlp.kv" -D vocab=257 -D d=16 -D hidden=64 --steps 1 --metrics "$work/block.jsonl"
  expect 0 train models/mlp.kv -D vocab=257 -D d=16 -D hidden=64 --data "tokens:$work/bytes.tok,length=32;$generator" --steps 1 \
    --metrics "$work/option.jsonl"
  [ "$(grep -o '"loss": *[^,}]*' "$work/block.jsonl")" = "$(grep -o '"loss": *[^,}]*' "$work/option.jsonl")" ] || fail "mixture $generator"
done

# Arrays: y = 2 a - b.
cat >"$work/line.kv" <<'KV'
model line (float[B, 2] x) => (float[B, 1] y) {
  param float[2, 1] w ~ zeros
  y = x @ w
}

train line (float[B, 1] target) {
  error = y - target
  loss = kv.reduce_mean <keepdims = false> (error * error)
  optimizer = SGD <lr = 0.1>
  steps = 200
  batch = 16
}
KV
python3 - "$work" <<'PY'
import random, struct, sys
def save(path, rows, columns, values, code="f"):
    header = "{'descr': '<%s4', 'fortran_order': False, 'shape': (%d, %d), }" % (code, rows, columns)
    header += " " * (-(len(header) + 11) % 64) + "\n"
    open(path, "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<%d%s" % (len(values), code), *values))
r = random.Random(1)
x = [r.uniform(-1, 1) for _ in range(400)]
save(sys.argv[1] + "/x.npy", 200, 2, x)
save(sys.argv[1] + "/y.npy", 200, 1, [2 * x[i] - x[i + 1] for i in range(0, 400, 2)])
tokens = [r.randrange(256) for _ in range(400)]
save(sys.argv[1] + "/tokens.npy", 50, 8, tokens, "i")
save(sys.argv[1] + "/targets.npy", 50, 8, tokens[:77] + [256] + tokens[78:], "i")
PY
expect 0 train "$work/line.kv" --data "npy:x=$work/x.npy,target=$work/y.npy,eval=0.2" --metrics "$work/line.jsonl"
python3 -c 'import json, sys; assert json.loads(open(sys.argv[1]).readlines()[-1])["loss"] < 1e-4' "$work/line.jsonl" || fail "arrays"

# What an evaluation lacks is said before anything is learned.
expect 1 train "$work/line.kv" --data "npy:x=$work/x.npy,target=$work/y.npy,eval=0" --steps 20
says "nothing is left for evaluation (200 rows or windows, eval=0)"
! grep -q "step 20" "$work/out" || fail "refused after training"
expect 0 train "$work/line.kv" --data "npy:x=$work/x.npy,target=$work/y.npy,eval=0" --steps 20 --eval-every 0

# A row that cannot be used loses nothing.
expect 1 train models/mlp.kv --data "npy:tokens=$work/tokens.npy,targets=$work/targets.npy,length=8,eval=0" --eval-every 0 \
  --steps 50 --batch 1 --checkpoint "$work/rows"
says "the state before that step is saved in $work/rows"
[ "$(ls "$work/rows" | wc -l)" -eq 1 ] || fail "one checkpoint"

# Files of a train block are taken from the model's folder and from nowhere else.
mkdir -p "$work/model/data"
cp "$work/x.npy" "$work/y.npy" "$work/model/data"
own() { sed "s#batch = 16#&\n  data = \"$1\"#" "$work/line.kv" >"$work/model/own.kv"; }
own "npy:x=data/x.npy,target=data/y.npy,eval=0.2"
expect 0 train "$work/model/own.kv" --metrics "$work/own.jsonl"
python3 - "$work/line.jsonl" "$work/own.jsonl" <<'PY'
import json, sys
a, b = ([json.loads(l)["loss"] for l in open(p)] for p in sys.argv[1:3])
assert a == b
PY
(cd "$work/model" && expect 0 train own.kv --steps 1)
own "npy:x=data/x.npy,target=../y.npy"
expect 1 train "$work/model/own.kv"
says "'target=../y.npy': a train block names files below the model's folder"
ln -s "$work/y.npy" "$work/model/link.npy"
own "npy:x=data/x.npy,target=link.npy"
expect 1 train "$work/model/own.kv"
says "'link.npy' is a symbolic link"
expect 0 train "$work/model/own.kv" --steps 1 --data "npy:x=$work/x.npy,target=$work/model/link.npy"

# A signal leaves no file that is not complete, and its status is that of the man page.
head -c 100000000 /dev/zero | tr '\0' a >"$work/large.txt"
for row in INT:130 TERM:143 HUP:129; do
  python3 - "$KVASIR" "$work" "${row%:*}" "${row#*:}" <<'PY' || fail "SIG${row%:*} leaves a file"
import glob, os, signal, subprocess, sys, time
tool, work, name, status = sys.argv[1:]
signal.signal(signal.SIGINT, signal.SIG_DFL)
process = subprocess.Popen([tool, "data", work + "/large.txt", "-o", work + "/large.tok"])
while not glob.glob(work + "/large.tok.*.tmp"):
    assert process.poll() is None
    time.sleep(0.001)
process.send_signal(getattr(signal, "SIG" + name))
assert 128 - process.wait() == int(status), process.returncode
assert not glob.glob(work + "/large.tok*"), glob.glob(work + "/large.tok*")
PY
done
rm "$work/large.txt"

# The train block of docs/language.md trains.
awk '/^```/ { inside = 0 } inside; /^```kv -D lr=/ { inside = 1 }' docs/language.md >"$work/model/regression.kv"
python3 - "$work/model" <<'PY'
import struct, sys
for name, shape, n in (("x", "(200, 4)", 800), ("target", "(200,)", 200)):
    header = ("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape).ljust(117) + "\n"
    data = struct.pack("<%df" % n, *[(7 * i % 11) / 11 for i in range(n)])
    open("%s/%s.npy" % (sys.argv[1], name), "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data)
PY
expect 0 train "$work/model/regression.kv"
says "step 100/100  eval loss"

expect 1 train "$work/line.kv" --data "npy:x=$work/x.npy"
says "no file is given for the data input 'target'"
expect 1 train "$work/line.kv" --data "npy:x=$work/y.npy,target=$work/x.npy"
says "takes rows of shape [2], the array has rows of shape [1]"
