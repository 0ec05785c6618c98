#!/usr/bin/env bash
# Checkpoints of meshes whose processes divide states: folders with a file of each process. A run goes on with the same
# bits on its mesh, on any other and in one process; what is damaged, missing, foreign or left over; who sees what.
. tests/e2e/support.sh
. tests/dist/mpi.sh
launcher=${launchers[0]}

# 64 x 64 elements: halves of halves have parts, too; 50 x 30 of another model do not divide by 3.
small=(models/mlp.kv -D d=64 -D hidden=64 -D vocab=64 --threads 1 --eval-every 3 --eval-batches 3)
step() { printf '%s/%s/step-%010d' "$work" "$1" "$2"; }
# saved NAME PROCESSES AXES OPTIONS...: `mesh` with all checkpoints kept, every third step.
saved() { keep=0 mesh "$@" --checkpoint-every 3; }

one one "${small[@]}" --steps 6 --batch 8 --accumulate 2
# On its own mesh, every byte of every file; with one micro-batch for each process that of one process, too.
tolerance=1e-6
meshes=("2 data=2,zero=1" "2 data=2,zero=2" "2 data=2,zero=3" "2 tensor=2" "4 data=2,tensor=2,zero=1")
for i in "${!meshes[@]}"; do
  read -r n axes <<<"${meshes[$i]}"
  saved "all-$i" "$n" "$axes" "${small[@]}" --steps 6 --batch 16
  cp -r "$work/all-$i" "$work/half-$i"
  rm -r "$(step "half-$i" 6)"
  cp "$work/all-$i.jsonl" "$work/half-$i.jsonl"
  saved "half-$i" "$n" "$axes" "${small[@]}" --steps 6 --batch 16 --resume
  says "resumed at step 3"
  diff -r "$work/all-$i" "$work/half-$i" -x .lock || fail "$axes: a run that goes on has other bits"
  cmp <(result "all-$i") <(result "half-$i") || fail "$axes: a run that goes on reports other numbers"
  [ "$(ls "$(step "all-$i" 6)" | wc -l)" -eq $((n + 1)) ] || fail "$axes: expected an index and $n shards"
  case $axes in *tensor*) continue ;; esac
  python3 tests/dist/whole.py "$(step "all-$i" 6)" "$(step one 6).safetensors" || fail "$axes: other bits than one process"
done

