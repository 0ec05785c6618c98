#!/usr/bin/env bash
# Ctrl-C and SIGTERM end a run after the current step: metrics and report are complete, the exit code is 0.
. "$(dirname "$0")/support.sh"

interrupt() { # interrupt SIGNAL
  local metrics=$work/$1.jsonl report=$work/$1.html code=0 waited=0
  # A shell without job control starts what runs in the background with SIGINT ignored; Python restores it.
  python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])' \
    "$KVASIR" train models/mlp.kv --steps 1000000 --metrics "$metrics" --report "$report" >"$work/out" 2>&1 &
  local pid=$!
  until [ -s "$metrics" ] && [ "$(wc -l <"$metrics")" -ge 3 ]; do
    kill -0 "$pid" 2>/dev/null || fail "$1: ended by itself"
    [ $((waited += 1)) -lt 300 ] || fail "$1: no metrics after 30 s"
    sleep 0.1
  done
  kill -"$1" "$pid"
  wait "$pid" || code=$?
  [ "$code" -eq 0 ] || fail "$1: exit code $code"
  says "report: $report"
  grep -q "</html>" "$report" || fail "$1: the report is cut off"
  python3 -c 'import json, sys; steps = [json.loads(l)["step"] for l in open(sys.argv[1])]; assert steps[-1] >= 3' "$metrics" ||
    fail "$1: the metrics are cut off"
}

interrupt INT
interrupt TERM
