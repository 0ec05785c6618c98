#!/usr/bin/env bash
# The page of kvasir serve in a browser: a prompt is typed, Continue is clicked, text appears. Needs chromium.
set -euo pipefail
"$KVASIR" doctor --json | grep -q '"libmicrohttpd": null' && { echo "SKIP: built without libmicrohttpd"; exit 77; }
command -v chromium >/dev/null || { echo "SKIP: chromium is not installed"; exit 77; }
python3 tests/serve/page_test.py
