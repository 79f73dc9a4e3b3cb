#!/bin/sh
# Blocks that fail under a lease: what the kernel's initiator is told of a bad medium, a device that is gone, a full disk.
# modules: nvme_tcp loop dm_mod
# memory: 1024
# build: berth
# timeout: 200
set -eu

. lab/nvme.sh

# Two sectors of the device fail, then all of it, then none.
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
