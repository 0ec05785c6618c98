#!/usr/bin/env bash
# Without the folder of NVIDIA's kernels the compiler builds, is right on CPUs, and says by name what a GPU lacks.
. "$(dirname "$0")/support.sh"

git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "SKIP: no git checkout to copy"; exit 77; }
mkdir "$work/tree"
git ls-files -z -- ':!codegen/kernels/nv' | tar -c --null -T - --ignore-failed-read 2>/dev/null | tar -x -C "$work/tree"
[ ! -e "$work/tree/codegen/kernels/nv" ] || fail "the folder is still there"
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1 # the next run finds what this one compiled
cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_FLAGS_RELEASE="-O1 -Wno-format-truncation" >"$work/out" 2>&1 || fail "it cannot be configured"
ninja -C "$work/build" --quiet kvasir >"$work/out" 2>&1 || fail "it does not build"
KVASIR=$work/build/kvasir

for op in matmul conv conv_weight_grad attention attention_grad_kv cumsum gather_grad sort_indices kv_shift_grads; do
  expect 0 ops --verify --op "$op" --random 1
  grep -qE '^[1-9][0-9]* passed, 0 failed' "$work/out" || fail "$op is wrong on the CPU"
done
expect 0 train models/induction.kv --steps 2 --threads 1
says "loss"

# What needs no hand-written kernel has code for a GPU; a product of floats has none, by name.
printf '%s\n' 'model rows (float[N, 300] x) => (float[N, 300] y) {' '  y = kv.softmax(x)' '}' >"$work/rows.kv"
expect 0 build "$work/rows.kv" --target sm_80 --emit=ptx -o "$work/rows"
expect 1 build models/mlp.kv --target sm_80 --emit=ptx -o "$work/mlp"
says "kv.matmul: cannot be compiled: there is no kernel for sm_80 (plain: floats)"
expect 1 show models/mlp.kv --stage=ptx --arch sm_90a
says "there is no kernel for sm_90a"
expect 0 show models/mlp.kv --stage=plan --arch sm_90a
says "none, not plain: floats"
