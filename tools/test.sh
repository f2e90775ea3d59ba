#!/bin/sh
# Everything `make test` does, in the order that fails soonest. Each step is counted, a failed one does not hide the next.
# usage: test.sh [lint]
set -u
passed=0 failed=0 pending=0 problems=''
start=$(date +%s)
log=$(mktemp "${TMPDIR:-/tmp}/cord-test.XXXXXX")
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM

LUAJIT=${LUAJIT:-luajit} ROCKS=${ROCKS:-$PWD/.rocks}
export LUAJIT ROCKS LUAROCKS="${LUAROCKS:-luarocks}"
# The Python that tools/deps.sh has given the connector to, unless another is named.
if [ -z "${PYTHON:-}" ] && [ -x target/python/bin/python3 ]; then export PYTHON="$PWD/target/python/bin/python3"; fi

cargo() { sh tools/cargo.sh "$@"; }

title() { printf '\n== %s\n' "$1"; }

ok() { passed=$((passed + ${1:-1})); }

bad() {
    failed=$((failed + ${2:-1}))
    problems="$problems
   - $1"
}

# One step that either holds or does not.
step() {
    name=$1; shift
    title "$name"
    if "$@"; then ok; else bad "$name"; fi
}

# Adds up a number that a sed expression finds in each line of the log.
sum() { sed -n "$1" "$log" | awk '{ n += $1 } END { print n + 0 }'; }

# Rust's tests: counts their "test result" lines; a build that fails prints none.
rust_tests() {
    title 'Rust tests: cargo test --no-default-features'
    { cargo test --quiet --no-default-features 2>&1; echo "cargo ended with $?"; } >"$log"
    grep -v '^cargo ended with' "$log" | grep -vE '^[.i]*$|^running |^$'
    good=$(sum 's/^test result: .* \([0-9]*\) passed.*/\1/p')
    wrong=$(sum 's/^test result: .* \([0-9]*\) failed.*/\1/p')
    ok "$good"
    if [ "$wrong" -gt 0 ]; then
        bad 'Rust tests' "$wrong"
    elif ! grep -q '^cargo ended with 0$' "$log"; then
        bad 'Rust tests did not finish'
    fi
}

# The busted specs under one setting of LuaJIT. A run that dies prints no closing line, and that is a failure.
specs() {
    title "specs: $LUAJIT $* ${FILES:-}"
    # shellcheck disable=SC2086 # FILES is a list
    { "$LUAJIT" "$@" tools/busted.lua ${FILES:-} 2>&1; echo "busted ended with $?"; } >"$log"
    grep -v '^busted ended with' "$log"
    closing='s/^\([0-9]*\) success[a-z]* \/ \([0-9]*\) failure[a-z]* \/ \([0-9]*\) error[a-z]* \/ \([0-9]*\) pending.*'
    ok "$(sum "$closing/\\1/p")"
    wrong=$(($(sum "$closing/\\2/p") + $(sum "$closing/\\3/p")))
    pending=$((pending + $(sum "$closing/\\4/p")))
    if [ "$wrong" -gt 0 ]; then
        names=$(sed -n '/^\(Failure\|Error\) -> /{n;s/^/        /;p;}' "$log")
        bad "specs with luajit $*
$names" "$wrong"
    elif ! grep -q '^busted ended with 0$' "$log" || ! grep -qE "[0-9]+ success" "$log"; then
        bad "specs with luajit $*: $(tail -n 1 "$log")"
    fi
}

# Private items are documented too: this crate is read, not linked to.
docs() {
    RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links -A rustdoc::redundant_explicit_links' cargo doc --quiet --no-deps --lib --document-private-items
}

lint() {
    step 'cargo fmt --check' cargo fmt --check
    step 'cargo clippy' cargo clippy --quiet --all-targets -- -D warnings
    step 'cargo clippy, the core alone' cargo clippy --quiet --no-default-features --all-targets -- -D warnings
    step 'luacheck' luacheck -q .
    step 'cargo doc' docs
}

all() {
    lint
    rust_tests
    step 'the rock: luarocks make' sh tools/build.sh
    if [ -e "$ROCKS/lib/lua/5.1/cord.so" ]; then
        LUA_PATH="$ROCKS/share/lua/5.1/?.lua;$ROCKS/share/lua/5.1/?/init.lua;${LUA_PATH:-;}"
        LUA_CPATH="$ROCKS/lib/lua/5.1/?.so;${LUA_CPATH:-;}"
        export LUA_PATH LUA_CPATH
        specs
        specs -joff
        specs -Ohotloop=1
        title 'the same with a collector that never rests: fibers'
        CORD_SPEC_GC=1 FILES='spec/01-fiber_spec.lua spec/02-channel_spec.lua spec/03-cond_spec.lua spec/06-stress_spec.lua'
        export CORD_SPEC_GC
        specs
    else
        bad 'no cord.so to run the specs against'
    fi
}

"${1:-all}"

title 'summary'
[ "$pending" -eq 0 ] || echo "$pending pending (each reason stands above)"
[ -z "$problems" ] || echo "failed:$problems"
echo "$(($(date +%s) - start)) seconds"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
