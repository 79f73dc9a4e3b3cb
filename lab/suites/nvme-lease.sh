#!/bin/sh
# What becomes of a disk when its lease expires, is renewed, bound again or ends, or its blocks fail: as the kernel's
# initiator sees it, with native multipath, and whoever uses the disk.
# modules: nvme_tcp ext4 loop dm_mod
# memory: 1024
# build: berth
# timeout: 300
set -eu

. lab/nvme.sh

# state LEASE: the ANA state of its one path.
state() {
    for path in /sys/class/nvme-subsystem/nvme-subsys*/nvme*/nvme*c*n*/ana_state; do
        grep -qs "$1" "$(dirname "$path")/../subsysnqn" && cat "$path"
    done
}
is() { [ "$(state "$1")" = "$2" ]; }
# load NAME SECONDS DISK: writes that are verified, in the background.
load() {
    fio --name="$1" --filename="$3" --rw=randwrite --bs=4k --size=4M --time_based --runtime="$2" --ioengine=libaio \
        --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --output="$work/$1" 2>/dev/null &
    fio=$!
}
runs() { kill -0 $fio 2>/dev/null; }
ended() { ! runs; }
writes() { awk '{ print $5 }' "/sys/block/$(basename "$1")/stat"; }

configure ram
start
enroll
check "the kernel has native multipath" grep -q Y /sys/module/nvme_core/parameters/multipath

# Grace and renewal. The lease lasts as long as a translated guest takes to begin with it.
lease=$(alloc block "16 MiB" --duration 12 --grace 120)
device=$(attach "$lease")
check "optimized" is "$lease" optimized
load grace 18 "$device"
if within 20 is "$lease" inaccessible; then echo "ok the path is inaccessible in grace"; else echo "not ok $(state "$lease") in grace"; fi
sleep 1
before=$(writes "$device")
sleep 2
check "nothing is written in grace" [ "$(writes "$device")" = "$before" ]
check "fio waits" runs
"$BERTH" lease renew $node "$lease" --duration 600 >/dev/null
check "optimized again after the renewal" within 5 is "$lease" optimized
if wait $fio; then echo "ok fio goes on over grace and renewal, without an error, and verifies"; else
    echo "not ok fio over a grace: $(tail -n 5 "$work/grace" | tr '\n' ' ')"
fi
check "no I/O error was seen" not sh -c "dmesg | grep -i 'I/O error.*$(basename "$device")'"

# Bound again: the old association ends, the host's next one goes on.
id=$(cat /sys/class/nvme/nvme*/cntlid)
bind "$lease" "$host" >/dev/null
reconnected() { [ "$(cat /sys/class/nvme/nvme*/state)" = live ] && [ "$(cat /sys/class/nvme/nvme*/cntlid)" != "$id" ]; }
check "the host connects again after a second LEASE_BIND" within 30 reconnected
within 10 disk "$lease" >/dev/null
check "and reads" dd if="$(disk "$lease")" of=/dev/null bs=4k count=16 iflag=direct

# Revocation.
device=$(disk "$lease")
load revoked 60 "$device"
sleep 3
check "fio runs" runs
free "$lease" >/dev/null
freed=$(millis)
within 20 ended || echo "not ok fio goes on after the end of its lease"
took=$(($(millis) - freed))
if not wait $fio && [ $took -le 1000 ]; then echo "ok fio ends with an error within a second"; else echo "not ok fio ended after $took ms"; fi
check "the disk is gone" within 5 gone "$lease"
check "the kernel gives the controller up" within 15 not controller "$lease"
check "and is not let in again" not connect "$lease" "$host"
stop

# Blocks that fail: two sectors of the device, then all of it, then none.
truncate -s 64M "$work/medium"
loop=$(losetup -f --show "$work/medium")
# medium LINE...: what the device is made of.
medium() {
    if dmsetup info medium >/dev/null 2>&1; then how=reload; else how=create; fi
    printf '%s\n' "$@" | dmsetup $how medium
    if [ $how = reload ]; then dmsetup resume --noflush medium; fi
    dmsetup mknodes medium
}
# at BLOCK OPERATION: reads or writes 4 KiB there, around all caches.
at() {
    if [ "$2" = read ]; then dd if="$device" of=/dev/null bs=4k skip="$1" count=1 iflag=direct; else
        dd if=/dev/zero of="$device" bs=4k seek="$1" count=1 oflag=direct conv=nocreat
    fi
}
good="0 131072 linear $loop 0"
medium "$good"
rm -r "$work/state"
configure /dev/mapper/medium
start
enroll
# All of the region, so that a block of the disk is that of the device.
lease=$(alloc block "64 MiB")
device=$(attach "$lease")
check "a good medium" at 100 write
bad=5000
medium "0 $((bad * 8)) linear $loop 0" "$((bad * 8)) 8 error" "$((bad * 8 + 8)) $((131072 - bad * 8 - 8)) linear $loop $((bad * 8 + 8))"
check "a block that is bad cannot be read" not at $bad read
check "nor written" not at $bad write
check "the kernel is told of the medium" sh -c "dmesg | grep -E 'critical medium error|Unrecovered Read Error'"
check "the one before it can" at $((bad - 1)) read
check "and written" at $((bad - 1)) write
medium "0 131072 error"
check "a device that is gone" not at 100 read
check "writes fail too" not at 100 write
check "the controller stays" controller "$lease"
medium "$good"
check "it is back" at 100 read
check "with what was written" at $bad write
disconnect "$lease" >/dev/null
stop
dmsetup remove medium
losetup -d "$loop"

# No room: holes of the file that others have filled.
mkdir "$work/full"
mount -t tmpfs -o size=40M tmpfs "$work/full"
rm -r "$work/state"
configure "$work/full/disk.img" "32 MiB"
start
enroll
lease=$(alloc block "24 MiB")
device=$(attach "$lease")
check "written while there is room" at 1 write
check "discarded" blkdiscard "$device"
dd if=/dev/zero of="$work/full/filler" bs=1M 2>/dev/null || true
check "a full file system" not at 2000 write
check "is told as such" sh -c "dmesg | grep -iE 'nospace|space allocation|Capacity Exceeded'"
check "reads go on" at 2000 read
rm "$work/full/filler"
check "written once there is room" at 2000 write
disconnect "$lease" >/dev/null
stop
dmesg | grep -i nvme | tail -60 >"$OUT/nvme" || true
