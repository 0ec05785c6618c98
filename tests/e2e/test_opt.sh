#!/usr/bin/env bash
# kvasir opt: chosen passes in any order, of both levels; what it prints reads back.
. "$(dirname "$0")/support.sh"

model=models/mlp.kv
expect 0 opt --list
says "requires single_state"
expect 0 opt --list --json
python3 -c 'import json, sys; names = [p["name"] for p in json.load(open(sys.argv[1]))]; assert len(names) == len(set(names)) > 25' \
  "$work/out" || fail "the list is no JSON, or names a pass twice"

# Exactly these passes: the text reads back and prints the same.
expect 0 opt $model --passes=fold,simplify,dce -o "$work/a.kv"
expect 0 opt "$work/a.kv" --passes=dce -o "$work/b.kv"
cmp "$work/a.kv" "$work/b.kv" || fail "what opt prints does not read back"
expect 0 show $model --stage=fused
mv "$work/out" "$work/fused"
expect 0 opt $model --passes=optimize,prepare
cmp "$work/fused" "$work/out" || fail "the pipelines by name are not those of show"

# Any two passes in any order: passes.pairs.
expect 1 opt $model --passes=fuse,train
says "pass 'train' requires property 'unfused'"
expect 1 opt $model --passes=nothing
says "no pass is called 'nothing'"
expect 2 opt $model --passes=dce --json
says "--json is for --list"
expect 2 opt $model
expect 2 opt $model --passes=dce --bisect-limit=few

# Kernels: the steps in their order give what show prints.
for target in native sm_80; do
  arch=()
  [ $target = native ] || arch=(--arch $target)
  expect 0 show $model --stage=kernels "${arch[@]}"
  mv "$work/out" "$work/kernels"
  expect 0 opt $model --passes=optimize,prepare,plan,lower,schedule --target $target --verify-each
  cmp "$work/kernels" "$work/out" || fail "lower and schedule for $target give other kernels"
done
expect 0 opt $model --passes=optimize,prepare,plan,lower,drop_empty,collapse,nests,math,sweep --stop-after=nests
says "// after nests"
expect 1 opt $model --passes=lower
says "pass plan comes before it"
expect 1 opt $model --passes=collapse
expect 1 opt $model --passes=optimize,prepare,plan,lower,nests,collapse
says "requires property 'unscheduled'"
