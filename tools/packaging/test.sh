#!/usr/bin/env bash
# test.sh DIR VERSION: what tools/package made in DIR, on a fresh Debian 12 that mmdebstrap makes and throws away. With the
# argument "inside" it is the part that runs there.
set -euo pipefail

if [ "$1" != inside ]; then
  command -v mmdebstrap >/dev/null || { echo "package: the test needs mmdebstrap" >&2; exit 3; }
  directory=$(cd "$1" && pwd)
  exec mmdebstrap --quiet --variant=apt \
    --customize-hook="mkdir \"\$1/srv/release\"" \
    --customize-hook="copy-in $(printf '%q ' "$directory"/*"$2"*.deb "$directory"/kvasir-"$2".tar.gz "$0")/srv/release" \
    --customize-hook="chroot \"\$1\" bash /srv/release/$(basename "$0") inside $2" \
    bookworm /dev/null
fi

version=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root
cd /srv/release
part() { echo "== $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
did() { "$@" >/tmp/log 2>&1 || { tail -20 /tmp/log; fail "$*"; }; }
files() { # what packages put there: not caches, logs and what apt and dpkg note
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /srv -o -path /root -o -path '/var/*' \
    -o -path '/etc/*' \) -prune -o -print | sort
}
tool() { # tool COMMAND: it works
  [ "$("$1" --version)" = "kvasir $version" ] || fail "$1 --version"
  { printf '\223NUMPY\1\0\166\0%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 4), }"
    printf '\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0'; } >/tmp/tokens.npy
  rm -rf /tmp/run /tmp/built
  mkdir /tmp/run /tmp/built
  did "$1" run "$2/models/mlp.kv" --input tokens=/tmp/tokens.npy -o /tmp/run
  did "$1" train "$2/models/mlp.kv" --steps 3
  did "$1" build "$2/models/mlp.kv" --exe -o /tmp/mlp
  did /tmp/mlp -i /tmp/tokens.npy -o /tmp/built
  cmp /tmp/run/logits.npy /tmp/built/logits.npy || fail "the program that $1 built gives other results"
}
tar xzf "kvasir-$version.tar.gz"
apt-get update -q >/dev/null
files >/tmp/before

part "install"
did apt-get install -y -q --no-install-recommends ./kvasir_*.deb
did kvasir check /usr/share/kvasir/models/mlp.kv
did apt-get purge -y -q --autoremove kvasir
did apt-get install -y -q --install-recommends ./*.deb
did apt-get install -y -q man-db groff-base bash-completion cmake ninja-build make pkg-config
part "run, train, build"
tool kvasir /usr/share/kvasir
part "manual page and completion"
did man kvasir
grep -q 'KVASIR(1)' /tmp/log || fail "man kvasir"
words=$(bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader kvasir; COMP_WORDS=(kvasir tr) COMP_CWORD=1; _kvasir; echo "${COMPREPLY[@]}"')
[ "$words" = train ] || fail "completion gives '$words'"
part "CMake package"
(cd "kvasir-$version" && KVASIR=/usr/bin/kvasir KVASIR_PREFIX=/usr bash tests/aot/test_cmake.sh) || fail "tests/aot/test_cmake.sh"
did cmake -S /usr/share/kvasir/examples -B /tmp/examples
did cmake --build /tmp/examples
[ "$(/tmp/examples/object | wc -l)" -eq 12 ] || fail "the example 'object'"
part "pkg-config"
did kvasir build /usr/share/kvasir/models/lm.kv -D preset=small -c -o /tmp/lm.o
# shellcheck disable=SC2046
cc -I /tmp /usr/share/kvasir/examples/object.c /tmp/lm.o $(pkg-config --cflags --libs kvasir-rt) -o /tmp/object && /tmp/object >/dev/null ||
  fail "pkg-config"
part "removal"
# What the base system recommends, and did not have, goes as well.
did apt-get -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false \
  purge -y -q --autoremove kvasir libkvasir-rt-dev man-db groff-base bash-completion cmake ninja-build make pkg-config
files >/tmp/after
diff /tmp/before /tmp/after || fail "these files stayed"
# The cache of compiled code in a user's folder is the user's.
find / -xdev -path /srv -prune -o -path /proc -prune -o -path /tmp -prune -o -path /root -prune -o -iname '*kvasir*' -print | grep . && fail "these files stayed"

part "tarball"
cd "kvasir-$version"
did tools/setup --build --download /srv/packages
did tools/setup --build --offline /srv/packages
did cmake --preset release
did cmake --build --preset release --target installed
did cmake --install build/release --prefix /usr/local
tool /usr/local/bin/kvasir /usr/local/share/kvasir
echo "package: installs, works and is removed on Debian $(cat /etc/debian_version)"
