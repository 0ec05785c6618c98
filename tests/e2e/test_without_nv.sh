#!/usr/bin/env bash
# Without the folder of NVIDIA's kernels the compiler is right on CPUs, and says by name what a GPU lacks.
. "$(dirname "$0")/support.sh"
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: the same code with a folder less"; exit 77; }

: "${KVASIR_WITHOUT_NV:?the tool without them}"

# Nothing outside of the folder needs it but the table, which asks whether it is there; no kernel of it is in this tool.
users=$(grep -rlE --include='*.[ch]' --include='*.def' '#include "codegen/kernels/nv/' runtime ir ops frontend passes codegen tools |
  grep -v '^codegen/kernels/nv/' || true)
[ "$users" = codegen/kernels/kernels.def ] || fail "these need the folder: $users"
nm "$KVASIR" >"$work/all"
nm "$KVASIR_WITHOUT_NV" >"$work/without"
grep -q ' kva_nv_' "$work/all" || fail "kernels of the folder have another prefix than kva_nv_"
grep ' kva_nv_' "$work/without" && fail "it has kernels of the folder"
full=$KVASIR KVASIR=$KVASIR_WITHOUT_NV

# On a CPU both tools make the same code, of all kinds of kernels.
same_code() { # same_code MODEL OPTIONS...
  "$KVASIR_WITHOUT_NV" build "$@" -c -o "$work/without.o" >"$work/out"
  "$full" build "$@" -c -o "$work/with.o" >"$work/out"
  cmp "$work/with.o" "$work/without.o" || fail "the code of $* differs"
}
size=(-D vocab=64 -D d=16 -D ffn=32 -D heads=2 -D layers=1)
same_code models/lm.kv "${size[@]}" --train
same_code models/induction.kv --train
same_code tests/data/shift_conv.onnx
expect 0 ops --verify --op conv_weight_grad --random 1
grep -qE '^[1-9][0-9]* passed, 0 failed' "$work/out" || fail "conv_weight_grad is wrong on the CPU"

# What needs no hand-written kernel has code for a GPU; a product of floats has none, by name.
printf '%s\n' 'model rows (float[N, 300] x) => (float[N, 300] y) {' '  y = kv.softmax(x)' '}' >"$work/rows.kv"
expect 0 build "$work/rows.kv" --target sm_80 --emit=ptx -o "$work/rows"
expect 1 build models/mlp.kv --target sm_80 --emit=ptx -o "$work/mlp"
says "kv.matmul: cannot be compiled: there is no kernel for sm_80 (plain: floats)"
expect 1 show models/mlp.kv --stage=ptx --arch sm_90a
says "there is no kernel for sm_90a"
expect 0 show models/mlp.kv --stage=plan --arch sm_90a
says "none, not plain: floats"
