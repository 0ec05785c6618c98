#!/usr/bin/env bash
# Training on the simulated GPU follows the CPU step by step; a finding of the simulator would fail the run.
. "$(dirname "$0")/support.sh"

# compare TOLERANCE FILE FILE: losses, norms of gradients and accuracies of two runs, and that something was learnt.
compare() {
  python3 - "$@" <<'PY' || fail "the devices' curves differ: $*"
import json, sys
tolerance = float(sys.argv[1])
a, b = ([json.loads(line) for line in open(path) if '"loss"' in line] for path in sys.argv[2:4])
assert len(a) == len(b) >= 5, (len(a), len(b))
for x, y in zip(a, b):
    assert x["event"] == y["event"] and x["step"] == y["step"], (x, y)
    assert abs(x["loss"] - y["loss"]) <= tolerance, (x, y)
    m, n = x["metrics"], y["metrics"]
    assert abs(m["accuracy"] - n["accuracy"]) <= 0.02, (x, y)
    if "grad_norm" in m: # what the loss of early steps hardly shows
        assert abs(m["grad_norm"] - n["grad_norm"]) <= 10 * tolerance * max(1, m["grad_norm"]), (x, y)
assert len({x["loss"] for x in b}) > 4, b
PY
}
# follow TOLERANCE NAME ARGUMENTS...: a run on the simulator against the CPU's of the same name.
follow() {
  expect 0 train models/induction.kv "${@:3}" --metrics "$work/$2.jsonl"
  compare "$1" "$work/cpu-${2%%-*}.jsonl" "$work/$2.jsonl"
}

# With evaluations; both architectures.
small=(-D d=16 -D heads=2 -D ffn=32 -D vocab=64 -D pool=24 -D length=32 -D lr=1e-2 --batch 4 --steps 8 --eval-every 4
  --eval-batches 2)
expect 0 train models/induction.kv "${small[@]}" --device cpu --metrics "$work/cpu-small.jsonl"
follow 1e-3 small-sm_80 "${small[@]}" --device ptxsim
says "step 8/8"
follow 1e-3 small-sm_90a "${small[@]}" --device ptxsim --target sm_90a --threads 1
follow 1e-3 small-library "${small[@]}" --device ptxsim --gemm library
grep '^train .*K current' "$work/out" >"$work/shifts" || fail "no shift scalars"

# Scores as large as floats: a mask with a finite value hides all keys of two queries, which then see them alike.
cat >"$work/hidden.kv" <<'KV'
model hidden <d = 32> (int32[B, T] tokens) => (float[B, T, 64] logits) {
  param float[64, d] embed ~ normal(0.5)
  param float[d, d] w ~ normal(0.2)
  x = kv.gather(embed, tokens)
  q = kv.reshape <shape = [B, 1, T, d]> (x @ w)
  k = kv.reshape <shape = [B, 1, T, d]> (x)
  row = kv.iota <shape = [T, 1], axis = 0, dtype = float> ()
  y, lse = kv.attention (q, k, k, kv.where(row < 2, -3e38, row * 0))
  logits = kv.reshape <shape = [B, T, d]> (y) @ kv.transpose <perm = [1, 0]> (embed)
}

train hidden (int32[B, T] targets) {
  answer = kv.cast <to = int32> (kv.argmax <axis = -1, keepdims = false> (logits))
  loss = kv.reduce_mean <keepdims = false> (kv.cross_entropy(logits, targets))
  metric accuracy = kv.reduce_mean <keepdims = false> (kv.cast <to = float> (answer == targets))
  optimizer = SGD <lr = 0.5>
  clip = 100
  steps = 8
  batch = 2
  data = random <length = 70>
}
KV
for options in "sm_80 f32 1e-5" "sm_90a bf16 1e-3"; do
  read -r arch precision tolerance <<<"$options"
  expect 0 train "$work/hidden.kv" --precision "$precision" --device cpu --metrics "$work/hidden-cpu.jsonl"
  expect 0 train "$work/hidden.kv" --precision "$precision" --device ptxsim --target "$arch" \
    --metrics "$work/hidden.jsonl"
  compare "$tolerance" "$work/hidden-cpu.jsonl" "$work/hidden.jsonl"
done

# What other sizes compute is the same without sanitizers.
[ -z "${KVASIR_SANITIZED:-}" ] || exit 0

# The demo's model with rates that move it at once.
demo=(--batch 2 --steps 24 --lr 1e-2 --warmup 4 --eval-every 0)
expect 0 train models/induction.kv "${demo[@]}" --metrics "$work/cpu-demo.jsonl"
follow 1e-4 demo-sm_90a "${demo[@]}" --device ptxsim --target sm_90a

# bfloat16, with an output layer wide enough for wgmma, forward and backward: as far apart as roundings to 8 bits are.
wide=(-D vocab=2048 --precision bf16 --batch 8 --steps 5 --lr 3e-3 --warmup 2 --eval-every 0)
expect 0 show models/induction.kv --train -D vocab=2048 --precision bf16 --stage=ptx --arch=sm_90a --pin B=8 --pin T=64
[ "$(grep -c wgmma.mma_async "$work/out")" -ge 8 ] || fail "no kernel uses wgmma"
expect 0 train models/induction.kv "${wide[@]}" --metrics "$work/cpu-wide.jsonl"
follow 1e-3 wide-sm_90a "${wide[@]}" --device ptxsim --target sm_90a
