#!/usr/bin/env bash
# kvasir serve over plain HTTP, see http_test.py; wrong usage.
. "$(dirname "$0")/../e2e/support.sh"
"$KVASIR" doctor --json | grep -q '"libmicrohttpd": null' && { echo "SKIP: built without libmicrohttpd"; exit 77; }

refused() { # refused CODE MESSAGE ARGUMENT...
  expect "$1" serve "${@:3}"
  says "$2"
}
: >"$work/empty"
printf '\n' >"$work/blank"
refused 2 'a model is missing'
refused 2 'below 65536' models/lm.kv --port 65536
refused 2 'at least two tokens' models/lm.kv --context 1
refused 1 'the model knows 8000 tokens' models/lm.kv
refused 1 'expected a key' models/lm.kv -D vocab=257 --api-key-file "$work/blank"
refused 1 'is not UTF-8' models/lm.kv -D vocab=257 -D d=32 -D heads=2 -D layers=1 --name $'\xE8'
refused 1 'expected an address' models/lm.kv -D vocab=257 -D d=32 -D heads=2 -D layers=1 --host localhost
python3 tests/serve/http_test.py
