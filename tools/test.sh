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

step cargo fmt --all --check
step cargo clippy --workspace --all-targets --features faults -- -D warnings
step cargo test --workspace --features faults
step cargo test -p millstream-topology --no-default-features
step cargo check -p millstream --no-default-features
step loom -p millstream-stages --features faults --test loom_ring --test loom_cursor --test loom_parking
step loom -p millstream-topology --no-default-features loom
step bash tools/numa.sh
echo "== all green in $SECONDS s"
