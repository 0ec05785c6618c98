#!/usr/bin/env bash
# Low-rank updates from the command line: train them on trained weights, run and export with them merged.
. "$(dirname "$0")/support.sh"
size=(-D d=32 -D heads=2 -D ffn=64 -D vocab=64 -D pool=24 -D length=32)
train() { expect 0 train models/induction.kv "${size[@]}" --batch 16 --warmup 1 --eval-every 0 "$@"; }

train --steps 100 --lr 5e-3 --checkpoint "$work/base" --metrics "$work/base.jsonl"
base=$work/base/step-0000000100.safetensors
train --steps 60 --lr 5e-3 --seed 1 --weights "$base" --lora 'swiglu.*' --lora 'attention.*.w[qkvo]' --rank 4 \
  --checkpoint "$work/lora" --metrics "$work/lora.jsonl"
says "trains attention.0.wq.lora_a float[32, 4]"
[ "$(grep -c '^trains' "$work/out")" = 14 ] || fail "other things train than seven pairs of factors"
tuned=$work/lora/step-0000000060.safetensors
python3 - "$work" <<'PY' || fail "low-rank training"
import json, struct, sys
def losses(name): return [json.loads(l)["loss"] for l in open(f"{sys.argv[1]}/{name}.jsonl") if '"loss"' in l]
base, lora = losses("base"), losses("lora")
assert abs(lora[0] - base[-1]) < 0.15 * base[-1], (base[-1], lora[0])   # it goes on where the weights were
assert sum(lora[-10:]) < sum(lora[:10]), lora
def tensors(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    head, body = json.loads(raw[8:8 + size]), raw[8 + size:]
    return {n: body[slice(*t["data_offsets"])] for n, t in head.items() if n != "__metadata__"}
before = tensors(sys.argv[1] + "/base/step-0000000100.safetensors")
after = tensors(sys.argv[1] + "/lora/step-0000000060.safetensors")
assert before["attention.0.wq"] == after["attention.0.wq"] and before["embed"] == after["embed"]
assert struct.unpack("<f", after["attention.0.wq.lora_scale"]) == (4.0,)   # alpha 16 / rank 4
assert "attention.0.wq.m" not in after and "attention.0.wq.lora_b.m" in after
PY

# The same bits from the model with the file and from the exported model; others than without the updates.
mkdir "$work/a" "$work/b" "$work/c"
run() { expect 0 run "$1" --output "$2" --pin B=2 --pin T=16 "${@:3}"; }
run models/induction.kv "$work/a" "${size[@]:0:8}" --weights "$tuned"
run models/induction.kv "$work/c" "${size[@]:0:8}" --weights "$base"
expect 0 export models/induction.kv "${size[@]:0:8}" --weights "$tuned" -o "$work/tuned.onnx"
run "$work/tuned.onnx" "$work/b"
cmp "$work/a/logits.npy" "$work/b/logits.npy" || fail "the exported model differs"
! cmp -s "$work/a/logits.npy" "$work/c/logits.npy" || fail "the updates are not merged"

expect 1 run models/induction.kv --pin B=1 --pin T=4 --weights "$tuned"
says "weights: tensor 'embed' is float[64, 32], the model's parameter float[256, 64]"
