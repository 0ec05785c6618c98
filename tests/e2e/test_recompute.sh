#!/usr/bin/env bash
# --memory: what a training step keeps and what it computes again; bits, sizes, refusals.
. "$(dirname "$0")/support.sh"

model=(models/lm.kv -D vocab=256 -D layers=3 -D d=64 -D ffn=160 -D heads=4 -D kv_heads=2 -D ctx=64)

# number LABEL: of program train_step in the last output.
number() { awk -v label="$1" '/^program/ {here = $2 == "train_step,"} here && index($0, label) == 3 {n = $0; sub(label, "", n); printf "%.17g", n}' "$work/out"; }

# Losses do not depend on the budget, with dropout, in micro-batches, with documents.
losses() {
  expect 0 train "${model[@]}" --data random --steps 3 --seed 3 --metrics "$work/m.jsonl" "$@"
  grep -o '"loss": [^,]*' "$work/m.jsonl"
}
# same_losses BUDGET OPTIONS...
same_losses() {
  local budget=$1 kept again
  shift
  kept=$(losses "$@") again=$(losses "$@" --memory "$budget")
  [ -n "$kept" ] && [ "$kept" = "$again" ] || fail "--memory $budget $*: $again, without it $kept"
}
expect 0 show "${model[@]}" --pin B=8 --train --stage=plan
full=$(number total) flops=$(number 'contraction FLOPs')
[ "$(number 'steps run again')" = "" ] || fail "a plan without a budget computes again"
shares=(80 65 55)
[ -z "${KVASIR_SANITIZED:-}" ] || shares=(55)
for share in "${shares[@]}"; do
  budget=$((full * share / 100))
  expect 0 show "${model[@]}" --pin B=8 --train --stage=plan --memory $budget
  [ "$(number total)" -le $budget ] || fail "the plan takes $(number total) of $budget bytes"
  [ "$(number 'steps run again')" -gt 0 ] || fail "nothing is computed again"
  again=$(number 'contraction FLOPs')
  same_losses $budget --batch 8
done
awk "BEGIN {exit !($again > $flops)}" || fail "products are not computed again: $again FLOPs, before $flops"
same_losses 4M --batch 8 --micro-batch 2 -D dropout=0.1 -D separator=3
same_losses 8M --batch 8 --precision bf16

# Half of what gradients keep at 1.5 billion parameters costs at most 35 % more FLOPs.
large=(models/lm.kv -D preset=1.5B --pin B=4 --arch sm_90a --precision bf16 --train --stage=plan)
expect 0 show "${large[@]}"
full=$(number 'temporaries, peak') total=$(number total) flops=$(number 'contraction FLOPs')
expect 0 show "${large[@]}" --memory $((total - full / 2))
[ "$(number 'temporaries, peak')" -le $((full / 2)) ] || fail "temporaries of $(number 'temporaries, peak') bytes, before $full"
awk "BEGIN {exit !($(number 'contraction FLOPs') <= 1.35 * $flops)}" || fail "FLOPs: $(number 'contraction FLOPs'), before $flops"

# What cannot be is refused with what it would take; what is no size is found before compiling.
expect 1 train "${model[@]}" --data random --batch 8 --steps 1 --memory 2M
says "program 'train_step' does not fit 2097152 bytes"
says "a smaller batch"
says "the largest tensors: float[8, 64, 256] logits (524288 bytes), "

# What the machine cannot hold is refused before compiling, by default; what just fits is not.
limited() { KVASIR_MACHINE_MEMORY=$1 expect "${@:2}"; }
needs=$((6 << 20))
limited $needs 3 train "${model[@]}" --data random --batch 8 --steps 1
says "program 'train_step' does not fit $needs bytes, as \$KVASIR_MACHINE_MEMORY says: parameters"
says "--micro-batch, shorter sequences, or --memory N"
limited $needs 0 train "${model[@]}" --data random --batch 8 --steps 1 --memory $needs
limited $((3 << 20)) 3 train "${model[@]}" --data random --batch 8 --steps 1 --memory $needs
limited 400K 3 train "${model[@]}" --data random --batch 1 --steps 1
says "a smaller model, or more memory, is needed"
limited 1M 3 run "${model[@]}" --pin B=8 --pin T=64
says "smaller inputs take less"
limited 8M 0 run "${model[@]}" --pin B=8 --pin T=64
limited off 0 run models/mlp.kv --pin B=1 --pin T=1
limited 1X 1 run models/mlp.kv --pin B=1 --pin T=1
says "KVASIR_MACHINE_MEMORY must be a number of bytes like 40G, or off; found '1X'"
expect 3 train models/lm.kv -D preset=19B --pin B=4096 --data random --steps 1
says "the memory and swap of this machine"
for wrong in 0 -1 G 10X 1e30 nan ""; do
  expect 2 train "${model[@]}" --memory "$wrong"
  says "a number of bytes like 40G"
done
