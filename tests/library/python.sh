# Sourced after support.sh: a Python with numpy in $python, which finds the package in the tree and libkvasir in
# $KVASIR_LIBRARY; or the test is skipped.
: "${KVASIR_LIBRARY:?libkvasir.so}"
python=
for candidate in ${KVASIR_PYTHON:-build/bench-venv/bin/python python3 /usr/bin/python3}; do
  if "$candidate" -c 'import numpy' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "SKIP: no Python with numpy (set KVASIR_PYTHON to one)"
  exit 77
fi

# run_python ARGUMENTS...: with the library of a sanitizer build, the sanitizer must be there first. CPython keeps memory
# until it ends, so that leaks are not looked for.
run_python() {
  local preload=
  [ -z "${KVASIR_SANITIZED:-}" ] || preload=$(gcc -print-file-name=libasan.so)
  LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$PWD/tools/python "$python" "$@"
}
