#!/bin/sh
# Leases of blocks as disks: the kernel's NVMe/TCP initiator and nvme-cli, as any host has them.
# modules: nvme_tcp ext4 xfs
# memory: 1024
# build: berth
# timeout: 400
set -eu

work=$(mktemp -d)
export HOME="$work"
host=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
other=nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555
hostid=11111111-2222-3333-4444-555555555555

# Runs a check; the end of what it prints is shown where it fails.
check() {
    what=$1
    shift
    if "$@" >"$work/out" 2>&1; then echo "ok $what"; else echo "not ok $what: $(tail -n 3 "$work/out" | tr '\n' ' ')"; fi
}
not() { ! "$@"; }
within() {
    tries=$(($1 * 10))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

truncate -s 64M "$work/disk.img"
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
name = "ram"
kind = "block"
size = "64 MiB"
[[region]]
name = "file"
kind = "block"
backing = "$work/disk.img"
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
start() {
    "$BERTH" run --config "$work/berth.toml" >"$work/ready" 2>>"$OUT/berth.log" &
    berth=$!
    until grep -q "^berth ready" "$work/ready"; do
        kill -0 $berth 2>/dev/null || { echo "not ok berth starts: $(tail -n 1 "$OUT/berth.log")"; exit 0; }
        sleep 0.1
    done
}
start
check "the ready line names the transport" grep -q '"nvme-tcp":"127.0.0.1:4420"' "$work/ready"
node="--udp --node 127.0.0.1:5700"
"$BERTH" key new >/dev/null
"$BERTH" enroll $node >/dev/null

# alloc SIZE [RESOURCE-NAME]: a lease of blocks.
alloc() { "$BERTH" lease alloc $node --type block --size "$1" --json | sed 's/.*"lease_id": *"\([0-9a-f]*\)".*/\1/'; }
bind() { "$BERTH" lease bind $node "$1" --kind nvme --host-nqn "$host" --json; }
connect() { nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "nqn.2026-02.io.fabricbios:lease:$1" -q "$host" -I $hostid "${@:2}"; }
# disk LEASE: its device.
disk() {
    for uuid in /sys/block/nvme*/uuid; do
        [ -e "$uuid" ] && [ "$(tr -d '-' <"$uuid")" = "$1" ] && echo "/dev/$(basename "$(dirname "$uuid")")" && return
    done
    return 1
}
