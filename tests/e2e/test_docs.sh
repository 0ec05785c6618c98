#!/usr/bin/env bash
# What is written about the tool's options agrees with its --help: man page, completion. (tests/docs
# executes the documents.)
. "$(dirname "$0")/support.sh"
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: texts are the same without sanitizers"; exit 77; }

options_of() { sed -n '/^Options:/,/^$/p' "$work/help" | grep -oE '^  (-[^ ,]+, )?--[a-z-]+' | grep -oE -- '-{1,2}[A-Za-z-]+'; }

tr -d '\\' <tools/kvasir.1 >"$work/man"
# shellcheck source=/dev/null
. tools/completion/kvasir.bash
complete_words() { # complete_words WORD...: what is offered for the last of them, in COMPREPLY
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  set +e # as in the shells that it runs in
  _kvasir
  set -e
}
offers() { printf '%s\n' "${COMPREPLY[@]}" | grep -xF -- "$1" >/dev/null || fail "completion of '${COMP_WORDS[*]}' does not offer $1"; }

expect 0 --help
mapfile -t verbs < <(sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' "$work/out")
all=0
for verb in "${verbs[@]}"; do
  grep -qE "^\.BI? $verb( |\$)" "$work/man" || fail "the man page does not explain the verb $verb"
  complete_words "$KVASIR" "${verb:0:2}"
  offers "$verb"
  "$KVASIR" "$verb" --help >"$work/help"
  for option in $(options_of); do
    grep -qE -- "$option([^a-z-]|\$)" "$work/man" || fail "the man page does not explain $option of $verb"
    complete_words "$KVASIR" "$verb" "${option:0:2}"
    offers "$option"
    all=$((all + 1))
  done
done
[ "$all" -ge 40 ] || fail "only $all options found"

complete_words "$KVASIR" show models/mlp.kv --stage = pl
offers plan
complete_words "$KVASIR" train --data n
offers ngram
complete_words "$KVASIR" run --device ""
for device in cpu cuda ptxsim; do offers "$device"; done
complete_words "$KVASIR" export --format ""
offers gguf
complete_words "$KVASIR" run --precision = b
offers bf16
complete_words "$KVASIR" run --weights models/
offers models/mlp.kv
complete_words "$KVASIR" build --weights ""
offers embed
complete_words "$KVASIR" train --resume = models/
offers models/mlp.kv
complete_words "$KVASIR" run models/
offers models/mlp.kv
complete_words "$KVASIR" train --steps ""
[ -z "${COMPREPLY[*]}" ] || fail "completion offers values of --steps"

# Every option that the man page names exists.
for verb in "${verbs[@]}"; do "$KVASIR" "$verb" --help; done >"$work/all"
for option in $(grep -oE -- '--[a-z]+[a-z-]*' "$work/man" | sort -u); do
  grep -qF -- "$option" "$work/all" || fail "the man page explains $option, which no verb has"
done

if command -v man >/dev/null && command -v groff >/dev/null; then
  man --warnings -E UTF-8 -l -Tutf8 -Z tools/kvasir.1 >/dev/null 2>"$work/out" || fail "man"
  [ ! -s "$work/out" ] || fail "man warns"
fi

# Outside of ops/ a rule that names operators is about exactly those: docs/design.md argues each file, and no other.
grep -rlE 'case KVA_OP_|== KVA_OP_' passes frontend codegen tools --include='*.[ch]' | sort >"$work/naming"
grep -oE '^\| `(passes|frontend|codegen|tools)/[a-z_/]+\.c` \|' docs/design.md | tr -d '|` ' | sort >"$work/argued"
diff "$work/naming" "$work/argued" >"$work/out" || fail "files that name operators (<) and those that docs/design.md argues (>)"

# A README names every file of its folder: `expr.c`, `expr_*.c`, or `_loops` after a file of the same beginning.
for folder in codegen frontend ir passes runtime runtime/base runtime/ptxsim tools/library tools/tokenizer; do
  mapfile -t patterns < <(grep -oE '`[a-z0-9_*]+(\.[ch])?`' "$folder/README.md" | tr -d '`')
  for file in "$folder"/*.c; do
    name=$(basename "$file" .c) found=
    for pattern in "${patterns[@]%.[ch]}"; do
      # shellcheck disable=SC2053
      [[ $name != $pattern && ($pattern != _* || $name != *$pattern) ]] || found=1
    done
    [ -n "$found" ] || fail "$folder/README.md does not name ${file##*/}"
  done
done
