#!/usr/bin/env bash
# kvasir.h stands alone in C and C++; libkvasir.so exports its functions and nothing else; the Python package's structs
# and functions are those of the header.
. "$(dirname "$0")/../e2e/support.sh"
header=tools/library/kvasir.h
: "${KVASIR_LIBRARY:?libkvasir.so}"

for language in c99 c17; do
  cc -x c -std=$language -Wall -Wextra -Wpedantic -Werror -fsyntax-only $header || fail "$header is not $language"
done
if command -v c++ >/dev/null; then
  for language in c++11 c++20; do
    c++ -x c++ -std=$language -Wall -Wextra -Wpedantic -Werror -fsyntax-only $header || fail "$header is not $language"
  done
fi

nm -D --defined-only "$KVASIR_LIBRARY" | awk '$2 == "T" { print $3 }' | sort >"$work/exports"
tr '\n' ' ' <$header | grep -oE 'KVASIR_API [^;(]*\(' | grep -oE 'kvasir_[a-z_]+\($' | tr -d '(' | sed 's/$/@@KVASIR_0.2/' | sort >"$work/declared"
[ "$(wc -l <"$work/declared")" -ge 30 ] || fail "only $(wc -l <"$work/declared") functions found in $header"
diff "$work/exports" "$work/declared" >"$work/out" || fail "exports (<) and declarations (>)"
readelf -d "$KVASIR_LIBRARY" | grep -qF 'Library soname: [libkvasir.so.0]' || fail "soname"

# From the package: assertions on sizes, offsets and numbers of arguments, for the C compiler.
cat >"$work/layout.py" <<'PY'
import ctypes, importlib.util, re, sys
spec = importlib.util.spec_from_file_location("library", "tools/python/kvasir/_library.py")
package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
print('#include "tools/library/kvasir.h"')
names = {"PortStruct": "port", "SessionOptionsStruct": "session_options"}
for name, struct in vars(package).items():
    if not isinstance(struct, type) or not issubclass(struct, ctypes.Structure): continue
    c = "kvasir_" + names.get(name, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    print(f"_Static_assert(sizeof({c}) == {ctypes.sizeof(struct)}, \"{c}\");")
    for field, _ in struct._fields_:
        print(f"_Static_assert(offsetof({c}, {field}) == {getattr(struct, field).offset}, \"{c}.{field}\");")
header = re.sub(r"/\*.*?\*/", "", open("tools/library/kvasir.h").read(), flags=re.S)
declared = {n: len([a for a in args.split(",") if a.strip() != "void"])
            for n, args in re.findall(r"KVASIR_API [^;(]*?kvasir_(\w+)\(([^;]*)\);", header)}
used = {n: len(a) for n, (_, a) in package._plain.items()} | {n: len(a) + 1 for n, a in package._fallible.items()}
for name, n in used.items():
    assert declared.get(name, 0) - (declared.get(name) == 1 and name == "version") == n, (name, n, declared.get(name))
assert len(package.STATUS) == len(re.findall(r"^  KVASIR_\w+ = \d", re.search(r"enum kvasir_status \{.*?\}", header, re.S)[0], re.M))
assert package.version, package.version
PY
skip_python() {
  echo "SKIP: $1; header and exports are checked"
  exit 77
}
command -v python3 >/dev/null || skip_python "no python3"
[ -z "${KVASIR_SANITIZED:-}" ] || export LD_PRELOAD="$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0
python3 "$work/layout.py" >"$work/layout.c" || fail "the package's functions and the header's"
unset LD_PRELOAD
[ "$(grep -c offsetof "$work/layout.c")" -ge 40 ] || fail "only $(grep -c offsetof "$work/layout.c") members found"
cc -I. -fsyntax-only -x c "$work/layout.c" || fail "the package's structs and the header's"
