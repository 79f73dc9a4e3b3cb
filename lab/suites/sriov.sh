#!/bin/sh
# Leases of the functions of an igb behind an IOMMU: enumerated, leased, handed over, used by DPDK, taken back; holders that
# cling and holders that are ended; functions that go behind the node's back; a node that is killed.
# modules: igb vfio-pci
# devices: iommu igb
# memory: 1536
# build: berth
# peers: vf_frames
# timeout: 600
set -eu

. lab/node.sh
# As many as a sample has, or ten times as many.
rounds=$((ANSWERS / 1000))

for pf in /sys/bus/pci/devices/*; do [ ! -e "$pf/sriov_totalvfs" ] || break; done
pf=$(basename "$pf")
nic=$(ls "/sys/bus/pci/devices/$pf/net")
function() { basename "$(readlink "/sys/bus/pci/devices/$pf/virtfn$1")"; }

# configure POLICY [MORE]
configure() {
    node_config <<TOML
[admin]
listen = "127.0.0.1:5780"
[[region]]
name = "vfs"
kind = "vf"
pf = "$pf"
count = 7
owner = "root"
client_sets = ["mac", "vlan"]
[[binding]]
kind = "sriov"
on_revoke = "$1"
TOML
}
# state NAME: how many functions are in it.
state() {
    python3 -c 'import sys, urllib.request
for line in urllib.request.urlopen("http://127.0.0.1:5780/metrics").read().decode().splitlines():
    if line.startswith("berth_control_sriov_functions{") and "state=\"" + sys.argv[1] + "\"" in line:
        print(int(float(line.split()[-1])))' "$1"
}
is() { [ "$(state "$1")" = "$2" ]; }
whole() { is free 7; }
# as TENANT berth arguments
as() {
    tenant=$1
    shift
    HOME="$work/$tenant" "$BERTH" "$@"
}
alloc() {
    as "$1" lease alloc $node --type net --json >"$work/alloc"
    sed 's/.*"lease_id": *"\([0-9a-f]*\)".*/\1/' "$work/alloc"
}
# bind TENANT LEASE OPTIONS...: the function's address.
bind() {
    tenant=$1 lease=$2
    shift 2
    as "$tenant" lease bind $node "$lease" --kind sriov --json "$@" >"$work/bind" || return 1
    sed 's/.*"function": *"\([^"]*\)".*/\1/' "$work/bind"
}
free() { as "$1" lease free $node "$2"; }

configure fence
start
check "doctor: a card that is down is told" sh -c "'$BERTH' doctor | grep -A1 'sriov *$pf' | grep 'ip link set $nic up'"
ip link set "$nic" up
echo 256 >/proc/sys/vm/nr_hugepages
check "doctor: the card can be leased" sh -c "'$BERTH' doctor | grep '^ok *sriov *$pf *7 of 7'"
check "seven functions, no driver of this host has one" sh -c "[ \$(cat /sys/bus/pci/devices/$pf/sriov_numvfs) = 7 ] &&
    [ \$(cat /sys/bus/pci/devices/$pf/sriov_drivers_autoprobe) = 0 ] && ! ls /sys/bus/pci/devices/$pf/virtfn*/driver"
check "all are free" whole
mkdir "$work/ann" "$work/bob"
for tenant in ann bob; do as $tenant key new >/dev/null && as $tenant enroll >/dev/null; done

ann=$(alloc ann)
check "one is leased" is leased 1
check "and nobody reaches it yet" not test -e "/sys/bus/pci/devices/$(function 0)/driver"
before=$(date +%s%N)
a=$(bind ann "$ann" --mac 02:00:00:00:aa:01 --vlan 42)
echo "bound in $((($(date +%s%N) - before) / 1000000)) ms, the command with its token included"
check "LEASE_BIND tells which" [ "$a" = "$(function 0)" ]
check "ip link shows the address and the VLAN" sh -c "ip link show $nic | grep 'vf 0 .*02:00:00:00:aa:01.*vlan 42.*spoof checking on.*trust off'"
group=$(basename "$(readlink "/sys/bus/pci/devices/$a/iommu_group")")
check "vfio-pci has it, and its node is the owner's alone" sh -c "[ \$(stat -c %U:%a /dev/vfio/$group) = root:600 ]"
check "another tenant does not bind it" not bind bob "$ann"
before=$(date +%s%N)
check "freed" free ann "$ann"
echo "taken back in $((($(date +%s%N) - before) / 1000000)) ms, the command included"
check "nothing of it is left" sh -c "ip link show $nic | grep 'vf 0 ' | grep -v vlan && ! [ -e /dev/vfio/$group ]"
check "and it is free" whole

# Two tenants, a function each: RPC from one to the other.
ann=$(alloc ann) bob=$(alloc bob)
a=$(bind ann "$ann") b=$(bind bob "$bob")
cat >"$work/port.toml" <<TOML
[runtime]
housekeeping_cpus = [0]
[runtime.dpdk]
hugepages = true
[[port]]
name = "nic"
driver = "dpdk"
device = "$a"
address = "10.0.0.2/24"
udp_port = 4700
cpus = [0]
idle = "adaptive"
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
TOML
serve() {
    "$BERTH" run --config "$work/port.toml" >"$OUT/port.log" 2>&1 &
    holder=$!
    within 60 grep -q '^berth ready' "$OUT/port.log"
}
ask() {
    "$BERTH" perf rpc --peer 10.0.0.2:4700 --cpu 1 --warmup 0 --timeout 5000 --window 32 --count "$1" \
        --json "$OUT/perf.json" --port dpdk --device "$b" --address 10.0.0.1/24 && python3 - "$OUT/perf.json" "$1" <<'PY'
import json, sys
counts = json.load(open(sys.argv[1]))["cases"][0]["counts"]
sys.exit(None if counts["answered"] == int(sys.argv[2]) else f"{counts}")
PY
}
check "our DPDK port opens the one" serve
check "two tenants exchange RPC" ask 2000

