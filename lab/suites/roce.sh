#!/bin/sh
# RoCEv2 in software against the kernel's: an independent client of unreliable connections, on a soft-RoCE device, asks a
# port with transport = "roce" at the other end of a cable.
# modules: crc32_generic rdma_rxe
# memory: 1536
# build: berth
# peers: uc_rpc
# timeout: 400
set -eu

# The other end has no address of the kernel's: it is the port's.
ip link add roce0 type veth peer name roce1
sysctl -qw net.ipv6.conf.roce1.disable_ipv6=1
ip addr add 10.9.0.1/24 dev roce0
ip addr add fd09::1/64 dev roce0 nodad
for n in 0 1; do ip link set roce$n up mtu 1500; done
rdma link add rxe0 type rxe netdev roce0
gid() { grep -l "$1" /sys/class/infiniband/rxe0/ports/1/gids/* | head -1 | sed 's/.*\///'; }
until [ -n "$(gid fd09)" ]; do sleep 0.1; done

# start FORM ROCE-LINES: a port whose peers come to 127.0.0.1:4791
start() {
    cat >/run/berth.toml <<TOML
[runtime]
housekeeping_cpus = [1]
[runtime.dpdk]
hugepages = false
memory_mb = 128
[[port]]
name = "d"
driver = "dpdk"
device = "net_af_packet0,iface=roce1"
address = ["10.9.0.2/24", "fd09::2/64"]
transport = "roce"
rendezvous = "127.0.0.1:4791"
rendezvous_form = "$1"
cpu = 0
[port.rpc]
slot_size = 3072
[port.roce]
$2
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
TOML
    "$BERTH" run --config /run/berth.toml >/run/berth.out 2>"$OUT/$1.err" &
    berth=$!
    until grep -q "^berth ready" /run/berth.out || ! kill -0 $berth; do sleep 0.1; done
}

# stop NAME: what was counted
stop() {
    kill -TERM $berth
    wait $berth || echo "not ok $1: berth ended with $?"
    sed -n 's/^berth stopped //p' /run/berth.out >"$OUT/$1.json"
}

# expect NAME COUNTER VALUE
expect() {
    seen=$(grep -o "\"$2\":[0-9]*" "$OUT/$1.json" | head -1)
    if [ "$seen" = "\"$2\":$3" ]; then echo "ok $1: $2 is $3"; else echo "not ok $1: $2 is to be $3: $seen"; fi
}

# ask NAME GID FORM COUNT [MORE...]
ask() {
    name=$1 gid=$2 form=$3 count=$4
    shift 4
    if taskset -c 1 "$PEERS/uc_rpc" rxe0 "$gid" 127.0.0.1 4791 "$form" "$count" "$@" >"$OUT/$name" 2>&1; then
        echo "ok $name: $(tail -1 "$OUT/$name")"
    else
        echo "not ok $name: $(tail -1 "$OUT/$name")"
    fi
}

start berth 'stride = 3072'
ask rpc-ipv4 "$(gid 0a09)" berth "$ANSWERS"
ask rpc-ipv6 "$(gid fd09)" berth 2000
stop berth
for counter in roce_wrong_rkey roce_out_of_range slot_overruns; do expect berth $counter 20; done
for counter in psn_gaps roce_bad_icrc roce_stale_psn roce_malformed slot_mismatches; do expect berth $counter 0; done
expect berth calls_rpc_increment $((ANSWERS + 2000))
expect berth peers_left 2

start host-api 'slots = 4
stride = 1024
base = 0
immediate = "psn24"'
ask rpc-host-api "$(gid 0a09)" host-api 2000 4 1024 psn24
ask rpc-host-api-again "$(gid 0a09)" host-api 2000 4 1024 psn24
stop host-api
expect host-api calls_rpc_increment 4000
expect host-api peers_left 1
expect host-api psn_gaps 0
