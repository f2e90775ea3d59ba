#!/bin/sh
# Installs what is missing on this machine, with apt-get, as root or through sudo, and for the tests the Python connector
# into target/python; prints nothing when all is there.
# usage: deps.sh build|test      `build` is what `make build` and `make demo` need, `test` adds what `make test` needs.
set -eu
what=${1:-test}
required='' optional=''

have() { command -v "$1" >/dev/null 2>&1; }
need() { required="$required $1"; }
# A missing optional package leaves specs pending, with the reason.
want() { optional="$optional $1"; }

have luajit || need luajit
have luarocks || need luarocks
have "${CC:-cc}" || need gcc
# LuaRocks looks for the headers of the Lua it installs for, though this rock compiles none.
headers=''
for header in /usr/include/lua5.1/lua.h /usr/include/luajit-2.*/lua.h /usr/local/include/luajit-2.*/lua.h; do
    [ ! -e "$header" ] || headers=$header
done
if have apt-get && [ -z "$headers" ]; then
    need lua5.1
    need liblua5.1-0-dev
fi
if [ "$what" = test ]; then
    if have luajit; then luajit -e 'require "busted"' >/dev/null 2>&1 || need lua-busted; else need lua-busted; fi
    have luacheck || need lua-check
    have nm || want binutils
    have lua5.1 || want lua5.1
    have "${TARANTOOL:-tarantool}" || want tarantool
fi

# The connector that a spec talks to the embedded server with: $PYTHON may have it already, else a venv of our own gets it.
connector=target/python
has_connector() { "$1" -c 'import tarantool' >/dev/null 2>&1; }
misses_connector() { [ "$what" = test ] && ! has_connector "${PYTHON:-python3}" && ! has_connector "$connector/bin/python3"; }
if misses_connector; then
    if ! have "${PYTHON:-python3}"; then
        want python3
        want python3-venv
    elif ! "${PYTHON:-python3}" -c 'import ensurepip' >/dev/null 2>&1; then
        want python3-venv
    fi
fi

install_connector() {
    misses_connector && have "${PYTHON:-python3}" || return 0
    echo "cord: installing Python's connector into $connector with pip (once)" >&2
    mkdir -p "$(dirname "$connector")"
    pip='-m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15'
    if ! { "${PYTHON:-python3}" -m venv "$connector" && "$connector/bin/python3" $pip 'tarantool>=1,<2'; } >"$log" 2>&1
    then
        tail -n 3 "$log" >&2
        echo "cord: Python's connector could not be installed: the specs that need it will be pending" >&2
        rm -rf "$connector"
    fi
}

log=$(mktemp "${TMPDIR:-/tmp}/cord-deps.XXXXXX")
trap 'rm -f "$log"' EXIT
if [ -z "$required$optional" ]; then
    install_connector
    exit 0
fi

if ! have apt-get; then
    [ -n "$optional" ] && echo "cord: not found, the specs that need it will be pending:$optional" >&2
    if [ -z "$required" ]; then
        install_connector
        exit 0
    fi
    echo "cord: missing:$required (names of Debian's packages), and this machine has no apt-get." >&2
    echo "      macOS: brew install luajit luarocks, then luarocks --lua-version=5.1 install busted (and luacheck)." >&2
    exit 1
fi
as_root=''
if [ "$(id -u)" != 0 ]; then
    if ! have sudo; then
        echo "cord: missing:$required$optional. Run as root: apt-get install$required$optional" >&2
        [ -n "$required" ] && exit 1
        install_connector
        exit 0
    fi
    as_root=sudo
fi

apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; }

echo "cord: installing$required$optional with apt-get (once)" >&2
apt update || echo "cord: apt-get update failed; going on with the lists that are there" >&2
if [ -n "$required" ] && ! apt install $required; then
    tail -n 20 "$log" >&2
    echo "cord: apt-get could not install:$required" >&2
    exit 1
fi
for package in $optional; do
    apt install "$package" || echo "cord: apt-get has no $package: the specs that need it will be pending" >&2
done
install_connector
