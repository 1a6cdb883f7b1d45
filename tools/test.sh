#!/usr/bin/env bash
# Every test in its short form, as docs/testing.md lists them; stops at the first red step. Run tools/setup.sh before.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
    echo "== $*"
    local begin=$SECONDS
    "$@"
    echo "== done in $((SECONDS - begin)) s"
}

# Under the model checker every atomic is loom's, so its build has a place of its own.
loom() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" cargo test --release "$@"
}

# Two clients, reads ahead and a guard that gives memory back, under AddressSanitizer. The compiler's switch for it is
# only in nightly builds or behind this variable; the standard library isn't instrumented.
address() {
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan" \
        ASAN_OPTIONS=quarantine_size_mb=16 cargo run --no-default-features --target x86_64-unknown-linux-gnu \
        --example soak -- 15 answers-only
}

step cargo fmt --all --check
step cargo clippy --workspace --all-targets --features faults -- -D warnings
step cargo test --workspace --features faults
step cargo test -p millstream-topology --no-default-features
step cargo check -p millstream --no-default-features
step loom -p millstream-stages --features faults --test loom_ring --test loom_cursor --test loom_parking
step loom -p millstream-topology --no-default-features loom
if [ "$(uname -m)" = x86_64 ]; then step address; else echo "== address: NOT RUN, needs x86-64"; fi
step bash tools/numa.sh
echo "== all green in $SECONDS s"
