#!/bin/sh
# What becomes of a disk when its lease expires, is renewed, bound again or ends: as the kernel's initiator sees it, with
# native multipath, and whoever uses the disk.
# modules: nvme_tcp
# memory: 1024
# build: berth
# timeout: 200
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
dmesg | grep -i nvme | tail -60 >"$OUT/nvme" || true
