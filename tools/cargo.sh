#!/bin/sh
# Runs cargo with the given arguments. Under sudo it runs as the user who called it, with that user's toolchain, so that
# `sudo luarocks make` finds cargo and leaves no root-owned files in the user's target folder.
set -eu
owner=$(ls -ld . | awk '{ print $3 }')
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ] && [ "$SUDO_USER" = "$owner" ]; then
    home=$(eval echo "~$SUDO_USER")
    exec sudo -H -u "$SUDO_USER" env PATH="$home/.cargo/bin:$PATH" ${CARGO_TARGET_DIR:+CARGO_TARGET_DIR="$CARGO_TARGET_DIR"} \
        "${CARGO:-cargo}" "$@"
fi
PATH="$PATH:${HOME:-/root}/.cargo/bin"
if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "cord: building needs cargo and rustc 1.88 or newer: see https://rustup.rs" >&2
    exit 1
fi
exec "${CARGO:-cargo}" "$@"
