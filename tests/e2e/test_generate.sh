#!/usr/bin/env bash
# Texts out of models: a model that learned one sentence continues it, as .kv and as ONNX; draws depend on the seed alone;
# what does not fit is refused by name.
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/sentence.sh"

expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt 'the cat ' --tokens 40 --stats
grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "generate forgot the sentence"
grep -qE '^prompt: 8 tokens, [0-9]+ tokens/s; text: 40 tokens, [0-9]+ tokens/s$' "$work/out" || fail "no statistics"

expect 0 export models/lm.kv "${size[@]}" --weights "$weights" -o "$work/lm.onnx"
expect 0 generate "$work/lm.onnx" --prompt 'the cat ' --tokens 40
grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "the exported model forgot the sentence"

# Documents, as .kv and as ONNX.
ended=("${size[@]}" -D separator=46)
expect 0 export models/lm.kv "${ended[@]}" --weights "$weights" -o "$work/ended.onnx"
for model in models/lm.kv "$work/ended.onnx"; do
  named=()
  [ "$model" != models/lm.kv ] || named=("${ended[@]}" --weights "$weights")
  expect 0 generate "$model" "${named[@]}" --prompt 'sat. the mat. the ' --tokens 40 --temperature 1 --seed 3
  mv "$work/out" "$work/ended.$(basename "$model")"
done
cmp -s "$work/ended.lm.kv" "$work/ended.ended.onnx" || fail "documents: the exported model writes something else"

# Caches in 16 bits change the loss a little, and not the sentence; an executable has the tokens of the tool.
loss() { # loss OPTION...
  expect 0 eval models/lm.kv "${size[@]}" --weights "$weights" --data "$work/text.tok" --context 48 --limit 960 --json "$@"
  sed -n 's/.*"loss": \([0-9.e-]*\).*/\1/p' "$work/out"
}
float=$(loss)
for caches in f16 bf16; do
  awk -v a="$float" -v b="$(loss --kv-cache $caches)" 'BEGIN { exit b == "" || a == b || b - a > 0.005 || a - b > 0.005 }' ||
    fail "$caches: the loss is $(loss --kv-cache $caches) after $float"
  expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt 'the cat ' --tokens 40 --kv-cache $caches
  grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "$caches: generate forgot the sentence"
done
expect 0 build models/lm.kv "${size[@]}" --from "$weights" --generate --exe --kv-cache f16 -o "$work/writer"
draw=(--prompt 'the cat ' --tokens 60 --temperature 2 --seed 3)
"$work/writer" "${draw[@]}" >"$work/drawn" || fail "the executable fails"
expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" "${draw[@]}" --kv-cache f16
cmp -s "$work/out" "$work/drawn" || fail "f16: an executable writes something else"
expect 2 build models/lm.kv --exe --kv-cache f16 -o "$work/writer"
says '--kv-cache is for --generate'

# Logits of other types of floats, as of models that are float16 throughout, are those of floats.
typed() { # typed TYPE OF_LOGITS END
  cat <<EOF
model typed (int32[B, T] tokens) => ($2[B, T, 257] y) {
  param $1[257, 16] embed ~ normal(1)
  x = kv.gather(embed, tokens)
  q = kv.transpose <perm = [0, 2, 1, 3]> (kv.reshape <shape = [B, T, 2, 8]> (x))
  a = kv.attention <causal = true> (q, q, q)
  a = kv.reshape <shape = [B, T, 16]> (kv.transpose <perm = [0, 2, 1, 3]> (a))
  y = $3(kv.matmul <transpose_b = true> (a, embed))
}
EOF
}
for type in float16 bfloat16 double; do
  typed $type float 'kv.cast <to = float> ' >"$work/float.kv"
  typed $type $type '' >"$work/typed.kv"
  draw=(--prompt 'the cat ' --tokens 60 --temperature 20 --seed 3)
  expect 0 generate "$work/float.kv" "${draw[@]}"
  mv "$work/out" "$work/drawn"
  expect 0 generate "$work/typed.kv" "${draw[@]}"
  cmp -s "$work/out" "$work/drawn" || fail "logits of $type: generate writes something else"
  expect 0 eval "$work/typed.kv" --data "$work/text.tok" --context 48 --limit 96
