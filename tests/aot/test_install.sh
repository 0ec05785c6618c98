#!/usr/bin/env bash
# The installed tree, moved to another place: examples build by CMake and by pkg-config, headers stand alone, the runtime
# is small and needs libc and libm alone.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

build=$(dirname "$KVASIR")
command -v cmake >/dev/null || { echo "SKIP: no cmake"; exit 77; }
cmake --install "$build" --prefix "$work/first" >"$work/out" || fail "install"
mv "$work/first" "$work/prefix"
grep -rIlF "$work/first" "$work/prefix" && fail "the prefix is in an installed file"
for file in bin/kvasir lib/libkvasir-rt.a lib/libkvasir-rt.so include/kvasir/runtime/context.h \
  include/kvasir/kvasir.h lib/libkvasir.so lib/pkgconfig/kvasir.pc lib/cmake/kvasir/kvasirConfig.cmake lib/pkgconfig/kvasir-rt.pc share/man/man1/kvasir.1 \
  share/bash-completion/completions/kvasir; do
  [ -e "$work/prefix/$file" ] || fail "$file is not installed"
done

# The runtime.
library=$work/prefix/lib/libkvasir-rt.so
text=$(size "$library" | awk 'NR == 2 { print $1 }')
[ "$text" -lt 400000 ] || fail "libkvasir-rt has $text bytes of text"
ldd "$library" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' && fail "libkvasir-rt needs more than libc and libm"

# Headers, each by itself.
(cd "$work/prefix/include/kvasir" && find . -name '*.h') | while read -r header; do
  printf '#define _GNU_SOURCE\n#include "%s"\n' "$header" | cc -std=c17 -Wall -Werror -I "$work/prefix/include/kvasir" -x c -fsyntax-only - ||
    fail "$header does not stand alone"
done

# The examples.
cmake -S "$work/prefix/share/kvasir/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/out" 2>&1 &&
  cmake --build "$work/examples" >"$work/out" 2>&1 || fail "building the examples"
for example in object two_models embedded "train $work/train.safetensors"; do
  # shellcheck disable=SC2086
  "$work/examples/"$example >"$work/${example%% *}.out" || fail "example $example"
done
[ "$(wc -l <"$work/object.out")" -eq 12 ] || fail "output of object"
[ "$(wc -l <"$work/two_models.out")" -eq 4 ] || fail "output of two_models"
grep -q '^step 60: loss 0.0' "$work/train.out" || fail "output of train"
grep -q 'own threads' "$work/embedded.out" && grep -q '^0 blocks left' "$work/embedded.out" || fail "output of embedded"
tokens "$work/tokens" 1 9
"$work/examples/shared" "$work/examples/lm_shared.model/lm.so" "$work/tokens.raw" "$work/logits.raw" 9 >"$work/out"
mkdir "$work/run"
"$work/examples/lm_exe" -i "$work/tokens.npy" -o "$work/run" >/dev/null
raw "$work/run/logits.npy" "$work/run.raw"
same "$work/logits.raw" "$work/run.raw"

# By hand.
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
  "$work/prefix/bin/kvasir" build models/lm.kv -D preset=small -c -o "$work/lm.o"
  # shellcheck disable=SC2046
  cc -I "$work" examples/object.c "$work/lm.o" $(pkg-config --cflags kvasir-rt) \
    $(pkg-config --libs --static kvasir-rt | sed 's/-lkvasir-rt/-l:libkvasir-rt.a/') -o "$work/object" || fail "pkg-config"
  "$work/object" | cmp -s - "$work/object.out" || fail "object, linked by hand"
  # shellcheck disable=SC2046
  cc tests/aot/cmake/library.c $(pkg-config --cflags --libs kvasir) -Wl,-rpath,"$work/prefix/lib" -o "$work/library" || fail "pkg-config kvasir"
  [ "$(with_library "$work/library")" = "$("$work/prefix/bin/kvasir" --version | awk '{ print $2 }')" ] || fail "the library's version"
fi
