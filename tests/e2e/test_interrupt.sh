#!/usr/bin/env bash
# The tables of exit codes and signals in the man page, row by row: what the tool and built executables do. A trainer that
# is interrupted has saved its state, and its metrics and report are complete.
. "$(dirname "$0")/support.sh"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}allocator_may_return_null=1 # as malloc does
table() { sed -n "/^\.SH $1/,/^\.SH/p" tools/kvasir.1; }
mapfile -t codes < <(table "EXIT STATUS" | sed -n 's/^\.B \([0-9][0-9]*\)$/\1/p')
mapfile -t signals < <(table SIGNALS | sed -n '/^_$/,/^\.TE/p' | grep '^SIG')
[ "${codes[*]}" = "0 1 2 3 4" ] || fail "exit codes in the man page: ${codes[*]}"
[ "${#signals[@]}" -ge 6 ] || fail "${#signals[@]} signals in the man page"

small=(-D d=16 -D hidden=32 -D vocab=64)
tool="$KVASIR train models/mlp.kv ${small[*]}"
trainers=("$tool")
others=("$KVASIR run models/mlp.kv ${small[*]} --pin B=2 --pin T=5 --repeat 2000000000")
if command -v cc >/dev/null; then
  expect 0 build models/mlp.kv "${small[@]}" --train --exe -o "$work/trainer"
  expect 0 build models/mlp.kv "${small[@]}" --exe -o "$work/model"
  trainers+=("$work/trainer")
  others+=("$work/model --pin B=2 --pin T=5 --repeat 2000000000")
fi

# Exit codes.
for trainer in "${trainers[@]}"; do
  provoke() { # provoke CODE OPTION...
    local expected=$1 code=0
    shift
    $trainer "$@" >"$work/out" 2>&1 || code=$?
    [ "$code" -eq "$expected" ] || fail "$trainer $*: exit code $code, expected $expected"
  }
  for code in "${codes[@]}"; do
    case $code in
      0) provoke 0 --steps 2 ;;
      1) provoke 1 --steps 2 --data tokens:absent ;;
      2) provoke 2 --steps ;;
      3) provoke 3 --steps 2 --batch 2147483616
        says "memory" ;;
      4) provoke 4 --steps 1000000000 --time-limit 0.2s
        says "interrupted after step " ;;
    esac
  done
done

# A program under its signal; what it prints goes to the file of the second argument. A shell without job control starts
# what runs in the background with SIGINT ignored; Python restores it.
with_signals() {
  exec python3 -c 'import os, signal, sys
for s in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE: signal.signal(s, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}

interrupt() { # interrupt SIGNAL CODE TRAINER
  local metrics=$work/$1.jsonl report=$work/$1.html saved=$work/$1.saved code=0 waited=0
  rm -rf "$metrics" "$report" "$saved"
  # shellcheck disable=SC2086
  with_signals $3 --steps 1000000000 --eval-every 0 --metrics "$metrics" --report "$report" --checkpoint "$saved" \
    >"$work/out" 2>&1 &
  local pid=$!
  until [ -s "$metrics" ] && [ "$(wc -l <"$metrics")" -ge 3 ]; do
    kill -0 "$pid" 2>/dev/null || fail "$1: ended by itself"
    [ $((waited += 1)) -lt 300 ] || fail "$1: no metrics after 30 s"
    sleep 0.1
  done
  kill -"$1" "$pid"
  wait "$pid" || code=$?
  [ "$code" -eq "$2" ] || fail "$1: exit code $code of $3, expected $2"
  [ "$2" -eq 4 ] || return 0
  says "interrupted after step "
  says "report: $report"
  grep -q "</html>" "$report" || fail "$1: the report is cut off"
  python3 -c 'import json, sys; steps = [json.loads(l)["step"] for l in open(sys.argv[1])]
assert steps[-1] >= 3 and sys.argv[2] == "step-%010d.safetensors" % steps[-1], (steps[-1], sys.argv[2])' \
    "$metrics" "$(ls "$saved")" || fail "$1: metrics or checkpoint do not have the last step"
}

end_at_once() { # end_at_once SIGNAL CODE PROGRAM
  local code=0
  # shellcheck disable=SC2086
  with_signals $3 >/dev/null 2>&1 &
  local pid=$! waited=0
  until [ "$(readlink "/proc/$pid/exe")" = "$(readlink -f "${3%% *}")" ]; do
    [ $((waited += 1)) -lt 300 ] || fail "$3 does not start"
    sleep 0.1
  done
  sleep 0.1
  kill -"$1" "$pid"
  wait "$pid" || code=$?
  [ "$code" -eq "$2" ] || fail "$1: exit code $code of $3, expected $2"
}

ulimit -c 0
for row in "${signals[@]}"; do
  read -r name train other <<<"$row"
  for trainer in "${trainers[@]}"; do interrupt "${name#SIG}" "$train" "$trainer"; done
  for program in "${others[@]}"; do end_at_once "${name#SIG}" "$other" "$program"; done
done

# A reader that goes away: the state is saved, and nothing is said, also where metrics go to standard output.
for trainer in "${trainers[@]}"; do
  for json in "" --json; do
    rm -rf "$work/saved"
    code=0
    # shellcheck disable=SC2086
    { $trainer --steps 1000000000 --eval-every 0 $json --checkpoint "$work/saved" 2>"$work/out" || echo $? >"$work/code"; } | head -1 >/dev/null
    [ "$(cat "$work/code")" -eq 4 ] || fail "$trainer $json | head -1: exit code $(cat "$work/code")"
    [ ! -s "$work/out" ] || fail "$trainer $json | head -1 has a message"
    [ -n "$(ls "$work/saved")" ] || fail "$trainer $json | head -1 does not save"
  done
done

# nohup: SIGHUP stays ignored.
(
  trap '' HUP
  exec $tool --steps 1000000000 --eval-every 0 --time-limit 1s
) >"$work/out" 2>&1 &
pid=$!
sleep 0.6
kill -HUP $pid
code=0
wait $pid || code=$?
[ "$code" -eq 4 ] || fail "SIGHUP ignored: exit code $code"
python3 -c 'import re, sys
seconds = float(re.search(r"trained in ([0-9.]+) s", open(sys.argv[1]).read())[1])
assert seconds > 0.75, seconds' "$work/out" || fail "SIGHUP ends a run that ignores it"
