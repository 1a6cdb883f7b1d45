#!/usr/bin/env bash
# Emulates machines with several NUMA nodes and runs tests/emulated in them: bash tools/numa.sh
# Needs Debian's packages: installs qemu-system-x86 and e2fsprogs if they are missing; kernel and busybox are only
# unpacked below target/numa. Where they can't be had it says why, and ends well: no machine was tested.
set -euo pipefail
cd "$(dirname "$0")/.."

place=$(realpath -m "${CARGO_TARGET_DIR:-target}")/numa
kernels=linux-image-6.12-cloud-amd64
mkdir -p "$place/packages"

not_run() {
    echo "numa: NOT RUN, no machine was emulated: $1" >&2
    exit 0
}

install_emulator() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo > /dev/null || not_run "neither root nor sudo; have an administrator run: apt-get install qemu-system-x86 e2fsprogs"
        as_root=(sudo)
    fi
    local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends)
    echo "numa: installing qemu-system-x86, e2fsprogs"
    "${install[@]}" qemu-system-x86 e2fsprogs > "$place/install.log" 2>&1 || not_run "apt-get install: $(tail -1 "$place/install.log")"
}

# A package, unpacked below $place/unpacked.
unpack() {
    local file
    (cd "$place/packages" && apt-get download --quiet "$1" > ../download.log 2>&1) || not_run "apt-get download $1: $(tail -1 "$place/download.log")"
    file=$(find "$place/packages" -name "$1_*.deb" | sort | tail -1)
    dpkg -x "$file" "$place/unpacked"
    rm -f "$file"
}

command -v apt-get > /dev/null || not_run "no apt-get here; the kernel is Debian's package $kernels"
if ! command -v qemu-system-x86_64 > /dev/null || ! command -v mkfs.ext4 > /dev/null; then
    install_emulator
fi
if [ ! -f "$place/kernel" ]; then
    kernel=$(apt-cache depends "$kernels" 2> /dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    [ -n "$kernel" ] || not_run "apt knows no package $kernels; apt-get update, or add Debian's bookworm-security"
    unpack "$kernel"
    mv "$place"/unpacked/boot/vmlinuz-* "$place/kernel"
    rm -rf "$place/unpacked"
fi
if [ ! -f "$place/busybox" ]; then
    unpack busybox-static
    mv "$place/unpacked/bin/busybox" "$place/busybox"
    rm -rf "$place/unpacked"
fi

# Noise with eight slices of 98 KiB, so that experts are read straight into slots: 38 MiB.
rm -rf "$place/container" "$place/pack"
cargo run --quiet --example random_container -- "$place/container" --layers 3 --first 1 --hidden 1024 --experts 16 \
    --intermediate 512 --dense 1024 --top-k 4 --heads 8 --vocabulary 512
cargo run --quiet -- convert "$place/container" "$place/pack" > /dev/null 2> "$place/convert.log" || { cat "$place/convert.log" >&2; exit 1; }
MILLSTREAM_EMULATION=$place cargo test --test emulated -- --nocapture
