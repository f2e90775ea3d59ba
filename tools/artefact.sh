#!/bin/sh
# Prints where cargo leaves the library of $PROFILE: follows CARGO_TARGET_DIR, CARGO_BUILD_TARGET and cargo's own
# configuration, so that a stale library is never picked up from a place cargo no longer writes to.
set -eu
metadata=$(sh tools/cargo.sh metadata --no-deps --offline --format-version 1)
target=$(printf '%s' "$metadata" | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
profile=${PROFILE:-release}
[ "$profile" != dev ] || profile=debug
dir=$target${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}/$profile
for lib in "$dir/libcord.so" "$dir/libcord.dylib"; do
    if [ -e "$lib" ]; then
        echo "$lib"
        exit 0
    fi
done
echo "cord: no libcord.so in $dir: run make cord.so first" >&2
exit 1
