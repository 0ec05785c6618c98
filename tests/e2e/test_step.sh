#!/usr/bin/env bash
# A training step of the 1.5B preset for a GPU, on paper: launches, bytes that its kernels move beside products and
# attention, and how many of them a thread moves at once.
. "$(dirname "$0")/support.sh"

# Of a printed plan: steps, and GB of operands and results of those that are neither products nor attention.
cat >"$work/plan.awk" <<'AWK'
function bytes_of(type,   n, i, dims, size) {
  size = type ~ /^b?float16/ ? 2 : type ~ /^int64/ ? 8 : type ~ /^bool/ ? 1 : 4
  if (type !~ /\[/) return size
  sub(/^[^[]*\[/, "", type)
  sub(/\].*/, "", type)
  n = split(type, dims, ", ")
  for (i = 1; i <= n; i++) size *= dims[i]
  return size
}
/^plan / { training = /"train_step"/ }
!training { next }
/^buffer / {
  number = $2 + 0
  sub(/^buffer [0-9]+: /, "")
  sub(/, steps .*/, "")
  if (!sub(/^temp /, "")) sub(/^[a-z]+ [^ ]* /, "")
  size[number] = bytes_of($0)
}
/^step / {
  steps++
  if (/: (matmul|attention)/) next
  sub(/^step [0-9]+: [^ ]+ /, "")
  gsub(/[^0-9]+/, " ")
  n = split($0, buffers, " ")
  for (i = 1; i <= n; i++) moved += size[buffers[i]]
}
END { printf "%d %.1f\n", steps, moved / 1e9 }
AWK

within() { # GEMM MOST_STEPS MOST_GB
  local steps gb
  expect 0 opt models/lm.kv -D preset=1.5B -D separator=0 --pin B=4 --pin T=2048 --passes=optimize,training,prepare,plan \
    --target sm_90a --precision bf16 --gemm "$1"
  read -r steps gb < <(awk -f "$work/plan.awk" "$work/out")
  echo "$1 products: $steps launches, $gb GB"
  awk -v steps="$steps" -v gb="$gb" -v most="$2" -v most_gb="$3" \
    'BEGIN { exit !(steps > 1000 && steps <= most && gb > 80 && gb <= most_gb) }' ||
    fail "$1 products: $steps launches move $gb GB, allowed are $2 and $3"
}
within library 1500 121
within generated 1450 101

# Products of 16-bit factors are wgmma, gradients of weights, which are float, too.
expect 0 show models/lm.kv -D preset=1.5B -D separator=0 --pin B=4 --pin T=2048 --train --stage=plan --arch sm_90a \
  --precision bf16
awk '$2 == "matmul" { n++; if (!/ wgmma, not skinny: not 1 to 16 rows$/) { print "not wgmma: " $0; bad = 1 } }
     END { print n " products"; exit bad || n < 700 }' "$work/out" >"$work/products" || fail "$(cat "$work/products")"

# A kernel with accesses of 2 bytes has wide ones, too: the narrow ones are ends and single elements.
expect 0 build models/lm.kv -D preset=1.5B -D layers=1 --train --precision bf16 --target sm_90a --emit=ptx -o "$work/step.ptx"
awk '/\.entry / { kernel = $0; sub(/.*\.entry /, "", kernel) }
     /(ld|st)\.global/ { count[kernel]++ }
     /(ld|st)\.global[a-z.]*\.[bus]16[ \t]/ { narrow[kernel] = 1 }
     /(ld|st)\.global[a-z.]*(\.v[248]\.[bfus](32|64)|\.v4\.[bus]16|\.[bfus]64)[ \t]/ { wide[kernel] = 1 }
     END {
       for (k in narrow) if (!wide[k]) { print k ": 2 bytes a thread"; bad = 1 }
       for (k in count) n++
       exit bad || n < 60
     }' "$work/step.ptx" >"$work/narrow" || fail "$(cat "$work/narrow") in $(grep -c '\.entry' "$work/step.ptx") kernels"
