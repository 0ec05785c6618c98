#!/usr/bin/env bash
# Products with constants take another kernel than those with states (passes/layout_products.c), and give the same bits.
. "$(dirname "$0")/support.sh"

# compare ROWS OF X, OF Z, DEPTH, COLUMNS: parameters of the .kv model are states, of the ONNX model constants.
compare() {
  local dir=$work/$1-$2
  mkdir "$dir"
  cat >"$dir/m.kv" <<KV
model m (float[3, $1, $3] x, float[$2, $3] z) => (float[3, $1, $4] y, float[$2, $4] u) {
  param float[$3, $4] w ~ normal(0.1)
  y = kv.tanh(kv.matmul(x, w) * 0.1)
  u = kv.matmul(z, w)
}
KV
  expect 0 export "$dir/m.kv" --seed 5 -o "$dir/m.onnx"
  expect 0 run "$dir/m.kv" --seed 5 -o "$dir/state"
  expect 0 run "$dir/m.onnx" --seed 5 --threads 1 -o "$dir/one"
  expect 0 run "$dir/m.onnx" --seed 5 --threads 3 -o "$dir/three"
  for name in y u; do
    cmp "$dir/state/$name.npy" "$dir/one/$name.npy" || fail "$name of $* differs"
    cmp "$dir/one/$name.npy" "$dir/three/$name.npy" || fail "$name of $* depends on the threads"
  done
  expect 0 profile "$dir/m.onnx" --repeat 3
  [ "$(grep -c ' conv' "$work/out")" = 2 ] || fail "the products of $* are no convolutions"
  expect 0 diff "$dir/m.onnx"
  says ", 0 beyond the tolerance"
}

compare 50 130 80 200
# Few tiles of a matrix that the second cache does not hold; its last panel is not whole, a row of x is a page long.
compare 3 9 1024 1000
compare 4 15 640 1600
compare 9 31 512 2000
compare 11 64 3072 96

# compare_unknown DEPTH COLUMNS ROWS...: tiles and the loops for few rows read constants in panels, whose number of rows
# they learn from an input, and give the bits of products with states, and of those with as many rows as the model says.
compare_unknown() {
  local dir=$work/unknown-$1-$2 depth=$1
  mkdir "$dir"
  printf 'model m (float[M, %s] x) => (float[M, %s] y) {\n  param float[%s, %s] w ~ normal(0.1)\n  y = kv.tanh(kv.matmul(x, w) * 0.1)\n}\n' \
    "$1" "$2" "$1" "$2" >"$dir/m.kv"
  expect 0 export "$dir/m.kv" --seed 5 -o "$dir/m.onnx"
  expect 0 opt "$dir/m.onnx" --passes=optimize,prepare
  says "kv.join_panels"
  shift 2
  for rows in "$@"; do
    printf 'model x (float[%s, %s] x) => (float[%s, %s] y) {\n  y = x\n}\n' "$rows" "$depth" "$rows" "$depth" >"$dir/x.kv"
    expect 0 run "$dir/x.kv" --seed "$rows" -o "$dir/x"
    expect 0 run "$dir/m.kv" --seed 5 -i "x=$dir/x/y.npy" -o "$dir/state"
    expect 0 run "$dir/m.onnx" -i "x=$dir/x/y.npy" --threads 1 -o "$dir/one"
    expect 0 run "$dir/m.onnx" -i "x=$dir/x/y.npy" --threads 3 -o "$dir/three"
    expect 0 run "$dir/m.onnx" -i "x=$dir/x/y.npy" --pin "M=$rows" -o "$dir/pinned"
    for other in one three pinned; do
      cmp "$dir/state/y.npy" "$dir/$other/y.npy" || fail "$rows rows of depth $depth differ: $other"
    done
  done
}

compare_unknown 80 256 1 2 7 8 9 50
# Several slices of the depth; the last panel is not whole.
compare_unknown 3000 1000 5 13 70