done
expect 0 build "$work/typed.kv" --seed 3 --generate --exe -o "$work/writer"
"$work/writer" "${draw[@]}" | cmp -s - "$work/drawn" || fail "logits of double: an executable writes something else"

# Learned positions end a text where there are no more, and a longer prompt is refused.
short=(-D vocab=257 -D d=16 -D heads=2 -D layers=1 -D ctx=24)
expect 0 export models/gpt2.kv "${short[@]}" -o "$work/short.onnx"
for model in "models/gpt2.kv ${short[*]}" "$work/short.onnx"; do
  # shellcheck disable=SC2086
  expect 0 generate $model --prompt 'eight...' --tokens 100 --json
  grep -qF '"finish":"length","prompt_tokens":8,"tokens":16}' "$work/out" || fail "positions: $(cat "$work/out")"
  # shellcheck disable=SC2086
  expect 1 generate $model --prompt 'and twenty-four bytes...' --tokens 1
  says 'a prompt has 24 tokens; the model has positions for 24, text included'
done

# A prompt of several chunks.
long=$(for _ in $(seq 30); do printf 'the cat sat on the mat. '; done)
expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt "$long" --tokens 24
grep -qF 'mat. the cat sat on the mat. ' "$work/out" || fail "a long prompt"

asked=(--prompt 'the ')
draws() { # draws FILE OPTION...
  "$KVASIR" generate models/lm.kv "${size[@]}" --weights "$weights" "${asked[@]}" --tokens 30 --temperature 2 "${@:2}" \
    >"$work/$1"
}
draws a --n 3 --seed 7 --threads 1
draws b --n 3 --seed 7 --threads 2
draws c --n 3 --seed 8
cmp -s "$work/a" "$work/b" || fail "draws depend on threads"
cmp -s "$work/a" "$work/c" && fail "draws do not depend on the seed"
[ "$(grep -ac '^== [123] ==$' "$work/a")" = 3 ] || fail "not three texts"
draws one --seed 7
sed -n '2,$p' "$work/a" | head -c 34 | cmp -s - <(head -c 34 "$work/one") || fail "the first of several texts is not the one text"
draws k --seed 7 --top-k 1
draws p --seed 7 --top-p 0
draws greedy --temperature 0
cmp -s "$work/k" "$work/greedy" || fail "--top-k 1 is not greedy"
cmp -s "$work/p" "$work/greedy" || fail "--top-p 0 is not greedy"

# Prompts of a file: a text is what it is alone, whatever runs beside it.
printf 'the \nthe cat sat on \non\nmat. the cat sat \n' >"$work/prompts"
asked=(--prompts "$work/prompts")
for batch in 1 3 16; do draws "batch$batch" --n 2 --seed 7 --batch $batch --json; done
cmp -s "$work/batch1" "$work/batch3" && cmp -s "$work/batch1" "$work/batch16" || fail "texts depend on --batch"
sed 's/$/\r/' "$work/prompts" >"$work/crlf"
asked=(--prompts "$work/crlf")
draws windows --n 2 --seed 7 --json
cmp -s "$work/batch1" "$work/windows" || fail "lines that end as on Windows: $(cat "$work/windows")"
python3 - "$work/batch3" "$work/prompts" <<'PY' || fail "--json: $(cat "$work/batch3")"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
asked = [line.rstrip("\n") for line in open(sys.argv[2])]
assert [(r["prompt"], r["index"]) for r in rows] == [(p, i) for p in asked for i in range(2)], rows
assert all(r["tokens"] == 30 if r["finish"] == "length" else r["finish"] == "stop" and r["tokens"] < 30 for r in rows), rows
assert all(r["prompt_tokens"] == len(r["prompt"]) for r in rows), rows
assert len({r["text"] for r in rows}) == 8
PY

