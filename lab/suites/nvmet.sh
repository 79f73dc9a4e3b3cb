#!/bin/sh
# Leases of blocks by the kernel's own NVMe target, over RDMA and to this very host.
# modules: crc32_generic rdma_rxe loop nvmet nvmet_rdma nvme_loop nvme_rdma nvme_tcp
# memory: 1024
# build: berth
# timeout: 250
set -eu

. lab/rxe.sh
. lab/nvme.sh
other=nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555
tree=/sys/kernel/config/nvmet

mount -t configfs none /sys/kernel/config 2>/dev/null || true
truncate -s 64M "$work/disk.img"
node_config <<TOML
[[region]]
name = "blocks"
kind = "block"
size = "64 MiB"
backing = "$work/disk.img"
[admin]
listen = "127.0.0.1:5780"
[[binding]]
kind = "nvme"
listen = ["127.0.0.1:4420"]
cpus = [1]
idle = "adaptive"
[[binding]]
kind = "nvme"
provider = "kernel"
transport = "rdma"
listen = ["10.9.0.1:4420"]
[[binding]]
kind = "nvme"
provider = "kernel"
transport = "loop"
TOML

# bind LEASE HOST TRANSPORT
bind() { "$BERTH" lease bind $node "$1" --kind nvme --host-nqn "$2" --transport "$3"; }
# connect LEASE HOST TRANSPORT
connect() {
    case $3 in
    rdma) at="-a 10.9.0.1 -s 4420 -c 1" ;;
    tcp) at="-a 127.0.0.1 -s 4420" ;;
    loop) at= ;;
    esac
    nvme connect -t "$3" $at -n "nqn.2026-02.io.fabricbios:lease:$1" -q "$2" -I "${2##*:}" -i 1
}
# Nothing of ours is in the kernel.
clean() { not sh -c "ls $tree/subsystems $tree/hosts | grep -q 'nqn\.' || grep -qs disk.img /sys/block/loop*/loop/backing_file"; }

start
check "the ready line names the address over RDMA" grep -q '"nvme-rdma":"10.9.0.1:4420"' "$work/ready"
enroll

for over in rdma loop; do
    spare=$(alloc block "8 MiB")
    lease=$(alloc block "16 MiB")
    check "bound over $over" bind "$lease" "$host" $over
    cp "$work/out" "$work/bound"
    check "LEASE_BIND prints the command for $over" \
        grep -q "nvme connect -t $over .*-n nqn.2026-02.io.fabricbios:lease:$lease" "$work/bound"
    check "another host is not let in over $over" not connect "$lease" "$other" $over
    check "connected over $over" connect "$lease" "$host" $over
    if within 10 disk "$lease" >/dev/null; then echo "ok a disk appears"; else echo "not ok a disk appears"; continue; fi
    device=$(disk "$lease")
    check "it has the lease's size" [ "$(blockdev --getsize64 "$device")" = $((16 << 20)) ]
    check "random writes of 4 KiB come back over $over" verify "$device" randwrite 4k 1M
    check "writes of 128 KiB come back over $over" verify "$device" write 128k 2M

    echo "the lease's own bytes over $over" >"$work/text"
    dd if="$work/text" of="$device" bs=512 count=1 conv=sync,nocreat oflag=direct 2>/dev/null
    check "what the disk holds is in the lease" sh -c \
        "'$BERTH' lease read $lease --len 512 --via quic | head -c 27 | cmp -n 27 - $work/text"
    check "and not in another's" sh -c "! '$BERTH' lease read $spare --len 512 --via quic | grep -q own"

    check "bound again over $over, to another host" bind "$lease" "$other" $over
    check "the disk of the first is gone" within 15 gone "$lease"
    check "which is not let in" not connect "$lease" "$host" $over
    check "bound again over $over" bind "$lease" "$host" $over
    check "connected again over $over" connect "$lease" "$host" $over
    within 10 disk "$lease" >/dev/null || { echo "not ok a disk appears again"; continue; }
    device=$(disk "$lease")
    check "with what it held" sh -c "dd if=$device bs=512 count=1 iflag=direct 2>/dev/null | head -c 27 | cmp -n 27 - $work/text"

    # The end of the lease while it is used.
    fio --name=end --filename="$device" --rw=randwrite --bs=4k --size=8M --time_based --runtime=60 --ioengine=libaio \
        --direct=1 --output="$work/end" 2>/dev/null &
    fio=$!
    sleep 1
    check "the lease is freed under writes over $over" timeout 30 "$BERTH" lease free $node "$lease"
    check "nothing of it is left in the kernel" clean
    # Over RDMA the host tries to connect again until it is told to disconnect, and I/O waits for that.
    disconnect "$lease" >/dev/null 2>&1 || true
    if within 30 not kill -0 $fio 2>/dev/null && not wait $fio; then echo "ok fio ends with an error"; else
        echo "not ok fio goes on: $(tail -n 3 "$work/end" | tr '\n' ' ')"
    fi
    "$BERTH" lease free $node "$spare" >/dev/null
done

# The end comes from Berth's clock.
lease=$(alloc block "1 MiB" --duration 8 --grace 60)
check "a lease of eight seconds is bound" bind "$lease" "$host" loop
check "a lease that expires leaves the kernel" within 12 clean

# Berth's own target beside the kernel's: the transport that the client asks for is the one that it gets.
lease=$(alloc block "8 MiB")
spare=$(alloc block "8 MiB")
bind "$spare" "$host" loop >/dev/null
check "bound over tcp" bind "$lease" "$host" tcp
check "connected over tcp, to Berth's own target" connect "$lease" "$host" tcp
within 10 disk "$lease" >/dev/null
status() { "$BERTH" status | grep -qE "$1"; }
check "the status tells of hosts, controllers and queues" within 3 status "^berth +1 +1 +1 +1 "
check "and of the kernel's leases" within 3 status "^kernel +1$"
"$BERTH" top --once >"$OUT/top"
disconnect "$lease" >/dev/null
"$BERTH" lease free $node "$lease" >/dev/null
"$BERTH" lease free $node "$spare" >/dev/null
"$BERTH" doctor --config "$work/berth.toml" >"$OUT/doctor"
check "the doctor finds what the kernel's target needs" not grep -E "^(missing|warn) +(nvme-rdma|nvmet|nvme-loop|nvme provider|loop)" "$OUT/doctor"
check "the doctor names the kernel's ports" grep -q "nvme target .*rdma 10.9.0.1:4420 with 0 subsystems" "$OUT/doctor"

# A kill amid writes: the kernel goes on by itself until the next start, which takes all away and binds it again.
lease=$(alloc block "16 MiB")
bind "$lease" "$host" rdma >/dev/null
connect "$lease" "$host" rdma >/dev/null
within 10 disk "$lease" >/dev/null
device=$(disk "$lease")
kill_under_writes "$device"
check "the lease is bound again after a kill -9" within 5 test -e "$tree/subsystems/nqn.2026-02.io.fabricbios:lease:$lease"
stop
check "a node that stops leaves nothing in the kernel" clean
nvme disconnect-all
dmesg | grep -i nvme | tail -60 >"$OUT/nvme" || true
