#!/usr/bin/env bash
# kvasir show --cluster: a training step on a cluster of GPUs, on paper. tests/dist/test_planner.sh compares plans with
# what processes take.
. "$(dirname "$0")/support.sh"

# Arithmetic by hand: all parameters are summed once, and a process sends 2 (N - 1) / N of their bytes.
mlp=(models/mlp.kv -D d=64 -D hidden=64 -D vocab=64 --pin T=16)
expect 0 show "${mlp[@]}" --cluster h100x2x2 --mesh data=4 --batch 32 --pin B=8 --format=json
python3 - "$work/out" <<'EOF' || fail "a mesh on paper"
import json, sys
p = json.load(open(sys.argv[1]))
assert (p["mesh"], p["gpus"], p["batch"], p["tokens"], p["rows"], p["micro_batches"]) == ("data=4", 4, 32, 512, 8, 1)
b = p["bytes"]
assert b["total"] == sum(b[k] for k in ("parameters", "copies", "moments", "gradients", "other", "temporaries"))
assert b["moments"] == 2 * b["parameters"] and b["gradients"] == 0 and b["limit"] == 76e9
(e,) = p["exchanges"]
assert (e["operator"], e["axis"], e["processes"], e["link"]) == ("all_reduce", "data", 4, "network")
# A sum of less than 2 MiB a process is 2 (N - 1) messages of 14 us, and its bytes pass at 50 GB/s.
assert e["messages"] == 6 * e["calls"] and abs(e["bytes"] - 1.5 * b["parameters"]) < 1000
assert abs(e["seconds"] - (e["messages"] * 14e-6 + e["bytes"] / 50e9)) < 1e-9
assert abs(p["seconds"] - p["compute_seconds"] - p["exchange_seconds"]) < 1e-9
assert abs(p["tokens_per_second"] * p["seconds"] / 512 - 1) < 1e-6 and 0 < p["mfu"] < 1
EOF

if [ -n "${KVASIR_SANITIZED:-}" ]; then # numbers are the same with sanitizers: one search, one refusal
  expect 0 show models/lm.kv -D preset=small -D layers=1 -D d=64 -D vocab=100 --cluster a100x2x1 --batch 64
  expect 1 show "${mlp[@]}" --cluster h100x2x2 --mesh data=2 --batch 32
  says "2 processes, and the cluster has 4 GPUs"
  exit 0
fi

# Processes of a node have NVLink; several micro-batches add up gradients; products take as long as they are efficient.
expect 0 show "${mlp[@]}" --cluster h100x2x2 --mesh data=2,tensor=2 --batch 32 --pin B=4
says "all_reduce        tensor            2  NVLink"
says "all_reduce        data              2  network"
says "4 micro-batches of 4 rows in each of 2 groups"
seconds() {
  expect 0 show models/lm.kv -D preset=1.5B -D layers=4 --cluster h100x8x1 --mesh data=8 --batch 64 --pin B=8 --format=json "$@"
  sed -n 's/.*"compute_seconds": \([^,]*\).*/\1/p' "$work/out"
}
awk -v slow="$(seconds --efficiency 0.25)" -v fast="$(seconds --efficiency 0.5)" \
  'BEGIN { exit !(slow > 1.7 * fast && slow <= 2 * fast) }' || fail "products at half the speed do not take longer"

# The rows of a micro-batch divide those of a process.
expect 0 show "${mlp[@]}" --cluster h100x2x1 --mesh data=2 --batch 12
says "1 micro-batches of 6 rows in each of 2 groups"
expect 0 show models/lm.kv -D preset=1.5B -D layers=4 --cluster h100x1x1 --mesh data=1 --batch 12 --memory 12G
says "3 micro-batches of 4 rows"
expect 1 show "${mlp[@]}" --cluster h100x2x1 --batch 8 --pin B=3
says "4 rows of each process do not divide into micro-batches of 3"
says "no mesh of the cluster fits"

# Where all values do not fit, they are computed again, and that takes time.
expect 0 show models/lm.kv -D preset=1.5B -D layers=4 --cluster h100x8x1 --mesh data=8 --batch 32 --pin B=4 --memory 7G
says "computes values again: --memory"

# The search: the fastest first, a reason for every other mesh, and a command that starts the best.
expect 0 show models/lm.kv -D preset=small -D layers=1 -D d=64 -D vocab=100 --cluster a100x4x2 --batch 64 --format=json
python3 - "$work/out" <<'EOF' || fail "the best mesh on paper"
import json, sys
s = json.load(open(sys.argv[1]))
taken, others = s["taken"], s["not_taken"]
assert len(taken) == 5 and taken == sorted(taken, key=lambda p: p["seconds"])
assert all(p["bytes"]["total"] <= p["bytes"]["limit"] for p in taken) and all(o["reason"] for o in others)
meshes = [p["mesh"] for p in taken] + [o["mesh"] for o in others]
assert len(set(meshes)) == len(meshes) == 6 * 4, meshes  # six groups in a node of four, with four stages each
EOF
expect 0 show models/mlp.kv -D d=64 --pin B=8 --pin T=16 --cluster h100x1x2 --batch 32 --memory 1G
says "mpirun -n 2 kvasir train models/mlp.kv -D d=64 --pin T=16 --mesh data=2 --batch 32 --micro-batch 8 --precision bf16 --device cuda"
says "and so no bubble"
# A limit leaves meshes in parts alone; a group that the model refuses has its message.
expect 0 show models/lm.kv -D preset=1.5B -D layers=4 -D kv_heads=2 --cluster h100x4x2 --batch 64 --memory 5G
says "states alone take more than a process may"
says "cannot be divided among 4 processes (tensor=4)"

expect 1 show models/lm.kv -D preset=19B --cluster h100x8x1 --mesh data=8 --batch 8
says "states, inputs and outputs of a process take"
expect 1 show "${mlp[@]}" --cluster h100x2x2 --mesh data=2 --batch 32
says "2 processes, and the cluster has 4 GPUs"
expect 1 show "${mlp[@]}" --cluster h100x2x2 --mesh data=4 --batch 6
says "a batch of 6 rows does not divide among data=4"
expect 1 show models/mlp.kv --cluster v100x8x1
says "no such GPU is known; there are: a100, h100, h200, b200"
for bad in h100 h100x8 h100x0x1 h100x8x1x1 h100x8x100000; do
  expect 1 show models/mlp.kv --cluster "$bad"
  says "h100x8x16"
done
for bad in --stage=graph --arch=sm_80 --precision=f32 --format=dot; do expect 2 show models/mlp.kv --cluster h100x8x1 "$bad"; done
expect 2 show models/mlp.kv --batch 8
