# Sourced after support.sh: a Python with numpy in $python, which finds the package in the tree and libkvasir in
# $KVASIR_LIBRARY; or the test is skipped.
: "${KVASIR_LIBRARY:?libkvasir.so}"
python=
for candidate in ${KVASIR_PYTHON:-build/bench-venv/bin/python python3 /usr/bin/python3}; do
  # The program itself: a script in its place would run under the sanitizer, too.
  python=$("$candidate" -c 'import numpy, sys; print(sys.executable)' 2>/dev/null) && break
done
if [ -z "$python" ]; then
  echo "SKIP: no Python with numpy (set KVASIR_PYTHON to one)"
  exit 77
fi

# run_python ARGUMENTS...: with the library of a sanitizer build, the sanitizer must be there first. CPython keeps memory
# until it ends, so that leaks are not looked for. It and numpy are not instrumented, but their locks count.
run_python() {
  local preload
  preload=$(ldd "$KVASIR_LIBRARY" | awk '/lib[at]san/ { print $3 }')
  LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$PWD/tools/python "$python" "$@"
}