# Stop strings end a text and are left out, also where one begins in vain before.
greedy() { expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt 'the cat ' --tokens 40 "$@"; }
greedy --stop 'the mouse' --stop 'mat'
[ "$(cat "$work/out")" = 'the cat sat on the ' ] || fail "--stop: $(cat "$work/out")"
greedy --stop 'sat' --json
grep -qF '"text":"","finish":"stop"' "$work/out" || fail "--stop --json: $(cat "$work/out")"
greedy --repetition-penalty 1000
grep -qF 'sat on the mat. the cat' "$work/out" && fail "--repetition-penalty changes nothing"

# A chat: the prompt in the format, which the text is without.
greedy --chat plain --system 'the cat' --prompt 'sat' --json
chat=$(cat "$work/out")
expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt "$(printf 'the cat\nUser: sat\nAssistant:')" --tokens 40 --stop "$(printf '\nUser:')" --json
[ "${chat#*\"index\"}" = "$(sed 's/.*"index"//' "$work/out")" ] || fail "--chat: $chat"

# A signal ends a text where it is; what came stands.
python3 - "$KVASIR" models/lm.kv "${size[@]}" --weights "$weights" <<'PY' || fail "SIGINT"
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
p = subprocess.Popen([sys.argv[1], "generate", *sys.argv[2:], "--prompt", "the cat ", "--tokens", "1000000"], stdout=subprocess.PIPE)
text = p.stdout.read(200)
p.send_signal(signal.SIGINT)
text += p.stdout.read()
assert p.wait() == 4, p.returncode
assert text.startswith(b"the cat sat on the mat.") and text.endswith(b"\n"), text
PY

# A text ends where the model ends it.
expect 0 generate models/lm.kv "${size[@]}" -D separator=256 --prompt x --tokens 3000 --temperature 100 --stats
made=$(sed -n 's/.*text: \([0-9]*\) tokens.*/\1/p' "$work/out")
[ "$made" -lt 3000 ] || fail "a text without end"

refused() { # refused CODE MESSAGE ARGUMENT...
  expect "$1" generate "${@:3}"
  grep -qF -- "$2" "$work/out" || fail "'${*:3}' says: $(cat "$work/out")"
}
refused 2 '--prompt is missing' models/lm.kv
refused 2 'a model is missing' --prompt x
refused 2 '--system is for --chat' models/lm.kv --prompt x --system x
refused 1 'does not tell the format' models/lm.kv --prompt x --chat auto
refused 2 'give one of them' models/lm.kv --prompt x --prompts "$work/prompts"
refused 2 'expected a text' models/lm.kv --prompt x --stop ''
printf 'a\n\nb\n' >"$work/gap"
refused 1 'line 2: expected at least one token' models/lm.kv --prompts "$work/gap"
refused 2 'probabilities, at most 1' models/lm.kv --prompt x --top-p 2
refused 1 'at least one token' models/lm.kv --prompt ''
refused 1 'the model knows 8000 tokens' models/lm.kv --prompt x
refused 1 'expected a model of tokens' tests/data/shift_conv.onnx --prompt x
# Logits without a number give no token: the text ends there, and the others go on.
cat >"$work/nan.kv" <<'KV'
model nan (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] embed ~ normal(1)
  logits = kv.gather(embed, tokens) + kv.reshape <shape = [B, T, 1]> (kv.sqrt(kv.cast <to = float> (tokens) - 98))
}
KV
printf 'a\nb\n' >"$work/ab"
expect 1 generate "$work/nan.kv" --prompts "$work/ab" --tokens 1 --json
says '"prompt":"a","index":0,"text":"","finish":"failed","prompt_tokens":1,"tokens":0}'
says '"finish":"length","prompt_tokens":1,"tokens":1}'
says "text 1: the model's logits after 1 tokens are not numbers"

cat >"$work/later.kv" <<'KV'
model later <d = 4> (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] embed ~ normal(1)
  x = kv.gather(embed, tokens)
  logits = x + kv.cumsum <axis = 1, reverse = true> (x)
}
KV
refused 1 'kv.cumsum: no function over chunks of rows can be made: it runs from the last row to the first' \
  "$work/later.kv" --prompt x
