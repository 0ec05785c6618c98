#!/usr/bin/env bash
# Products with constants take another kernel than those with inputs (passes/layout_products.c), and give the same bits.
. "$(dirname "$0")/support.sh"
matrix='kv.reshape <shape = [80, 200]> (kv.sin(kv.iota <shape = [16000], dtype = float> () * 0.7))'
cat >"$work/w.kv" <<KV
main (float[1] one) => (float[80, 200] w) { w = $matrix * one }
KV
ports='float[3, 50, 80] x, float[130, 80] z'
results='(float[3, 50, 200] y, float[130, 200] u)'
body='  y = kv.tanh(kv.matmul(x, w))
  u = kv.matmul(z, w)
}'
printf 'main (%s) => %s {\n  w = %s\n%s\n' "$ports" "$results" "$matrix" "$body" >"$work/constant.kv"
printf 'main (%s, float[80, 200] w) => %s {\n%s\n' "$ports" "$results" "$body" >"$work/input.kv"

printf "\x93NUMPY\x01\x00\x76\x00%-117s\n\x00\x00\x80\x3f" "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }" >"$work/one.npy"
expect 0 run "$work/w.kv" -i "one=$work/one.npy" -o "$work/made"
expect 0 run "$work/constant.kv" --seed 5 -o "$work/a"
expect 0 run "$work/input.kv" --seed 5 -i "w=$work/made/w.npy" -o "$work/b"
for name in y u; do
  cmp "$work/a/$name.npy" "$work/b/$name.npy" || fail "$name differs"
done
expect 0 profile "$work/constant.kv" --repeat 3
grep -q conv "$work/out" || fail "the products are no convolutions"
expect 0 diff "$work/constant.kv"
says ", 0 beyond the tolerance"