# The holder keeps it open: cut off at once, answered in time, fenced.
before=$(date +%s)
check "freeing what a holder clings to is answered RESOURCE_FENCED" sh -c "HOME=$work/ann '$BERTH' lease free $node $ann 2>&1 | grep RESOURCE_FENCED"
check "within 6 s" [ $(($(date +%s) - before)) -le 6 ]
check "it is fenced" is fenced 1
check "it is in a VLAN that nobody has" sh -c "ip link show $nic | grep 'vf 0 .*vlan 409[45]'"
check "no answer comes from it any more" not ask 10
check "nobody gets it" sh -c '[ "$1" != "$2" ]' - "$(bind ann "$(alloc ann)")" "$a"
cp "$work/alloc" "$work/second"
kill -9 $holder
wait $holder 2>/dev/null || true
check "when its holder is gone it is taken back" within 20 is fenced 0
free bob "$bob" && free ann "$(sed 's/.*"lease_id": *"\([0-9a-f]*\)".*/\1/' "$work/second")"
check "the pool is whole" whole

# A node that is killed: the holder goes on, and the lease with it.
ann=$(alloc ann) a=$(bind ann "$ann") bob=$(alloc bob) b=$(bind bob "$bob")
sed -i "s/^device = .*/device = \"$a\"/" "$work/port.toml"
serve || echo "not ok a holder again"
kill -9 $berth
wait $berth 2>/dev/null || true
configure kill
start
check "after kill -9 both are bound" is bound 2
check "and the holder's traffic went on" ask 500
# In a slow guest a program with huge pages takes its time to end, and the answer with it.
free ann "$ann" || true
ended() { ! kill -0 $holder 2>/dev/null || grep -q '^State:.Z' /proc/$holder/status; }
check "a holder is ended where that is the policy" within 30 ended
check "and its function is taken back" within 10 is bound 1
wait $holder 2>/dev/null || true
free bob "$bob"
check "the pool is whole after that" within 5 whole

# Killed somewhere amid a hand-over.
for wait in 0.05 0.1 0.2 0.3 0.5; do
    ann=$(alloc ann)
    bind ann "$ann" >/dev/null 2>&1 &
    binding=$!
    sleep $wait
    kill -9 $berth
    wait $berth 2>/dev/null || true
    kill $binding 2>/dev/null || true
    wait $binding 2>/dev/null || true
    start
    free ann "$ann" >/dev/null 2>&1 || true
done
check "the pool is whole after five kills amid hand-overs" within 10 whole

begun=$(date +%s%N)
for _ in $(seq "$rounds"); do
    ann=$(alloc ann)
    bind ann "$ann" >/dev/null && free ann "$ann" >/dev/null || echo "not ok a round"
done
echo "$rounds rounds of alloc, bind and free: $((($(date +%s%N) - begun) / 1000000)) ms"
check "the pool is whole after $rounds rounds" whole

# What passes of frames that say they are somebody else's, and of those of another VLAN.
# passed SOURCE: how many of a hundred frames the other function gets.
passed() {
    "$PEERS/vf_frames" "$b" count >"$OUT/count" 2>&1 &
    counter=$!
    within 60 grep -q ^ready "$OUT/count" || return 1
    "$PEERS/vf_frames" "$a" send "$1" 02:00:00:00:bb:01 100 >"$OUT/send" 2>&1 || true
    sleep 1
    kill $counter
    wait $counter || true
    sed -n 's/^came //p' "$OUT/count"
}
ann=$(alloc ann) bob=$(alloc bob)
a=$(bind ann "$ann" --mac 02:00:00:00:aa:01) b=$(bind bob "$bob" --mac 02:00:00:00:bb:01)
own=$(passed 02:00:00:00:aa:01) spoofed=$(passed 02:00:00:00:cc:01)
a=$(bind ann "$ann" --mac 02:00:00:00:aa:01 --vlan 42)
foreign=$(passed 02:00:00:00:aa:01)
echo "of 100 frames the other function got: own address $own, spoofed $spoofed, of another VLAN $foreign"
check "frames of its own address pass" [ "$own" = 100 ]
check "those of another VLAN do not" [ "$foreign" = 0 ]
free ann "$ann" && free bob "$bob"

# Somebody takes the functions away, and makes them again.
ann=$(alloc ann) a=$(bind ann "$ann")
echo 0 >"/sys/bus/pci/devices/$pf/sriov_numvfs"
check "a function that is gone is noticed" within 5 is bound 0
check "and not granted" not as bob lease alloc $node --type net
free ann "$ann"
echo 7 >"/sys/bus/pci/devices/$pf/sriov_numvfs"
ann=$(alloc ann)
check "those that came back are" bind ann "$ann"
free ann "$ann"
check "the pool is whole in the end" whole
stop
