#!/usr/bin/env bash
# How much of the drive disk-bound decode uses, beside fio, and what memory it holds at most.
#
#   bash tools/drive_share.sh PACK 2GiB [flags of `millstream bench --stream`]
#
# Reads the pack's expert files with fio (io_uring, O_DIRECT, 4 MiB, depth 4, huge pages where the
# system has some reserved) before and after the bench, in one run. Needs fio (apt-get install fio).
set -euo pipefail
pack=$1 memory=$2
shift 2
command -v fio > /dev/null || { echo "drive_share: fio is missing: apt-get install fio" >&2; exit 1; }
program=${MILLSTREAM:-$(dirname "$0")/../target/release/millstream}
[ -x "$program" ] || { echo "drive_share: $program is missing: cargo build --release" >&2; exit 1; }
if [ "$(cat /proc/sys/vm/nr_hugepages)" -ge 16 ]; then pages=mmaphuge; else pages=mmap; fi

files=$(find "$pack" -name '*.safetensors' -size +64M | sort | head -8 | paste -sd:)
[ -n "$files" ] || { echo "drive_share: no file of $pack is large enough to say anything" >&2; exit 1; }
read_by_fio() {
    fio --name=read --filename="$files" --rw=randread --bs=4M --direct=1 --ioengine=io_uring --iodepth=4 \
        --iomem=$pages --size=2G --runtime=4 --time_based --readonly --minimal | awk -F';' '{printf "%.2f\n", $7 / 1e6}'
}

before=$(read_by_fio)
out=$(mktemp)
"$program" bench --stream -m "$pack" --memory "$memory" --learn off "$@" -o json > "$out" &
bench=$!
held=0
while kill -0 $bench 2> /dev/null; do
    now=$(awk '/VmHWM/ { print $2 }' /proc/$bench/status 2> /dev/null || true)
    held=${now:-$held}
    sleep 0.2
done
wait $bench
after=$(read_by_fio)
echo "fio (buffers: $pages): $before GB/s before, $after GB/s after; peak resident $((held / 1024)) MiB of $memory"
python3 - "$out" "$before" "$after" <<'EOF'
import json, sys
report = json.load(open(sys.argv[1]))
fio = (float(sys.argv[2]) + float(sys.argv[3])) / 2
for row in report["rows"]:
    gb_s = row["disk_read_gb_s"]
    print(f'{row["name"]}: {row["decode_tok_s"]:.2f} tok/s, {gb_s:.2f} GB/s read, {gb_s / fio:.2f} of fio')
EOF
rm -f "$out"
