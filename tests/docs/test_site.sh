#!/usr/bin/env bash
# Links of all documents lead somewhere; the reference has every function of the public headers; a wrong block fails its
# test; with mkdocs the site builds, with a search index.
. "$(dirname "$0")/../e2e/support.sh"

python3 tools/site/pages.py --check >"$work/out" || fail "links"
python3 tools/site/pages.py --stage "$work/pages" >"$work/out" || fail "staging"
for header in tools/library/kvasir.h runtime/runtime.h runtime/context.h runtime/npy.h runtime/safetensors.h runtime/base/status.h; do
  page=$work/pages/reference/${header//\//_}.md
  [ -s "$page" ] || fail "no reference of $header"
  n=0
  for name in $(grep -oE '^[A-Za-z_].*\b(kva|kvasir)_[a-z0-9_]+\(' "$header" | grep -v '^static' | grep -oE '(kva|kvasir)_[a-z0-9_]+\($' | tr -d '('); do
    grep -qxF "### $name" "$page" || fail "the reference of $header lacks $name"
    n=$((n + 1))
  done
  [ "$n" -ge 2 ] || fail "$header: only $n functions found"
done

wrong() { # wrong TEXT MESSAGE: a document that must fail, and what is said
  printf '%b' "$1" >"$work/wrong.md"
  ! python3 tests/docs/blocks.py "$work/wrong.md" >"$work/out" 2>&1 || fail "passes: $1"
  says "$2"
}
wrong '```sh\nkvasir check models/nothing.kv\n```\n' 'models/nothing.kv'
wrong '```sh not-run: slow\nkvasir run --nothing\n```\n' 'no option --nothing'
wrong '```sh not-run: slow\nkvasir nothing\n```\n' "no verb 'nothing'"
wrong 'Text:\n\n    kvasir doctor\n' 'an indented code block'
wrong '```\nkvasir doctor\n```\n' "a block of ''"
wrong '```c\nint main(void) {}\n```\n' 'it would not be tested'
wrong '```sh\ntrue\n' 'a block without an end'

command -v mkdocs >/dev/null || { echo "SKIP: no mkdocs"; exit 77; }
tools/docs -o "$work/site" >"$work/out" 2>&1 || fail "the site"
grep -q 'KV shifting' "$work/site/search/search_index.json" || fail "the search index"
grep -q 'kvasir_session_run' "$work/site/reference/tools_library_kvasir.h.html" || fail "the reference"
