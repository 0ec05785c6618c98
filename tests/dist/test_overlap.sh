#!/usr/bin/env bash
# Exchange that goes on while steps compute: the bits of exchange that waits, under every MPI of this machine; where
# plans let it end; a loss that is not finite meanwhile; what --profile says of it.
. tests/e2e/support.sh
. tests/dist/mpi.sh

lm=(models/lm.kv -D preset=small -D vocab=512 -D d=64 --data random:length=32 --threads 1 --steps 3 --batch 4 --eval-every 3
  --eval-batches 2 --profile)
hidden() { sed -n 's/.*exchange: \([0-9.]*\) s, waited for \([0-9.]*\) s, \([0-9]*\) % hidden/\3/p' "$work/out"; }

meshes=(data=2 data=2,zero=1 data=2,zero=3 tensor=2)
[ -z "$sanitized" ] || meshes=(data=2,zero=3 tensor=2)
for launcher in "${repeat[@]}"; do
  for axes in "${meshes[@]}"; do
    rm -rf "$work/waits" "$work/goes"
    KVASIR_OVERLAP=off mesh waits 2 "$axes" "${lm[@]}"
    [ "$(hidden)" = 0 ] || fail "$launcher, $axes: $(hidden) % hidden without overlap"
    mesh goes 2 "$axes" "${lm[@]}"
    [ -n "$(hidden)" ] || fail "$launcher, $axes: --profile says nothing"
    same waits goes
  done
done
launcher=${launchers[0]}
mesh goes-3 4 data=2,tensor=2 "${lm[@]}"
KVASIR_OVERLAP=off mesh waits-3 4 data=2,tensor=2 "${lm[@]}"
same waits-3 goes-3

# Plans: the sum of a bucket goes on beside the gradients of earlier layers; the last ones beside nothing.
expect 0 show models/lm.kv -D preset=small --train --stage=plan --mesh data=2 --pin B=2 --pin T=256
awk '/all_reduce .* tensors/ { start[$1] = 1 } / wait +all_reduce of step/ { if (!($NF in start)) exit 1; if ($1 - $NF > most) most = $1 - $NF }
  END { exit most < 20 }' "$work/out" || fail "sums do not go on beside the backward pass"

# A loss that is not finite ends all at the same step, whatever is under way.
code=0
ranks 2 "$KVASIR" train "${lm[@]}" --mesh data=2 --lr 1e30 || code=$?
[ "$code" -ne 0 ] && [ "$code" -ne 124 ] || fail "a loss that is not finite: exit code $code"
says "the loss is"
