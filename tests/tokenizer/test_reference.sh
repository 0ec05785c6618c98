#!/usr/bin/env bash
# The numbers of tests/data/tokenizer_cases.json are those of the `tokenizers` package that is installed here.
set -euo pipefail
python3 -c 'import tokenizers' 2>/dev/null || { echo "SKIP: the Python package tokenizers is not installed"; exit 77; }
python3 tests/data/make_tokenizers.py --check