# On every other mesh, and in one process.
move() { # move FROM TO: step 3 of one run goes on to step 6 on another run's mesh, with losses near its own
  local n axes
  read -r n axes <<<"${meshes[$2]}"
  rm -rf "$work/moved"
  mkdir "$work/moved"
  cp -r "$(step "all-$1" 3)" "$work/moved/"
  cp "$work/all-$1.jsonl" "$work/moved.jsonl"
  saved moved "$n" "$axes" "${small[@]}" --steps 6 --batch 16 --resume
  near "all-$1" moved 6
  case ${meshes[$1]}$axes in *tensor*) return ;; esac
  python3 tests/dist/whole.py "$(step moved 6)" "$(step one 6).safetensors" || fail "from ${meshes[$1]} to $axes: other bits"
}
for i in "${!meshes[@]}"; do
  [ -z "$sanitized" ] || [ "$i" -eq 0 ] || [ "$i" -eq 4 ] || continue
  move "$i" $(((i + 2) % ${#meshes[@]}))
  rm -rf "$work/moved"
  mkdir "$work/moved"
  cp -r "$(step "all-$i" 3)" "$work/moved/"
  cp "$work/all-$i.jsonl" "$work/moved.jsonl"
  one moved "${small[@]}" --steps 6 --batch 8 --accumulate 2 --resume
  near "all-$i" moved 6
  [ -f "$(step moved 6).safetensors" ] || fail "one process writes one file"
  [ ! -e "$(step moved 3)" ] || fail "--keep 1 keeps a folder"
  case ${meshes[$i]} in *tensor*) ;; *) same_state one moved ;; esac
done
# Three parts of 50 x 30, of which the last is shorter; then two; then three from one file.
odd=(models/mlp.kv -D d=50 -D hidden=30 -D vocab=40 --threads 1 --eval-every 0)
one odd-one "${odd[@]}" --steps 4 --batch 12 --micro-batch 4
mesh odd 3 data=3,zero=3 "${odd[@]}" --steps 2 --batch 12
cp -r "$work/odd" "$work/odd-2"
mesh odd-2 2 data=2,zero=2 "${odd[@]}" --steps 3 --batch 12 --micro-batch 6 --resume
one odd "${odd[@]}" --steps 3 --batch 12 --micro-batch 4 --resume
mesh odd 3 data=3,zero=3 "${odd[@]}" --steps 4 --batch 12 --resume
same_state odd odd-one

# No file holds what all processes have together: process 0 writes whole what is whole in all, and its own part of the rest.
python3 - "$(step all-2 6)" <<'PY' || fail "a shard is larger than the share of its process"
import os, sys
sizes = [os.path.getsize(os.path.join(sys.argv[1], f)) for f in os.listdir(sys.argv[1])]
assert max(sizes) < 0.55 * sum(sizes), sizes
PY

# Weights: what reads a file by its names reads a folder.
python3 tests/dist/whole.py --join "$(step all-4 6)" "$work/joined.safetensors"
size=("${small[@]:0:7}")
for form in joined.safetensors all-4/step-0000000006; do
  expect 0 run "${size[@]}" --weights "$work/$form" --pin B=2 --pin T=5
  cp "$work/out" "$work/run-${form%%[.-]*}"
  expect 0 export "${size[@]}" --weights "$work/$form" -o "$work/${form%%[.-]*}.onnx"
  expect 0 train "${small[@]}" --weights "$work/$form" --steps 2 --batch 4 --metrics "$work/${form%%[.-]*}.jsonl"
done
cmp "$work/run-joined" "$work/run-all" || fail "run --weights FOLDER: other values"
cmp "$work/joined.onnx" "$work/all.onnx" || fail "export --weights FOLDER: other values"
cmp <(result joined) <(result all) || fail "train --weights FOLDER: other values"
# ... the library's sessions, too.
code=0
(
  . tests/library/python.sh
  run_python - "$work/joined.safetensors" "$(step all-4 6)" >"$work/out" 2>&1 <<'PY'
import sys
import kvasir
t = kvasir.trainer("models/mlp.kv", defines={"d": 64, "hidden": 64, "vocab": 64})
values = []
for path in sys.argv[1:]:
    t.load(path)
    values.append({name: array.tobytes() for name, array in t.parameters().items()})
assert values[0] == values[1] and len(values[0]) > 2
PY
) || code=$?
[ "$code" -eq 0 ] || [ "$code" -eq 77 ] || fail "the library reads other values"
expect 1 run "$(step all-4 6)"
says "is a checkpoint, which has no model in it"
cp -r "$(step all-4 6)" "$work/lacks"
rm "$work/lacks/shard-00002-of-00004.safetensors"
expect 1 run "${size[@]}" --weights "$work/lacks" --pin B=2 --pin T=5
says "shard-00002-of-00004.safetensors: error: damaged checkpoint: this file of it is missing"

# What is not whole is named, warned of, set aside, and the checkpoint before it continues.
damaged() { # damaged NAME TEXT [TEXT]: step 6 of half-0 was changed; what is said where it is named itself
  local path
  path=$(step half-0 6)
  expect 1 train "${small[@]}" --steps 6 --batch 16 --resume="$path"
  says "${3:-$2}"
  saved half-0 2 data=2,zero=1 "${small[@]}" --steps 6 --batch 16 --resume
  says "${2#*error: }"
  says "the damaged checkpoint of step 6 got the suffix .damaged"
  says "resumed at step 3"
  [ -d "$path.damaged" ] || fail "$1: it is not set aside"
  diff -r "$(step all-0 6)" "$path" || fail "$1: other bits"
}
shard() { printf '%s/shard-%05d-of-%05d.safetensors' "$(step "$1" "$2")" "$3" 2; }
rm "$(shard half-0 6 1)"
damaged missing "shard-00001-of-00002.safetensors: error: damaged checkpoint: this file of it is missing"
truncate -s -4 "$(shard half-0 6 0)"
damaged truncated "shard-00000-of-00002.safetensors"
printf x | dd of="$(shard half-0 6 1)" bs=1 seek=9000 conv=notrunc status=none
damaged changed "shard-00001-of-00002.safetensors: error: damaged checkpoint: the sum of this file is not the one that the index has"
cp "$(shard half-0 3 1)" "$(shard half-0 6 1)"
damaged "of another step" "shard-00001-of-00002.safetensors: error: is a shard of another checkpoint: its kvasir.step is 3, and the index's is 6"
saved foreign 2 data=2,zero=1 "${small[@]}" --steps 6 --batch 16 --seed 5
cp "$(shard foreign 6 1)" "$(shard half-0 6 1)"
damaged foreign "shard-00001-of-00002.safetensors: error: damaged checkpoint: the sum of this file"
cp "$(shard half-0 6 0)" "$(shard half-0 6 1)"
damaged swapped "is a shard of another checkpoint: its kvasir.shard is 0 of 2, and the index's is 1 of 2"
sed -i 's/data=2,tensor=1/data=1,tensor=2/' "$(step half-0 6)/index.safetensors"
damaged index "step-0000000006: error: damaged checkpoint: its index does not say how the processes divided"
rm "$(step half-0 6)/index.safetensors"
damaged "without an index" "index.safetensors: error: damaged checkpoint: this file of it is missing" "there is no checkpoint in"
# Another version's, another model's, a file alone.
cp -r "$(step half-0 6)" "$work/newer"
sed -i 's/"kvasir.format":"3"/"kvasir.format":"5"/' "$work/newer/index.safetensors"
expect 1 train "${small[@]}" --steps 9 --resume="$work/newer"
says "is a folder of a checkpoint of format 5; this version reads 3 and 4"
expect 1 train "${small[@]}" --steps 9 --resume="$(shard half-0 6 0)"
says "is one file of a checkpoint in several; give the folder that it is in"
expect 1 train "${small[@]}" -D layers=2 --steps 9 --resume="$(step half-0 6)"
says "is a checkpoint of another model"

# What a process that was killed leaves is removed by the next run, and is no checkpoint; one that lives keeps its own.
left=$(step half-0 9).999999999.tmp
cp -r "$(step half-0 6)" "$left"
cp -r "$left" "$work/half-0/best.999999999.tmp"
cp -r "$left" "$(step half-0 9).1.tmp"
saved half-0 2 data=2,zero=1 "${small[@]}" --steps 6 --batch 16 --resume
says "resumed at step 6"
[ ! -e "$left" ] && [ ! -e "$work/half-0/best.999999999.tmp" ] || fail "a left-over folder stays"
[ -d "$(step half-0 9).1.tmp" ] || fail "the folder of a process that lives is removed"

# The best state, in the form of the mesh that wrote it last.
best=("${small[@]}" --batch 16 --keep-best)
mesh best 2 data=2,zero=3 "${best[@]}" --steps 6
python3 tests/dist/whole.py "$work/best/best" "$(step best 6)" || fail "the best state is not the last one"
mesh best 2 data=2,zero=3 "${best[@]}" --steps 9 --resume
python3 tests/dist/whole.py "$work/best/best" "$(step best 9)" || fail "a better state does not take the place of the best one"
one best "${best[@]}" --micro-batch 8 --steps 12 --resume
cmp "$work/best/best.safetensors" "$(step best 12).safetensors" || fail "one process: another best state"
[ ! -e "$work/best/best" ] || fail "two best states"
mesh best 2 data=2,zero=1 "${best[@]}" --steps 15 --resume
[ ! -e "$work/best/best.safetensors" ] || fail "two best states"
[ "$(ls "$work/best" | tr '\n' ' ')" = "best step-0000000015 " ] || fail "expected the best and the last state: $(ls "$work/best")"

# A process that does not see the folder says so: here the same relative name is another folder for each.
mkdir -p "$work/a" "$work/b"
tool=$(realpath "$KVASIR") model=$(realpath models/mlp.kv)
apart=("$tool" train "$model" "${small[@]:1}" --mesh data=2,zero=1 --steps 1 --batch 16 --checkpoint run)
! ranks 1 -wdir "$work/a" "${apart[@]}" : -n 1 -wdir "$work/b" "${apart[@]}" || fail "processes that see other folders"
says "does not see this folder, which process 0 made: checkpoints need a file system that all processes share"
[ -z "$(ls "$work/a/run")" ] || fail "a checkpoint that failed leaves something behind: $(ls "$work/a/run")"
# ... and so does one that finds no file of the name, or another one, where process 0 has what it goes on from.
mkdir -p "$work/a/old"
cp "$(step one 6).safetensors" "$work/a/old/"
apart=("${apart[@]/#run/more}" --resume=old)
! ranks 1 -wdir "$work/a" "${apart[@]}" : -n 1 -wdir "$work/b" "${apart[@]}" || fail "a process reads nothing"
says "old: error: cannot open it"
says "process 1 of 2 ("
mkdir -p "$work/b/old"
one other "${small[@]}" --steps 6 --batch 16 --seed 5
cp "$(step other 6).safetensors" "$work/b/old/"
! ranks 1 -wdir "$work/a" "${apart[@]}" : -n 1 -wdir "$work/b" "${apart[@]}" || fail "processes read different files"
says "does not do the same as process 0: the checkpoint's sum"
