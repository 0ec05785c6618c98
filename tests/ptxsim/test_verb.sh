#!/usr/bin/env bash
# kvasir ptxsim: results, findings and exit codes.
. "$(dirname "$0")/../e2e/support.sh"

cat >"$work/add.ptx" <<'PTX'
.version 8.3
.target sm_90
.address_size 64
.entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {
	.reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
	ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r1, [n];
	mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
	setp.ge.s32 %p1, %r5, %r1;
	@%p1 bra END;
	mul.wide.s32 %rd4, %r5, 4; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4; add.s64 %rd7, %rd3, %rd4;
	ld.global.f32 %f1, [%rd5];
	ld.global.f32 %f2, [%rd6]; add.f32 %f3, %f1, %f2; st.global.f32 [%rd7], %f3;
END:
	ret;
}
PTX
arrays=(--arg f32:1000 --arg f32:1000 --arg f32:1000=zero)

expect 0 ptxsim "$work/add.ptx" --grid 4 --block 256 "${arrays[@]}" --arg i32=1000 -o "$work" --profile
says "1000 of 1000 elements changed"
says "0 findings"
busiest=$(grep -m1 -oE 'line [0-9]+ +[0-9]+ warps' "$work/out" | tr -s ' ')
[ -s "$work/arg2.npy" ] || fail "no array written"
# What was written is read again: adding zero changes nothing.
expect 0 ptxsim "$work/add.ptx" --grid 1000 --arg "f32:1000=$work/arg2.npy" --arg f32:1000=zero \
  --arg "f32:1000=$work/arg2.npy" --arg i32=1000 --threads 2 --seed 5
grep -q "argument 2 .* 0 of 1000 elements changed" "$work/out" || fail "the array changed"

expect 1 ptxsim "$work/add.ptx" --grid 4 --block 256 "${arrays[@]}" --arg i32=1001
says "add.ptx:11: global access out of bounds: ld.global.f32 of 4 bytes at offset 4000 of 'f32:1000'"
expect 1 ptxsim "$work/add.ptx" --grid 4 --block 256 "${arrays[@]}" --arg i32=1001 --json
says '"kind": "global access out of bounds"'
expect 0 ptxsim "$work/add.ptx" --grid 4 --block 256 "${arrays[@]}" --arg i32=1000 --json --profile
[ "$(python3 -c 'import json, sys; l = json.load(sys.stdin)["lines"]; print("line %(line)d %(warps)d warps" % l[0], len(l))' \
  <"$work/out")" = "$busiest 10" ] || fail "--json --profile gives other lines than the text ($busiest): $(cat "$work/out")"

expect 1 ptxsim "$work/add.ptx" --arg f32:10
says "1 parameters; the kernel has 4"
expect 1 ptxsim "$work/add.ptx" "${arrays[@]}" --arg i64=10
says "has 8 bytes; parameter 'n' has 4"
expect 1 ptxsim "$work/add.ptx" --kernel sub
says "no kernel 'sub'; it has: add"
expect 1 ptxsim "$work/add.ptx" --arg q32:4
expect 1 ptxsim "$work/add.ptx" --arg f32:0
expect 1 ptxsim "$work/add.ptx" --arg f32=x
# Numbers are those that their types hold, with or without sign.
for number in 4294967296 4294967297 -2147483649 99999999999999999999 8x --8; do
  expect 1 ptxsim "$work/add.ptx" "${arrays[@]}" --arg i32=$number
  says "--arg i32=$number: an integer of 32 bits is expected behind '='"
done
expect 0 ptxsim "$work/add.ptx" --block 8 "${arrays[@]}" --arg u32=0x8
expect 0 ptxsim "$work/add.ptx" --block 8 "${arrays[@]}" --arg i32=-1
sed 's/param .u32 n/param .u64 n/; s/ld.param.u32 %r1/ld.param.u64 %rd4/; s/setp.ge.s32 %p1, %r5, %r1/setp.ne.u64 %p1, %rd4, -1/' \
  "$work/add.ptx" >"$work/most.ptx"
expect 0 ptxsim "$work/most.ptx" --block 8 "${arrays[@]}" --arg u64=18446744073709551615
says "8 of 1000 elements changed"
expect 1 ptxsim "$work/add.ptx" --arg "i8:1000=$work/arg2.npy"
says "arg2.npy: element 0 is no integer that --arg i8:1000="

expect 1 ptxsim "$work/add.ptx" --block 2000 "${arrays[@]}" --arg i32=1
expect 1 ptxsim "$work/missing.ptx"
expect 2 ptxsim
expect 2 ptxsim "$work/add.ptx" --grid 1,2,3,4
sed 's/add.f32/frob.f32/' "$work/add.ptx" >"$work/bad.ptx"
expect 1 ptxsim "$work/bad.ptx"
says "unsupported instruction 'frob.f32'"
says "bad.ptx:12:"
# Every thread stores to the first element.
sed 's/\[%rd7\]/[%rd3]/' "$work/add.ptx" >"$work/race.ptx"
expect 0 ptxsim "$work/race.ptx" --grid 4 --block 256 "${arrays[@]}" --arg i32=1000
expect 1 ptxsim "$work/race.ptx" --grid 4 --block 256 "${arrays[@]}" --arg i32=1000 --races --lazy
says "race.ptx:12: data race on global memory"
