#!/usr/bin/env bash
# kvasir train --precision: bfloat16 and float16 products with float master weights follow the float run.
. "$(dirname "$0")/support.sh"
size=(-D d=32 -D heads=2 -D ffn=64 -D vocab=64 -D pool=24 -D length=32 -D lr=5e-3)

train() { # train NAME ARGUMENTS...
  expect 0 train models/induction.kv "${size[@]}" --batch 16 --steps 200 --eval-every 50 --eval-batches 8 \
    --metrics "$work/$1.jsonl" "${@:2}"
}
train f32
train bf16 --precision bf16
train f16 --precision f16
python3 - "$work" <<'PY' || fail "losses differ"
import json, sys
def losses(name):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}.jsonl")]
    return [l["loss"] for l in lines if l["event"] == "eval"]
exact = losses("f32")
assert exact[-1] < exact[0] - 0.3, exact           # it learns, so that there is something to follow
for name in "bf16", "f16":
    found = losses(name)
    assert found != exact, f"{name} computes in float"
    for a, b in zip(exact, found):
        assert abs(a - b) < 0.01 * a, (name, exact, found)
PY

# The same bits whatever the threads; parameters and moments stay float, weights are cast once a step.
train again --precision bf16 --threads 1
cmp -s <(sed 's/"seconds": [^,}]*//' "$work/bf16.jsonl") <(sed 's/"seconds": [^,}]*//' "$work/again.jsonl") ||
  fail "bf16 depends on the threads"
expect 0 show models/induction.kv --train --precision bf16 --stage=fused --pin B=4 --pin T=16
says 'state float[64, 64] "attention.0.wq" : param'
says 'state float[64, 64] "attention.0.wq.m" : moment'
[ "$(sed -n '/^train_step/,$p' "$work/out" | grep -c 'kv.kernel <name = "cast"> (wq)')" = 1 ] || fail "casts of wq"
grep -q 'kv.matmul <transpose_a = true, to = float> (v[0-9]*, v[0-9]*)' "$work/out" || fail "no product with a float result"

expect 0 run models/induction.kv --precision bf16 --pin B=1 --pin T=8
expect 2 run models/induction.kv --precision int3 --pin B=1 --pin T=8
says "--precision: expected f32, bf16 or f16, found 'int3'"

# A product of bfloat16 is one instruction for CPUs on which it is faster than FMAs.
for cpu in znver5 sapphirerapids; do
  expect 0 build models/mlp.kv --precision bf16 --pin B=32 --target $cpu --emit=asm -o "$work/$cpu.s"
done
grep -q vdpbf16ps "$work/znver5.s" || fail "no vdpbf16ps for znver5"
! grep -q vdpbf16ps "$work/sapphirerapids.s" || fail "vdpbf16ps for sapphirerapids"
