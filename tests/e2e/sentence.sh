# Sourced after support.sh by scripts that need a language model: lm.kv at "${size[@]}" has learned one sentence, and its
# weights are $weights.
size=(-D vocab=257 -D d=32 -D ffn=48 -D heads=2 -D layers=1)
for _ in $(seq 400); do printf 'the cat sat on the mat. '; done >"$work/text"
expect 0 data "$work/text" -o "$work/text.tok"
expect 0 train models/lm.kv "${size[@]}" -D lr=1e-2 --data "tokens:$work/text.tok,length=48" --steps 80 \
  --checkpoint "$work/run"
weights=$(echo "$work"/run/*80.safetensors)
