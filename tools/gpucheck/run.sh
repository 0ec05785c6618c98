#!/bin/sh
# Checks and times Kvasir's GPU code on this machine: ./run.sh [--device ptxsim] [--no-times] ... ; needs a driver and
# a C library, nothing else. With python3 and torch their times stand beside.
here=$(dirname "$0")
peer=
case " $* " in
*" --no-times "*) ;;
*)
  if command -v python3 >/dev/null && python3 -c 'import torch' 2>/dev/null; then
    echo "timing the peers in PyTorch..." >&2
    python3 "$here/peer.py" >"${TMPDIR:-/tmp}/kva_gpu_peer.$$" && peer="--peer ${TMPDIR:-/tmp}/kva_gpu_peer.$$"
  fi
  ;;
esac
"$here/kva_gpu_check" "$here/cases.bin" $peer "$@"
code=$?
rm -f "${TMPDIR:-/tmp}/kva_gpu_peer.$$"
exit $code
