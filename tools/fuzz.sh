#!/usr/bin/env bash
# Fuzzes every parser for so many seconds each: bash tools/fuzz.sh [SECONDS] [TARGET ...]. Needs cargo-fuzz
# (`cargo install cargo-fuzz`); RUSTC_BOOTSTRAP lets the stable compiler take the sanitizer's flags.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(header gguf container config index machine)
if ! command -v cargo-fuzz >/dev/null; then
    echo "fuzz: cargo-fuzz is missing; cargo install cargo-fuzz" >&2
    exit 1
fi
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target"
    RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- -max_total_time="$seconds"
done
echo "fuzz: ${targets[*]}, $seconds s each, nothing found"
