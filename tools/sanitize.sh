#!/bin/sh
# The Rust tests and then the specs with AddressSanitizer, each within $SANITIZE_SECONDS. The sanitizer is an unstable
# switch of rustc, which a stable toolchain accepts with RUSTC_BOOTSTRAP=1. The library is loaded by a stock luajit, so the
# sanitizer's runtime comes first by LD_PRELOAD (gcc's, which speaks the same interface). Leaks are not looked for: an
# interpreter that ends without closing its state leaks by design. Miri runs as well where it is installed.
set -eu
limit=${SANITIZE_SECONDS:-300}
target=$(sh tools/cargo.sh -vV | sed -n 's/^host: //p')
dir=$(sh tools/cargo.sh metadata --no-deps --offline --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/sanitize
runtime=$("${CC:-cc}" -print-file-name=libasan.so)
if [ ! -e "$runtime" ]; then
    echo "cord: no libasan.so beside ${CC:-cc}: install gcc's sanitizer runtime (Debian: libasan8 or gcc)" >&2
    exit 1
fi
export RUSTC_BOOTSTRAP=1
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0:${ASAN_OPTIONS:-}"
sh tools/deps.sh test

echo "== Rust tests under AddressSanitizer"
RUSTFLAGS='-Zsanitizer=address' sh tools/cargo.sh test --quiet --no-default-features --target "$target" --target-dir "$dir" --no-run
RUSTFLAGS='-Zsanitizer=address' timeout "$limit" \
    sh tools/cargo.sh test --quiet --no-default-features --lib --target "$target" --target-dir "$dir"

# Not of variables on stacks: a Lua error leaves frames on a fiber's stack without telling the sanitizer, which would report
# whoever uses that memory next. The Rust tests above raise none.
echo "== specs under AddressSanitizer"
RUSTFLAGS='-Zsanitizer=address -Zexternal-clangrt -Cllvm-args=-asan-stack=0' \
    sh tools/cargo.sh build --quiet --profile quick --lib --target "$target" --target-dir "$dir/module"
lib=$dir/module/$target/quick
ln -sf libcord.so "$lib/cord.so"
rc=0
LUA_CPATH="$lib/?.so;${LUA_CPATH:-;}" LD_PRELOAD="$runtime" timeout "$limit" "${LUAJIT:-luajit}" tools/busted.lua ${SPEC:-} || rc=$?
[ "$rc" != 124 ] || echo "cord: the specs did not end within $limit seconds: raise SANITIZE_SECONDS" >&2

if sh tools/cargo.sh miri --version >/dev/null 2>&1; then
    echo "== Rust tests under Miri"
    timeout "$limit" sh tools/cargo.sh miri test --no-default-features --lib -- iproto || rc=$?
else
    echo "Miri is not installed (it comes with a nightly toolchain: rustup component add miri): not run"
fi
exit "$rc"
