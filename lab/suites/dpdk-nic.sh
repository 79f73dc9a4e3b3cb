#!/bin/sh
# The dpdk port on PCI network cards behind an IOMMU. `berth doctor` leads from cards that the kernel has, or nobody, to
# working ports: its commands are run as they are. Then every card answers as many requests as are wanted, and others from
# a GPU in software that reads them in the card's buffers.
# modules: e1000e igb virtio_net
# devices: iommu virtio-net-pair vmxnet3-pair e1000e-pair igb virtio-net-mq-pair
# memory: 1536
# build: berth
# timeout: 560
set -eu

verdict() {
    what=$1
    shift
    if "$@"; then echo "ok $what"; else echo "not ok $what"; fi
}

# Every card of a model, by its PCI ids.
cards() {
    for card in /sys/bus/pci/devices/*; do
        [ "$(cat "$card/vendor" "$card/device" | tr -d '\n')" != "$1" ] || basename "$card"
    done
}

# Two cards stay with the kernel: the igb that serves its functions, and one end of the wire with several queues.
physical=$(cards 0x80860x10c9)
ip link set "$(ls "/sys/bus/pci/devices/$physical/net")" up
echo 2 >"/sys/bus/pci/devices/$physical/sriov_numvfs"
set -- $(cards 0x1af40x1041)
virtio="$1 $2" multi_queue=$3
kernel=$(ls "/sys/bus/pci/devices/$4"/virtio*/net)
ip addr add 10.0.0.1/24 dev "$kernel"
ip link set "$kernel" up

# The mends of what keeps a card from DPDK, in the doctor's order.
mends() {
    "$BERTH" doctor --json >"$OUT/$1.json"
    python3 - "$OUT/$1.json" <<'PY'
import json, sys
for finding in json.load(open(sys.argv[1])):
    what = finding["what"]
    if what in ("iommu", "vfio-pci", "hugepages 2M") or what.startswith("dpdk 0"):
        if "mend" in finding:
            print(finding["mend"])
PY
}

# configure NAME DEVICE CPUS HUGEPAGES
configure() {
    cat >"$OUT/$1.toml" <<TOML
[runtime]
housekeeping_cpus = [0]
[runtime.dpdk]
hugepages = $4
[[port]]
name = "nic"
driver = "dpdk"
device = "$2"
address = "10.0.0.2/24"
udp_port = 4700
cpus = [$3]
idle = "adaptive"
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
TOML
}

refused() {
    configure refused "$1" 0 false
    ! "$BERTH" run --config "$OUT/refused.toml" >"$OUT/refused.log" 2>&1 && grep "bound to vfio-pci" "$OUT/refused.log"
}
verdict "a card that the kernel has is refused, with what would be right" refused "$multi_queue"

mends before >"$OUT/mends"
cat "$OUT/mends"
verdict "doctor: vfio-pci, huge pages and nine cards to mend" [ "$(wc -l <"$OUT/mends")" = 11 ]
verdict "doctor: its commands run" sh -eu "$OUT/mends"
mends after >"$OUT/mends-left"
verdict "doctor: nothing left to mend" [ ! -s "$OUT/mends-left" ]

# serves NAME COMMAND: berth runs by NAME's configuration while COMMAND does.
serves() {
    name=$1
    shift
    "$BERTH" run --config "$OUT/$name.toml" >"$OUT/$name.log" 2>&1 &
    berth=$!
    until grep -q '^berth ready' "$OUT/$name.log"; do
        kill -0 $berth 2>/dev/null || { cat "$OUT/$name.log"; return 1; }
        sleep 0.1
    done
    "$@" >"$OUT/$name.perf" 2>&1 || { cat "$OUT/$name.perf"; kill $berth; return 1; }
    kill $berth
    wait $berth
}

# A port on this card, polled by these CPUs, answers ANSWERS requests of `emulate`, every CPU some of them.
answers() {
    name=$1
    configure "$name" "$2" "$3" true
    shift 3
    serves "$name" "$@" && python3 - "$OUT/$name.log" "$ANSWERS" <<'PY'
import json, sys
stopped = next(line for line in open(sys.argv[1]) if line.startswith("berth stopped "))
lanes = [lane for lcore in json.loads(stopped[14:])["lcores"] for lane in lcore["lanes"]]
answered = [lane["service"]["answered"] for lane in lanes]
sys.exit(None if sum(answered) == int(sys.argv[2]) and all(answered) else f"answers of each queue: {answered}")
PY
}

# This many requests, of which none may be lost, refused or answered wrong.
emulate() {
    count=$1
    shift
    "$BERTH" perf rpc --peer 10.0.0.2:4700 --cpu 1 --warmup 0 --timeout 5000 --count "$count" \
        --json "$OUT/perf.json" "$@" && python3 - "$OUT/perf.json" "$count" <<'PY'
import json, sys
counts = json.load(open(sys.argv[1]))["cases"][0]["counts"]
sys.exit(None if counts["answered"] == int(sys.argv[2]) else f"{counts}")
PY
}

from_card() {
    emulate "$ANSWERS" --window 192 --port dpdk --device "$1" --address 10.0.0.1/24
}

# Through the kernel, from ten ports, as each flow goes to one queue.
from_kernel() {
    ip neigh replace 10.0.0.2 lladdr 02:00:00:00:05:00 dev "$kernel"
    for port in 0 1 2 3 4 5 6 7 8 9; do
        emulate $((ANSWERS / 10)) --window 192 --port udp --bind 10.0.0.1:500$port || return 1
    done
}

# A GPU in software answers 300 requests of the card at the other end, and reads each where this card wrote it.
in_place() {
    name=$1-gpu
    configure "$name" "$2" 0 true
    cat >>"$OUT/$name.toml" <<TOML
budget_us = 4000000
[port.rpc]
dispatch = "gpu"
gpu = "gpu0"
memory = "pinned"
[[gpu]]
name = "gpu0"
device = "soft"
time_limit_ms = 20000
TOML
    serves "$name" emulate 300 --window 4 --payload 100 --port dpdk --device "$3" --address 10.0.0.1/24 &&
        grep -q '"ring_in_place":300' "$OUT/$name.log" || { grep "copied" "$OUT/$name.log"; return 1; }
}

pair() {
    verdict "$1: $ANSWERS answers" answers "$1" "$2" 0 from_card "$3"
    # Of a sample one will do: it starts a program at each end, which a slow guest takes long for.
    [ "$ANSWERS" -lt 100000 ] && [ "$1" != vmxnet3 ] ||
        verdict "$1: 300 answers of a GPU, from the card's buffers" in_place "$1" "$2" "$3"
}
pair virtio-net $virtio
pair vmxnet3 $(cards 0x15ad0x07b0)
pair e1000e $(cards 0x80860x10d3)
pair igb-function $(cards 0x80860x10ca)
verdict "virtio-net, two queues: $ANSWERS answers" answers virtio-net-mq "$multi_queue" 0,1 from_kernel
