# For suites of leases that are disks: a node, its leases, and the kernel's initiator. Sourced.
. lab/node.sh
host=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555

# Milliseconds since the boot.
millis() { echo $(($(tr -d . </proc/uptime | cut -d' ' -f1) * 10)); }

# configure BACKING [SIZE]: blocks of it for lease.
configure() {
    cat >"$work/berth.toml" <<TOML
[runtime]
housekeeping_cpus = [0]
[node]
state_dir = "$work/state"
[control]
udp = "127.0.0.1:5700"
quic = "127.0.0.1:5701"
enroll = "open"
[[control.policy]]
presenter = "*"
perms = ["read", "write", "alloc", "revoke"]
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
# attach LEASE OPTIONS...: bound and connected; its device.
attach() {
    lease=$1
    shift
    bind "$lease" "$host" >/dev/null
    connect "$lease" "$host" "$@" >/dev/null
    within 10 disk "$lease" >/dev/null
    disk "$lease"
}
