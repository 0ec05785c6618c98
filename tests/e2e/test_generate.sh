#!/usr/bin/env bash
# Texts out of models: a model that learned one sentence continues it, as .kv and as ONNX; draws depend on the seed alone;
# what does not fit is refused by name.
. "$(dirname "$0")/support.sh"

size=(-D vocab=257 -D d=32 -D ffn=48 -D heads=2 -D layers=1)
for _ in $(seq 400); do printf 'the cat sat on the mat. '; done >"$work/text"
expect 0 data "$work/text" -o "$work/text.tok"
expect 0 train models/lm.kv "${size[@]}" -D lr=1e-2 --data "tokens:$work/text.tok,length=48" --steps 80 \
  --checkpoint "$work/run"
weights=$(echo "$work"/run/*80.safetensors)

expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt 'the cat ' --tokens 40 --stats
grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "generate forgot the sentence"
grep -qE '^prompt: 8 tokens, [0-9]+ tokens/s; text: 40 tokens, [0-9]+ tokens/s$' "$work/out" || fail "no statistics"

expect 0 export models/lm.kv "${size[@]}" --weights "$weights" -o "$work/lm.onnx"
expect 0 generate "$work/lm.onnx" --prompt 'the cat ' --tokens 40
grep -qxF 'the cat sat on the mat. the cat sat on the mat. ' "$work/out" || fail "the exported model forgot the sentence"

# A prompt of several chunks.
long=$(for _ in $(seq 30); do printf 'the cat sat on the mat. '; done)
expect 0 generate models/lm.kv "${size[@]}" --weights "$weights" --prompt "$long" --tokens 24
grep -qF 'mat. the cat sat on the mat. ' "$work/out" || fail "a long prompt"

draws() { # draws FILE OPTION...
  "$KVASIR" generate models/lm.kv "${size[@]}" --weights "$weights" --prompt 'the ' --tokens 30 --temperature 2 "${@:2}" \
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
draws greedy --temperature 0
cmp -s "$work/k" "$work/greedy" || fail "--top-k 1 is not greedy"

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
refused 2 'probabilities, at most 1' models/lm.kv --prompt x --top-p 2
refused 1 'at least one token' models/lm.kv --prompt ''
refused 1 'the model knows 8000 tokens' models/lm.kv --prompt x
refused 1 'expected a model of tokens' tests/data/shift_conv.onnx --prompt x
cat >"$work/later.kv" <<'KV'
model later <d = 4> (int32[B, T] tokens) => (float[B, T, 257] logits) {
  param float[257, 257] embed ~ normal(1)
  x = kv.gather(embed, tokens)
  logits = x + kv.cumsum <axis = 1, reverse = true> (x)
}
KV
refused 1 'kv.cumsum: no function over chunks of rows can be made: it runs from the last row to the first' \
  "$work/later.kv" --prompt x
