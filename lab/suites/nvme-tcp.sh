#!/bin/sh
# Leases of blocks as disks: the kernel's NVMe/TCP initiator and nvme-cli, as any host has them.
# modules: nvme_tcp ext4 xfs
# memory: 1024
# build: berth
# timeout: 400
set -eu

. lab/nvme.sh
other=nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555

configure ram
start
check "the ready line names the transport" grep -q '"nvme-tcp":"127.0.0.1:4420"' "$work/ready"
enroll

lease=$(alloc block "32 MiB")
check "a lease of blocks names the endpoint" grep -q nvme-tcp=127.0.0.1:4420 "$work/alloc"
check "a lease of memory is no disk" not bind "$(alloc memory "4 KiB")" "$host"
check "and does not name it" not grep -q nvme-tcp "$work/alloc"
check "a host has a name" not bind "$lease" "somebody"
check "LEASE_BIND prints the command" sh -c "'$BERTH' lease bind $node $lease --kind nvme --host-nqn $host |
    grep -q 'nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-02.io.fabricbios:lease:$lease -q $host'"
check "the host discovers its lease" sh -c "nvme discover -t tcp -a 127.0.0.1 -s 4420 -q $host -I ${host##*:} |
    grep -q 'subnqn: *nqn.2026-02.io.fabricbios:lease:$lease'"
check "another host discovers nothing of it" sh -c "! nvme discover -t tcp -a 127.0.0.1 -s 4420 -q $other -I ${other##*:} |
    grep -q $lease"
check "another host is not let in" not connect "$lease" "$other"

for digests in "" -g -G "-g -G"; do
    check "connected ${digests:-without digests}" connect "$lease" "$host" $digests
    if within 10 disk "$lease" >/dev/null; then echo "ok a disk appears"; else echo "not ok a disk appears"; continue; fi
    device=$(disk "$lease")
    check "it has the lease's size" [ "$(blockdev --getsize64 "$device")" = $((32 << 20)) ]
    check "random writes of 4 KiB come back" verify "$device" randwrite 4k 4M
    check "random writes of 512 bytes come back" verify "$device" randwrite 512 256k
    check "writes of 256 KiB come back" verify "$device" write 256k 4M
    check "disconnected" disconnect "$lease"
    within 5 gone "$lease" || echo "not ok the disk is gone"
done

check "connected with two queues" connect "$lease" "$host" -i 2
within 10 disk "$lease" >/dev/null
device=$(disk "$lease")
mkdir "$work/mnt"
dd if=/dev/urandom of="$work/file" bs=1M count=8 2>/dev/null
# files MKFS FSCK: a file system is made, filled, checked and read.
files() {
    check "$1" $1 "$device"
    check "mounted" mount "$device" "$work/mnt"
    check "a file is written" sh -c "cp $work/file $work/mnt/file && sync"
    check "unmounted" umount "$work/mnt"
    check "$2" $2 "$device"
    mount "$device" "$work/mnt"
    check "the file is as it was" cmp "$work/file" "$work/mnt/file"
    umount "$work/mnt"
}
files "mkfs.ext4 -q -F" "fsck.ext4 -fn"
# It makes none of less than 300 MiB but for its own tests.
TEST_DIR=1 TEST_DEV=1 QA_CHECK_FS=1 files "mkfs.xfs -q -f" "xfs_repair -n"

echo "the lease's own bytes" >"$work/text"
dd if="$work/text" of="$device" bs=512 count=1 conv=sync,nocreat oflag=direct 2>/dev/null
check "what the disk holds is in the lease" sh -c \
    "'$BERTH' lease read $lease --len 512 --via quic | head -c 22 | cmp - $work/text"

# The end of the lease while it is used.
fio --name=end --filename="$device" --rw=randwrite --bs=4k --size=8M --time_based --runtime=60 --ioengine=libaio \
    --direct=1 --output="$work/end" 2>/dev/null &
fio=$!
sleep 2
"$BERTH" lease free $node "$lease" >/dev/null
freed=$(cut -d. -f1 /proc/uptime)
if within 10 not kill -0 $fio 2>/dev/null && not wait $fio; then echo "ok fio ends with an error"; else echo "not ok fio goes on"; fi
check "the disk is gone" within 10 gone "$lease"
check "it is not let in again" not connect "$lease" "$host"
stop

# A restart amid writes, on a file: the host connects again by itself and finds what it wrote.
configure "$work/disk.img"
truncate -s 64M "$work/disk.img"
start
lease=$(alloc block "16 MiB")
bind "$lease" "$host" >/dev/null
connect "$lease" "$host" >/dev/null
within 10 disk "$lease" >/dev/null
device=$(disk "$lease")
kill_under_writes "$device"
check "disconnected" nvme disconnect-all
stop
cp "$work/ready" "$OUT/stopped"
dmesg | grep -i nvme | tail -40 >"$OUT/nvme" || true
