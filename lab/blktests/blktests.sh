#!/bin/sh
# The NVMe group of blktests against leases: `cargo xtask lab blktests CHECKOUT`. docs/nvme.md says which tests do not apply.
# modules: nvme_tcp nvmet_tcp loop xfs ext4 configfs
# memory: 3072
# build: berth
# timeout: 3000
set -eu

. lab/nvme.sh
TESTS="004 005 006 008 010 012 014 018 019 021 022 023 025 026 027 028 029 040 047"

# What its scripts expect of a host, and a bare guest lacks.
mount -t configfs configfs /sys/kernel/config 2>/dev/null || true
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
truncate -s 1G "$work/disk.img"
configure "$work/disk.img" "1 GiB"
start
enroll

# It writes beside its tests.
cp -r "$CHECKOUT" "$work/blktests"
# It cannot read the names of Debian's kernels; this one is new enough for all that it asks.
sed -i /_have_kver/d "$work"/blktests/tests/nvme/[0-9][0-9][0-9]
export STATE="$work" SIZE="400 MiB"
cat >"$work/blktests/config" <<CONFIG
NVME_TARGET_CONTROL=$ROOT/lab/blktests/target
NVME_IMG_SIZE=400M
NVME_NUM_ITER=20
nvme_trtype=tcp
CONFIG
cd "$work/blktests"
for number in $TESTS; do
    timeout 300 ./check "nvme/$number" >"$work/said" 2>&1 || true
    cat "$work/said" >>"$OUT/blktests"
    if grep -q '\[passed\]' "$work/said"; then echo "ok nvme/$number"
    elif grep -q '\[not run\]' "$work/said"; then echo "# nvme/$number is not run: $(sed 1d "$work/said" | tr -s ' \n' ' ')"
    else echo "not ok nvme/$number: $(tail -n 4 "$work/said" | tr -s ' \n' ' ')"; fi
    "$ROOT/lab/blktests/target" cleanup
    nvme disconnect-all
done
cd "$ROOT"
stop
