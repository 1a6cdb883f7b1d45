#!/usr/bin/env bash
# Gets a Debian or Ubuntu machine ready to build Millstream: the hwloc and udev headers, pkg-config and a C compiler.
# Installs only what is missing and says what it does. Rust it only looks for.
set -euo pipefail

packages=(libhwloc-dev libudev-dev pkg-config gcc libc6-dev)

missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done

if [ "${#missing[@]}" -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here; install what your system calls: ${packages[*]}" >&2
        echo "setup: or build without hwloc: cargo build --release --no-default-features" >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: neither root nor sudo; have an administrator run: apt-get install ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    echo "setup: installing ${missing[*]}"
    "${as_root[@]}" apt-get update --quiet
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends "${missing[@]}"
fi

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo; install Rust 1.95 or newer from https://rustup.rs and open a new shell" >&2
    exit 1
fi
echo "setup: ready, $(rustc --version)"
