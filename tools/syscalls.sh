#!/usr/bin/env bash
# System calls of each thread per token, in steady decode of a resident model: seats and crews should make none.
#
#   bash tools/syscalls.sh [MODEL [THREADS [TOKENS]]]
#
# Experts that no token has chosen yet are not resident: give it enough tokens.
# Needs strace and the right to trace. Runs `millstream run` (MILLSTREAM=binary, else target/release/millstream), takes the
# calls between 70 and 95 % of the time in which the scheduler was at work, and ends with 1 if a seat or a
# crew made more than one in fifty tokens (a noisy machine makes a wave come too late now and then). Leave a CPU free (THREADS below the number of CPUs, 1 by default): where there is none the scheduler parks between
# tokens, and being woken costs the leading seat one call a token.
set -euo pipefail

binary=${MILLSTREAM:-target/release/millstream}
model=${1:-}
threads=${2:-1}
tokens=${3:-1500}
command -v strace >/dev/null || { echo "syscalls: no strace here; apt-get install strace" >&2; exit 2; }

traces=$(mktemp --directory)
trap 'rm -rf "$traces"' EXIT
# Being traced, the scheduler takes longer between tokens than seats spin by default.
arguments=(run --spin-us 5000 --prompt-ids 5,6 --ignore-eos --max-tokens "$tokens" --threads "$threads" --learn off --json)
[ -n "$model" ] && arguments+=(--model "$model")
strace -ff -ttt -o "$traces/thread" "$binary" "${arguments[@]}" >"$traces/answer" 2>"$traces/said" ||
    { cat "$traces/said" >&2; exit 2; }

scheduler=$(grep -l 'PR_SET_NAME, "scheduler"' "$traces"/thread.*)
read -r from until < <(awk 'NR == 1 { first = $1 } { last = $1 }
    END { printf "%.6f %.6f\n", first + (last - first) * 0.7, first + (last - first) * 0.95 }' "$scheduler")
share=$(awk -v n="$tokens" 'BEGIN { print n * 0.25 }')
failed=0
printf '%-16s %10s %12s  %s\n' thread calls "a token" which
for file in "$traces"/thread.*; do
    name=$(sed -n 's/.*PR_SET_NAME, "\([^"]*\)".*/\1/p' "$file" | head -1)
    calls=$(awk -v from="$from" -v until="$until" '$1 >= from && $1 <= until { print $2 }' "$file" | sed 's/(.*//')
    count=$(printf '%s' "$calls" | grep -c . || true)
    which=$(printf '%s\n' "$calls" | sort | uniq -c | sort -rn | head -3 | awk '{ printf "%s x %s  ", $1, $2 }')
    printf '%-16s %10d %12.3f  %s\n' "${name:-caller}" "$count" "$(awk -v c="$count" -v n="$share" 'BEGIN { print c / n }')" "$which"
    case "$name" in seat-* | crew-*) awk -v c="$count" -v n="$share" 'BEGIN { exit c / n > 0.02 }' || failed=1 ;; esac
done
exit "$failed"
