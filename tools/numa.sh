#!/usr/bin/env bash
# Emulates machines with several NUMA nodes and runs tests/emulated in them: bash tools/numa.sh
# From Debian's packages: qemu-system-x86 and e2fsprogs are installed if they are missing; kernel and shell are only
# unpacked, below target/numa. Where they can't be had it says why and ends well: then no machine was tested.
set -euo pipefail
cd "$(dirname "$0")/.."

place=$(realpath -m "${CARGO_TARGET_DIR:-target}")/numa
kernels=linux-image-6.12-cloud-amd64
mkdir -p "$place/packages"

not_run() {
    echo "numa: NOT RUN, no machine was emulated: $1" >&2
    exit 0
}

as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi

# Runs a command of apt as root; its last word is the reason where it fails.
apt_as_root() {
    command -v "${as_root[0]:-env}" > /dev/null || not_run "neither root nor sudo for: apt-get $*"
    echo "numa: apt-get $*"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" > "$place/apt.log" 2>&1 ||
        not_run "apt-get $*: $(tail -1 "$place/apt.log")"
}

# Gets a package and takes one file out of it: unpack PACKAGE PATTERN TO.
unpack() {
    (cd "$place/packages" && apt-get download --quiet "$1" > ../apt.log 2>&1) || not_run "apt-get download $1: $(tail -1 "$place/apt.log")"
    dpkg -x "$(find "$place/packages" -name "$1_*.deb")" "$place/packages/unpacked"
    mv "$(find "$place/packages/unpacked" -path "$2")" "$3"
    rm -rf "$place/packages"/*
}

if ! { command -v qemu-system-x86_64 && command -v mkfs.ext4 && [ -f "$place/kernel" ] && [ -f "$place/busybox" ]; } > /dev/null; then
    command -v apt-get > /dev/null || not_run "no apt-get here; qemu, the kernel ($kernels) and busybox-static are Debian's packages"
    apt-cache show "$kernels" > /dev/null 2>&1 || apt_as_root update --quiet
    apt-cache show "$kernels" > /dev/null 2>&1 || not_run "apt knows no package $kernels: not Debian 12 with its security updates"
    if ! { command -v qemu-system-x86_64 && command -v mkfs.ext4; } > /dev/null; then
        apt_as_root install --yes --quiet --no-install-recommends qemu-system-x86 e2fsprogs
    fi
    kernel=$(apt-cache depends "$kernels" | awk '/Depends: linux-image/ { print $2; exit }')
    [ -f "$place/kernel" ] || unpack "$kernel" '*/boot/vmlinuz-*' "$place/kernel"
    [ -f "$place/busybox" ] || unpack busybox-static '*/bin/busybox' "$place/busybox"
fi

# Noise with eight slices of 98 KiB, so that experts are read straight into slots: 38 MiB.
rm -rf "$place/container" "$place/pack"
cargo run --quiet --example random_container -- "$place/container" --layers 3 --first 1 --hidden 1024 --experts 16 \
    --intermediate 512 --dense 1024 --top-k 4 --heads 8 --vocabulary 512 > "$place/model.log"
cargo run --quiet -- convert "$place/container" "$place/pack" >> "$place/model.log" 2>&1 || { cat "$place/model.log" >&2; exit 1; }
MILLSTREAM_EMULATION=$place cargo test --test emulated -- --nocapture
