# Sourced after support.sh by scripts that look for what is wrong in the tool of $KVASIR_BROKEN (tests/broken/).
: "${KVASIR_BROKEN:?the tool that is wrong}"
model=$work/model.kv

# make_chain COUNT OUTPUTS LINE...: $model, whose x has 8 columns and whose v0 is -x; then the lines of `node I`, which
# the script defines, for I from 1 to COUNT, and the given ones.
make_chain() {
  {
    echo "main (float[N, 8] x) => ($2) {"
    echo 'v0 = kv.neg(x)'
    for i in $(seq "$1"); do node "$i"; done
    printf '%s\n' "${@:3}" '}'
  } >"$model"
}

# break_tool HOW: from here on (in a subshell: up to its end) the tool is the wrong one, with one of its faults.
break_tool() {
  KVASIR=$KVASIR_BROKEN
  export KVA_BREAK=$1
}
