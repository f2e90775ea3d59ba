#!/bin/sh
# Fuzzes each target of fuzz/ for $FUZZ_SECONDS; or the targets given as arguments. Needs cargo-fuzz; its sanitizer switches are
# unstable ones, which a stable toolchain accepts with RUSTC_BOOTSTRAP=1.
set -eu
if ! sh tools/cargo.sh fuzz --version >/dev/null 2>&1; then
    echo "cord: fuzzing needs cargo-fuzz, once: cargo install cargo-fuzz (and a C++ compiler: apt-get install g++)" >&2
    exit 1
fi
export RUSTC_BOOTSTRAP=1
rc=0
if command -v python3 >/dev/null; then python3 fuzz/seeds.py; fi
for target in ${*:-$(sh tools/cargo.sh fuzz list)}; do
    echo "== $target, ${FUZZ_SECONDS:-60} seconds"
    sh tools/cargo.sh fuzz run "$target" -- -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 || rc=1
done
exit "$rc"
