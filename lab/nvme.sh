# For suites of leases that are disks: a node, its leases, and the kernel's initiator. Sourced.
. lab/node.sh
host=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555

# Milliseconds since the boot.
millis() { echo $(($(tr -d . </proc/uptime | cut -d' ' -f1) * 10)); }

# configure BACKING [SIZE]: blocks of it for lease.
configure() {
    node_config <<TOML
[[region]]
name = "blocks"
kind = "block"
size = "${2:-64 MiB}"
backing = "$1"
[[region]]
name = "bytes"
kind = "memory"
size = "1 MiB"
[[binding]]
kind = "nvme"
listen = ["127.0.0.1:4420"]
cpus = [1]
idle = "adaptive"
TOML
}
# A key that the node knows.
enroll() {
    [ -e "$work/.config/berth/key" ] || "$BERTH" key new >/dev/null
    "$BERTH" enroll >/dev/null
}
# alloc TYPE SIZE OPTIONS...: a lease.
alloc() {
    type=$1 size=$2
    shift 2
    "$BERTH" lease alloc $node --type "$type" --size "$size" "$@" --json >"$work/alloc"
    sed 's/.*"lease_id": *"\([0-9a-f]*\)".*/\1/' "$work/alloc"
}
# bind LEASE HOST
bind() { "$BERTH" lease bind $node "$1" --kind nvme --host-nqn "$2"; }
free() { "$BERTH" lease free $node "$1"; }
# connect LEASE HOST OPTIONS...
connect() {
    nqn=nqn.2026-02.io.fabricbios:lease:$1 name=$2
    shift 2
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" -q "$name" -I "${name##*:}" "$@"
}
disconnect() { nvme disconnect -n "nqn.2026-02.io.fabricbios:lease:$1"; }
# disk LEASE: its device; nvme0c0n1 and such are paths to one.
disk() {
    for disk in /sys/block/nvme*; do
        name=$(basename "$disk")
        case $name in *c*) continue ;; esac
        [ -e "$disk/uuid" ] && [ "$(tr -d - <"$disk/uuid")" = "$1" ] && [ -b "/dev/$name" ] && echo "/dev/$name" && return
    done
    return 1
}
gone() { not disk "$1"; }
# controller LEASE: whether the kernel has one, or tries to.
controller() { grep -qs "$1" /sys/class/nvme/*/subsysnqn; }
# verify DISK PATTERN BLOCK SIZE: writes that come back.
verify() {
    fio --name=verify --filename="$1" --rw="$2" --bs="$3" --size="$4" --iodepth=16 --ioengine=libaio --direct=1 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --output="$work/fio"
}
# writes DISK: how many it has had; written DISK N: whether they are more than that.
writes() { awk '{ print $5 }' "/sys/block/$(basename "$1")/stat"; }
written() { [ "$(writes "$1")" -gt "$2" ]; }
# kill_under_writes DISK: the node is killed and started again while fio writes to the disk, which its host connects to by itself.
kill_under_writes() {
    before=$(writes "$1")
    fio --name=kill --filename="$1" --rw=randwrite --bs=4k --size=2M --loops=8 --ioengine=libaio --iodepth=8 --direct=1 \
        --verify=crc32c --verify_fatal=1 --output="$work/kill" &
    fio=$!
    within 20 written "$1" $((before + 100)) || echo "not ok fio writes"
    kill -9 $berth
    wait $berth 2>/dev/null || true
    check "fio is not done when the node is killed" kill -0 $fio
    start
    if wait $fio; then echo "ok fio goes on over a kill -9 of the node, and verifies"; else
        echo "not ok fio over a kill -9: $(tail -n 5 "$work/kill" | tr '\n' ' ')"
    fi
}
# attach LEASE OPTIONS...: bound and connected; its device.
attach() {
    lease=$1
    shift
    bind "$lease" "$host" >/dev/null
    connect "$lease" "$host" "$@" >/dev/null
    within 10 disk "$lease" >/dev/null
    disk "$lease"
}
