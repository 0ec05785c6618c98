#!/usr/bin/env bash
# The CMake package: every FORM of kvasir_add_model links and runs from a fresh build folder, with Ninja and with Make, beside
# a target that is called m; a model that changed is compiled again; versions and arguments that do not fit are refused.
# $KVASIR_PREFIX: an installed tree; without it, one is installed.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

command -v cmake >/dev/null || { echo "SKIP: no cmake"; exit 77; }
prefix=${KVASIR_PREFIX:-}
if [ -z "$prefix" ]; then
  prefix=$work/prefix
  cmake --install "$(dirname "$KVASIR")" --prefix "$prefix" >"$work/out" || fail "install"
fi
version=$("$prefix/bin/kvasir" --version | awk '{ print $2 }')
cp models/mlp.kv "$work/mlp.kv"
project() { cmake -S tests/aot/cmake -B "$work/$1" -DCMAKE_PREFIX_PATH="$prefix" -DMODEL="$work/mlp.kv" "${@:2}" >"$work/out" 2>&1; }

built=0
for generator in Ninja "Unix Makefiles"; do
  command -v "$([ "$generator" = Ninja ] && echo ninja || echo make)" >/dev/null || continue
  folder=${generator%% *}
  project "$folder" -G "$generator" -DKVASIR_VERSION="$version" || fail "$generator: configuring"
  cmake --build "$work/$folder" -j 2 >"$work/out" 2>&1 || fail "$generator: a fresh build"
  for form in object static shared both; do
    "$work/$folder/$form" >"$work/$form.txt" || fail "$generator: running $form"
    same "$work/$form.txt" "$work/object.txt"
  done
  [ "$(with_library "$work/$folder/library")" = "$version" ] || fail "$generator: the compiler as a library"
  [ "$(wc -l <"$work/object.txt")" -eq 23 ] || fail "$generator: what object prints"
  built=$((built + 1))
done
[ "$built" -gt 0 ] || { echo "SKIP: neither ninja nor make"; exit 77; }

ldd "$work/$folder/shared" >"$work/out"
grep -q 'mlp\.so => .*model_shared.model/mlp\.so' "$work/out" || fail "shared does not use mlp.so"
sed -i 's/normal(1)/normal(2)/' "$work/mlp.kv"
touch -d '+2 seconds' "$work/mlp.kv"
cmake --build "$work/$folder" >"$work/out" 2>&1 || fail "building again"
for form in object static shared; do
  "$work/$folder/$form" | cmp -s - "$work/object.txt" && fail "$form: a model that changed was not compiled again"
done

project minor -DKVASIR_VERSION="${version%.*}" || fail "version ${version%.*} is not found"
project other -DKVASIR_VERSION=0.0.1 && fail "version 0.0.1 is found"
says 'with requested version "0.0.1"'
for wrong in "FORM archive" "MODE fast"; do
  mkdir -p "$work/wrong"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.20)' 'project(wrong LANGUAGES C)' 'find_package(kvasir REQUIRED)' \
    "kvasir_add_model(x MODEL m.kv $wrong)" >"$work/wrong/CMakeLists.txt"
  cmake -S "$work/wrong" -B "$work/wrong/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/out" 2>&1 && fail "accepted: $wrong"
  says "${wrong#* }"
done
