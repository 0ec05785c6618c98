#!/usr/bin/env bash
# tools/package: what is in the Debian packages, what they depend on, that they work where they are unpacked; the tarball is the
# committed tree; the list of components names the libraries. tools/setup chooses from a folder of packages. Installing in a
# fresh system and removing: tools/package --test.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: packages are made of release builds"; exit 77; }
for program in cpack dpkg-deb dpkg-shlibdeps readelf git; do
  command -v $program >/dev/null || { echo "SKIP: no $program"; exit 77; }
done
version=$("$KVASIR" --version | awk '{ print $2 }')
arch=$(dpkg --print-architecture)
KVASIR_BUILD=$(dirname "$KVASIR") tools/package -o "$work/again" >"$work/out_again" 2>&1 & # compared below
again=$!
KVASIR_BUILD=$(dirname "$KVASIR") tools/package -o "$work/made" >"$work/out" 2>&1 || fail "tools/package"
deb=$work/made/kvasir_${version}_$arch.deb dev=$work/made/libkvasir-rt-dev_${version}_$arch.deb

# Every installed file is in exactly one package.
cmake --install "$(dirname "$KVASIR")" --prefix "$work/usr" >"$work/out" || fail "install"
(cd "$work/usr" && find . ! -type d | sort) >"$work/installed"
for package in "$deb" "$dev"; do
  mkdir -p "$work/root"
  dpkg-deb -x "$package" "$work/root"
  dpkg-deb -c "$package" | awk '!/^d/ { sub("./usr/", "./", $6); print $6 }'
done | sort | diff - "$work/installed" >"$work/out" || fail "packages and installation differ"
for package in "$deb" "$dev"; do dpkg-deb -c "$package"; done | awk '{ print $2 }' | grep -v root/root && fail "an owner that is not root"
! grep -rIlF "$PWD" "$work/root" || fail "a file names the source folder"
! grep -rlF "$PWD" "$work/root/usr/lib" "$work/root/usr/bin" || fail "a binary names the source folder"

for library in libc6 libllvm19 libprotobuf-c1; do
  dpkg-deb -f "$deb" Depends | grep -qE "(^|, )$library( |,|\$)" || fail "kvasir does not depend on $library"
done
[ "$(dpkg-deb -f "$dev" Depends | grep -c libllvm)" -eq 0 ] || fail "libkvasir-rt-dev depends on LLVM"

# They work where they are unpacked.
"$work/root/usr/bin/kvasir" build models/mlp.kv --exe -o "$work/mlp" >"$work/out" 2>&1 || fail "the unpacked tool builds nothing"
"$work/mlp" --help >"$work/out" || fail "the program of the unpacked tool"
KVASIR_PREFIX=$work/root/usr bash tests/aot/test_cmake.sh >"$work/out" 2>&1 || fail "the unpacked CMake package"

# Equal trees give equal files.
wait "$again" || { cp "$work/out_again" "$work/out"; fail "tools/package, again"; }
diff <(cd "$work/made" && sha256sum ./*) <(cd "$work/again" && sha256sum ./*) >"$work/out" || fail "packages of equal trees differ"

if [ -e .git ]; then
  tar tzf "$work/made/kvasir-$version.tar.gz" | grep -v '/$' | sort >"$work/packed"
  git ls-tree -r --name-only HEAD | sed "s#^#kvasir-$version/#" | sort | diff - "$work/packed" >"$work/out" || fail "the tarball is not the tree"
fi

python3 - "$work/made/kvasir-$version.spdx.json" "$version" <<'PY'
import json, re, sys
d = json.load(open(sys.argv[1]))
packages = {p["name"]: p for p in d["packages"]}
assert d["spdxVersion"] == "SPDX-2.3" and packages["kvasir"]["versionInfo"] == sys.argv[2]
assert {"libllvm19", "libprotobuf-c1", "libc6"} <= set(packages), sorted(packages)
ids = [p["SPDXID"] for p in d["packages"]] + ["SPDXRef-DOCUMENT"]
assert len(set(ids)) == len(ids) and all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", i) for i in ids)
linked = [r for r in d["relationships"] if r["relationshipType"] == "DYNAMIC_LINK"]
assert len(linked) >= 4 and all(r["spdxElementId"] in ids and r["relatedSpdxElement"] in ids for r in d["relationships"])
PY

# What is missing is chosen from a folder of packages; apt-get and dpkg-query are stand-ins that write down what they are asked.
mkdir "$work/bin"
cat >"$work/bin/dpkg-query" <<'SH'
#!/bin/sh
case $* in *ninja-build*) exit 1 ;; *) echo "install ok installed" ;; esac
SH
cat >"$work/bin/apt-get" <<'SH'
#!/bin/sh
echo "$*" >>"$ASKED"
for word; do case $word in Dir::Etc::SourceList=*) cat "${word#*=}" >>"$ASKED"; folder=$(sed 's/.*file:\([^ ]*\).*/\1/' "${word#*=}") ;; esac; done
[ -z "${folder:-}" ] || { cat "$folder/Packages" >>"$ASKED"; cat "$folder/$(sed -n 's/^Filename: //p' "$folder/Packages" | head -1)" >/dev/null; }
SH
cat >"$work/bin/id" <<'SH'
#!/bin/sh
echo 0
SH
chmod +x "$work/bin/"*
export ASKED=$work/asked
PATH=$work/bin:$PATH tools/setup --offline "$work/made" >"$work/out" 2>&1 || fail "tools/setup --offline"
grep -q 'SourceParts=/dev/null.* install .* ninja-build$' "$ASKED" || fail "tools/setup did not ask apt for what is missing"
grep -q "^Filename: packages/kvasir_${version}_$arch.deb$" "$ASKED" || fail "the index of tools/setup"
grep -q "^SHA256: $(sha256sum <"$deb" | cut -d' ' -f1)$" "$ASKED" || fail "the sums of tools/setup"
mkdir "$work/empty"
! PATH=$work/bin:$PATH tools/setup --offline "$work/empty" >"$work/out" 2>&1 || fail "tools/setup with an empty folder"
says "there are no packages in"
