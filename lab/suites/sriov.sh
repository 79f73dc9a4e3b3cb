#!/bin/sh
# Leases of the functions of an igb behind an IOMMU: enumerated, leased, handed over, used by DPDK and by testpmd, taken back;
# holders that cling and holders that are ended; functions that go behind the node's back; a node that is killed.
# modules: igb vfio-pci
# devices: iommu igb
# memory: 1536
# build: berth
# peers: vf_frames
# timeout: 900
set -eu

region='count = 7
client_sets = ["mac", "vlan"]'
. lab/functions.sh
nic=$(ls "/sys/bus/pci/devices/$pf/net")
# The host's own frames are not to be counted.
sysctl -qw "net.ipv6.conf.$nic.disable_ipv6=1"

configure fence
start
check "doctor: a card that is down is told" sh -c "'$BERTH' doctor | grep -A1 'sriov *$pf' | grep 'ip link set $nic up'"
ip link set "$nic" up
echo 256 >/proc/sys/vm/nr_hugepages
check "doctor: the card can be leased" sh -c "'$BERTH' doctor | grep '^ok *sriov *$pf *7 of 7'"
check "seven functions, no driver of this host has one" sh -c "[ \$(cat /sys/bus/pci/devices/$pf/sriov_numvfs) = 7 ] &&
    [ \$(cat /sys/bus/pci/devices/$pf/sriov_drivers_autoprobe) = 0 ] && ! ls /sys/bus/pci/devices/$pf/virtfn*/driver"
check "all are free" whole
tenants

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

kills
rounds

# What passes to the other tenant, whose testpmd sends each frame back: frames of the sender's own address, of another's, and
# of another VLAN.
# exchange SOURCE: how many of a hundred frames testpmd gets, and how many come back.
exchange() {
    rm -f "$work/over"
    {
        echo start
        until [ -e "$work/over" ]; do sleep 0.1; done
        printf 'stop\nquit\n'
    } | dpdk-testpmd -l 0,1 -a "$b" --in-memory --file-prefix testpmd -m 64 -- -i --forward-mode=macswap \
        --total-num-mbufs=4096 >"$OUT/testpmd" 2>&1 &
    testpmd=$!
    within 60 grep -q 'macswap packet forwarding' "$OUT/testpmd" || echo "not ok testpmd starts" >&2
    "$PEERS/vf_frames" "$a" "$1" 02:00:00:00:bb:01 100 >"$OUT/frames" 2>&1 || true
    touch "$work/over"
    wait $testpmd || true
    echo "$(sed -n 's/^ *RX-packets: \([0-9]*\) .*/\1/p' "$OUT/testpmd" | head -n 1) $(sed -n 's/^back //p' "$OUT/frames")"
}
ann=$(alloc ann) bob=$(alloc bob)
a=$(bind ann "$ann" --mac 02:00:00:00:aa:01) b=$(bind bob "$bob" --mac 02:00:00:00:bb:01)
own=$(exchange 02:00:00:00:aa:01) spoofed=$(exchange 02:00:00:00:cc:01)
a=$(bind ann "$ann" --mac 02:00:00:00:aa:01 --vlan 42)
foreign=$(exchange 02:00:00:00:aa:01)
b=$(bind bob "$bob" --mac 02:00:00:00:bb:01 --vlan 42)
same=$(exchange 02:00:00:00:aa:01)
echo "of 100 frames testpmd got, and sent back: own address $own, spoofed $spoofed, of another VLAN $foreign, of its VLAN $same"
check "frames of its own address pass, and come back" [ "$own" = "100 100" ]
check "those of another VLAN do not" [ "$foreign" = "0 0" ]
check "those of its own VLAN do" [ "$same" = "100 100" ]
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
