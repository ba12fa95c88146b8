#!/usr/bin/env bash
# Runs cargo for 64-bit ARM on an x86-64 Debian machine, tests included (under QEMU's user emulation).
#
#   scripts/aarch64.sh test -p cupola-cpu
#
# rustup has no ARM library on a machine that cannot reach its server, so this takes Debian's compiler for web browsers,
# whose package of the library's source matches it, and builds the library with the project (-Z build-std). Needs root
# once, for the linker and QEMU.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/target/aarch64-tools

if ! command -v qemu-aarch64-static >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null
fi

if [ ! -e "$tools/ready" ]; then
    rm -rf "$tools" && mkdir -p "$tools/debs"
    # Unpacked, not installed: the package conflicts with other compilers. Debian raises its version now and then, so the
    # packages with its libraries are found by dependency, not by name.
    needs() { apt-cache depends "$1" | awk -v what="Depends: ($2)" '$0 ~ what {print $2}'; }
    library=$(needs libstd-rust-web-dev libstd-rust-web-)
    llvm=$(needs "$library" libllvm)
    (cd "$tools/debs" && apt-get download -qq rustc-web rust-web-src libstd-rust-web-dev "$library" $llvm 2>/dev/null)
    for deb in "$tools"/debs/*.deb; do dpkg -x "$deb" "$tools"; done
    rm -r "$tools/debs"
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$tools/usr/lib/x86_64-linux-gnu" "$tools/usr/bin/rustc" >"$tools/rustc"
    chmod +x "$tools/rustc"
    touch "$tools/ready"
fi

source=$(echo "$tools"/usr/src/rustc-*/library)
export RUSTC="$tools/rustc" RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT="$source"
export CARGO_TARGET_DIR="$root/target/aarch64"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu"
cd "$root"
command=$1
shift
exec cargo "$command" -Z build-std --target aarch64-unknown-linux-gnu "$@"
