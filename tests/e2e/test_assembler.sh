#!/usr/bin/env bash
# Training steps of the models for GPUs, assembled by ptxas: no kernel spills registers but gradients of attention, of
# which a few go to memory, and nothing asynchronous is serialised (notes C75..).
. "$(dirname "$0")/support.sh"

ptxas=$(command -v ptxas || echo /usr/local/cuda/bin/ptxas)
if [ ! -x "$ptxas" ]; then
  echo "SKIP: no ptxas"
  exit 77
fi
if [ -n "${KVASIR_SANITIZED:-}" ]; then
  echo "SKIP: ptxas's report is the same without sanitizers"
  exit 77
fi

# Prints what is wrong in the report of ptxas -v; the number of kernels last.
cat >"$work/report.awk" <<'AWK'
/Compiling entry function/ { kernel = $7 }
/\(C75[0-9][0-9]\)/ { print }
/bytes spill stores/ {
  kernels++
  allowed = kernel ~ /attention_grad/ ? 64 : 0
  if ($5 > allowed) print kernel ": " $0
}
END { print kernels + 0 }
AWK

checks=0
check() { # MIN_KERNELS PRECISION MODEL ARGUMENTS...
  local least=$1 precision=$2 arch out
  shift 2
  for arch in sm_80 sm_90a; do
    in_part $((checks++)) || continue
    expect 0 build "$@" --train --precision "$precision" --target "$arch" --emit=ptx -o "$work/step.ptx"
    "$ptxas" -v -arch="$arch" "$work/step.ptx" -o "$work/step.cubin" >"$work/out" 2>&1 || fail "ptxas: $*"
    out=$(awk -f "$work/report.awk" "$work/out")
    case $out in
    *$'\n'*) fail "$* $precision $arch: $out" ;;
    esac
    [ "$out" -ge "$least" ] || fail "$* $precision $arch: $out kernels, expected $least or more"
  done
}

# Blackwell takes code for sm_90.
newer=$("$ptxas" --help | grep -oE 'sm_1[0-9]0\b' | sort -u || true)
if [ -z "$newer" ]; then
  echo "SKIP: this ptxas knows no Blackwell; the rest follows"
elif in_part 0; then
  expect 0 build models/induction.kv --train --precision bf16 --target sm_90 --emit=ptx -o "$work/newer.ptx"
  for arch in $newer; do
    "$ptxas" -arch="$arch" "$work/newer.ptx" -o "$work/newer.cubin" >"$work/out" 2>&1 || fail "ptxas: $arch"
  done
fi

check 60 f32 models/induction.kv
check 60 bf16 models/induction.kv
check 60 f32 models/induction.kv -D window=6
check 60 f32 models/lm.kv -D preset=small
check 60 bf16 models/lm.kv -D preset=1.5B -D separator=0
check 60 f32 models/lm.kv -D preset=1.5B -D layers=1 -D separator=0
# Rows of logits that go beyond registers, odd ones and those beyond a block.
check 50 bf16 models/lm.kv -D vocab=128256 -D layers=1
check 50 f32 models/lm.kv -D vocab=262144 -D layers=1
check 30 f32 models/mlp.kv -D vocab=50257
check 30 f32 models/mlp.kv -D vocab=128256
check 30 f32 models/mlp.kv -D vocab=71003
check 30 f32 models/mlp.kv -D vocab=200019
