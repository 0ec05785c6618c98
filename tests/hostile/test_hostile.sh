#!/usr/bin/env bash
# Hostile input through the tool: tests/hostile/cases.txt, run by run.py.
exec python3 -B "$(dirname "$0")/run.py" "$@"
