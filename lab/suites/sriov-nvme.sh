#!/bin/sh
# Leases of the functions of an NVMe controller behind an IOMMU: made, handed over with a namespace each, read and written over
# VFIO, taken back and erased; a holder that clings; a node that is killed.
# modules: nvme vfio-pci
# devices: iommu nvme-sriov
# build: berth
# peers: vfio_nvme
# timeout: 900
set -eu

region='count = 2
namespace = 2'
. lab/functions.sh
controller=/dev/$(ls "/sys/bus/pci/devices/$pf/nvme")

# use FUNCTION NAMESPACE read|write [TEXT]
use() { "$PEERS/vfio_nvme" "$@"; }
says() {
    wanted=$1
    shift
    "$@" >"$OUT/use" && grep -qx "$wanted" "$OUT/use"
}
online() { [ "$(nvme list-secondary "$controller" | grep -c Online)" = "$1" ]; }
# Controllers that have a namespace.
has() { nvme list-ctrl "$controller" -n "$1" | grep -c '\]:' || true; }

check "doctor: the controller can be leased" sh -c "'$BERTH' doctor | grep '^ok *sriov *$pf *0 of 4.*namespace'"
echo "the host's own" | dd of="${controller}n1" conv=sync status=none
configure fence
start
check "two functions, no driver of this host has one" sh -c "[ \$(cat /sys/bus/pci/devices/$pf/sriov_numvfs) = 2 ] &&
    ! ls /sys/bus/pci/devices/$pf/virtfn*/driver"
check "all are free" whole
check "and none is online" online 0
tenants

ann=$(alloc ann)
check "a controller has no address" sh -c "HOME=$work/ann '$BERTH' lease bind $node $ann --kind sriov --mac 02:00:00:00:00:01 2>&1 |
    grep INVALID_PARAMS"
nvme attach-ns "$controller" -n 3 -c 1 >/dev/null
check "a function that has another namespace is not handed over" sh -c "HOME=$work/ann '$BERTH' lease bind $node $ann --kind sriov 2>&1 |
    grep RESOURCE_BUSY && grep 'nvme detach-ns -n 3 -c 1' $OUT/berth.log"
nvme detach-ns "$controller" -n 3 -c 1 >/dev/null
before=$(date +%s%N)
a=$(bind ann "$ann")
echo "bound in $((($(date +%s%N) - before) / 1000000)) ms, the command with its token included"
check "LEASE_BIND tells which" [ "$a" = "$(function 0)" ]
check "nvme-cli sees it online" online 1
check "and its namespace attached to it alone" [ "$(has 2)" = 1 ]
check "the tenant writes over VFIO" use "$a" 2 write "of ann"
check "and reads it again" says "text of ann" use "$a" 2 read
check "it has this namespace and no other" grep -qx "namespaces 2" "$OUT/use"
bob=$(alloc bob) b=$(bind bob "$bob")
check "another tenant has another namespace" says "namespaces 3" use "$b" 3 read
check "with nothing in it" grep -qx "text " "$OUT/use"
check "he does not reach the first one's" not use "$b" 2 read
before=$(date +%s%N)
check "freed" free ann "$ann"
echo "taken back in $((($(date +%s%N) - before) / 1000000)) ms, the command included"
check "it is offline, its namespace is nobody's" sh -c "[ $(has 2) = 0 ] && ! [ -e /sys/bus/pci/devices/$a/driver ]"
check "the other one goes on" says "text " use "$b" 3 read
free bob "$bob"
check "the pool is whole" whole
ann=$(alloc ann) a=$(bind ann "$ann")
check "the next holder finds the namespace erased" says "text " use "$a" 2 read

# A holder that clings to it.
"$PEERS/vfio_nvme" "$a" 2 hold >"$OUT/hold" 2>&1 &
holder=$!
within 20 grep -q ready "$OUT/hold" || echo "not ok a holder"
check "freeing what a holder clings to is answered RESOURCE_FENCED" sh -c "HOME=$work/ann '$BERTH' lease free $node $ann 2>&1 |
    grep RESOURCE_FENCED"
check "it is fenced" is fenced 1
check "and offline" online 0
check "its holder gets no answer any more" within 10 grep -q silent "$OUT/hold"
kill -9 $holder
wait $holder 2>/dev/null || true
check "when its holder is gone it is taken back" within 20 whole

# A node that is killed: the holder goes on, and the lease with it.
ann=$(alloc ann) a=$(bind ann "$ann")
"$PEERS/vfio_nvme" "$a" 2 hold >"$OUT/hold" 2>&1 &
holder=$!
within 20 grep -q ready "$OUT/hold" || echo "not ok a holder again"
kill -9 $berth
wait $berth 2>/dev/null || true
configure kill
start
check "after kill -9 it is bound" is bound 1
sleep 3
check "and its holder was answered all the time" not grep -q silent "$OUT/hold"
free ann "$ann" || true
ended() { ! kill -0 $holder 2>/dev/null || grep -q '^State:.Z' /proc/$holder/status; }
check "a holder is ended where that is the policy" within 30 ended
wait $holder 2>/dev/null || true
check "and the pool is whole" within 20 whole

kills
check "and none is online after that" online 0
rounds
check "the host's own namespace is as it was" sh -c "head -c 14 ${controller}n1 | grep -qx \"the host's own\""
check "and it has no other" sh -c "! ls ${controller}n2 ${controller}n3"
stop
