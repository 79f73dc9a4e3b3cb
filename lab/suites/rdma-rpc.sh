#!/bin/sh
# RPC over verbs: independent clients in C and our own, every way that requests come, hostile peers, a device that goes, a GPU.
# modules: crc32_generic rdma_rxe
# memory: 1024
# build: berth
# peers: rpc_rdma
# timeout: 900
set -eu

. lab/rxe.sh
client="$PEERS/rpc_rdma rxe1 1 10.9.0.1"

# configure GPUS PORTS BUDGET: what berth runs by.
configure() {
    cat >"$OUT/berth.toml" <<TOML
[runtime]
housekeeping_cpus = [0]
$1
$2
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
$3
TOML
}

# port NAME NUMBER RDMA MORE
port() {
    cat <<TOML
[[port]]
name = "$1"
driver = "verbs"
device = "rxe0"
gid_index = 1
rendezvous = "10.9.0.1:$2"
cpu = 1
rdma = { $3 }
$4
TOML
}

start() {
    "$BERTH" run --config "$OUT/berth.toml" >"$OUT/$1" 2>"$OUT/$1.err" &
    berth=$!
    for _ in $(seq 100); do
        grep -q 'berth ready' "$OUT/$1" && return
        sleep 0.1
    done
    echo "not ok berth starts: $(tail -n 1 "$OUT/$1.err")"
    exit 0
}

# check WHAT EXPECTED COMMAND...: what the command prints last.
check() {
    what=$1 expected=$2
    shift 2
    got=$("$@" 2>&1 | tail -n 1) || true
    if [ "$got" = "$expected" ]; then echo "ok rpc over verbs: $what"; else echo "not ok rpc over verbs: $what: $got"; fi
}

# count PORT NAME: a counter of a port when berth stopped.
count() {
    python3 - "$OUT/stopped" "$1" "$2" <<'PY'
import json, sys
file, port, counter = sys.argv[1:]
stopped = json.loads(open(file).read().removeprefix("berth stopped "))
lanes = [lane for lcore in stopped["lcores"] for lane in lcore["lanes"] if lane["name"] == port]
print(sum(lane["port"][counter] for lane in lanes))
PY
}

if "$BERTH" doctor | grep -q 'rdma rxe0 port 1.*ACTIVE.*::ffff:10.9.0.1'; then
    echo "ok doctor lists rxe0"
else
    echo "not ok doctor lists rxe0: $("$BERTH" doctor | grep rdma | head -n 1)"
fi

configure "" "$(port own 7001 "peers = 8" "")
$(port fpga 7002 "peers = 4" 'rendezvous_form = "host-api"')" ""
start ready
check "$ANSWERS answers to a UC client of the host API" "answers $ANSWERS" $client 7002 host-api uc-write $ANSWERS
check "$ANSWERS answers to an RC client that sends" "answers $ANSWERS" $client 7001 berth rc-send $ANSWERS
check "$ANSWERS answers to an RC client that writes" "answers $ANSWERS" $client 7001 berth rc-write $ANSWERS
few=$((ANSWERS / 5))
check "$few answers to a UC client that sends" "answers $few" $client 7001 berth uc-send $few
check "$few answers written back" "answers $few" $client 7001 berth rc-back $few

# Full windows: whoever has an answer may send the next request, and finds a receive.
for kind in rc-send uc-send rc-write uc-write rc-back; do
    for size in full long; do
        check "a $size window of $kind" "answers $few" $client 7001 berth $kind $few $size
    done
done
check "requests that are overwritten" "answers" $client 7001 berth rc-write 1000 over

# Faults, while another peer is served.
$client 7001 berth rc-send 60000 >"$OUT/bystander" &
bystander=$!
check "a wrong rkey fails" "fail remote access error after 0" $client 7001 berth rc-write 100 rkey
check "a range by one byte fails" "fail remote access error after 0" $client 7001 berth rc-write 100 range
check "slots that there are not get no answer" "answers 900" $client 7001 berth rc-write 1000 slot
check "gaps are answered" "answers 1000" $client 7002 host-api uc-write 1000 gap
check "requests written twice" "answers 1000" $client 7001 berth rc-write 1000 twice
for kind in rc-write rc-send uc-send; do
    $client 7001 berth $kind 500 die >/dev/null 2>&1 || true
done
check "the next after three were killed" "answers 2000" $client 7001 berth rc-write 2000
for kind in rc-send uc-send rc-write-imm uc-write-imm; do
    if "$BERTH" perf rpc --port verbs --device rxe1 --rendezvous 10.9.0.1:7001 --requests $kind --count 1000 --warmup 0 \
        --cpu 0 --window 4 --no-progress >"$OUT/perf-$kind" 2>&1; then
        echo "ok rpc over verbs: perf $kind"
    else
        echo "not ok rpc over verbs: perf $kind: $(tail -n 1 "$OUT/perf-$kind")"
    fi
done
wait $bystander || true
check "another peer all the while" "answers 60000" cat "$OUT/bystander"

# The device goes and comes back.
$client 7001 berth rc-send 100 last >"$OUT/last" &
last=$!
sleep 1
if timeout 20 rdma link delete rxe0; then echo "ok the device goes"; else echo "not ok the device goes"; fi
wait $last || true
check "a peer hears that it is gone" "lost" cat "$OUT/last"
if kill -0 $berth; then echo "ok berth lives on"; else echo "not ok berth lives on"; fi
$client 7001 berth rc-send 1 >/dev/null 2>"$OUT/refused" && echo "not ok refused without a device" ||
    check "refused without a device" "rpc_rdma: refused with status 4" cat "$OUT/refused"
rdma link add rxe0 type rxe netdev roce0
sleep 1
check "1000 answers by the device that is back" "answers 1000" $client 7001 berth rc-write 1000
check "and in the form of the host API" "answers 1000" $client 7002 host-api uc-write 1000

kill $berth
wait $berth || echo "not ok berth stops with 0"
grep 'berth stopped' "$OUT/ready" >"$OUT/stopped"
tallies="slot_out_of_range:100 device_losses:1 device_returns:1 cq_overruns:0 rendezvous_refused:1"
for tally in $tallies; do
    check "own counts ${tally%:*}" "${tally#*:}" count own "${tally%:*}"
done
check "fpga counts psn_gaps" 100 count fpga psn_gaps
check "fpga counts psn_lost" 300 count fpga psn_lost

# A GPU in software reads what peers send where it was received. What they write is copied.
# on_gpu NAME BUDGET_US RDMA: starts berth so.
on_gpu() {
    configure '[[gpu]]
name = "gpu0"
device = "soft"
time_limit_ms = 60000' "$(port own 7001 "$3" 'idle = "adaptive"
rpc = { dispatch = "gpu", gpu = "gpu0", memory = "pinned", slots = 128, slot_size = 1408 }')" "budget_us = $2"
    start "$1"
    worker=$(sed -n 's/^berth ready .*"worker_pid":\([0-9]*\).*/\1/p' "$OUT/$1")
}
off_gpu() {
    kill $berth
    wait $berth || echo "not ok berth stops with 0"
    grep 'berth stopped' "$OUT/$1" >"$OUT/stopped"
}

on_gpu gpu 8000000 "peers = 8"
check "a GPU answers full windows" "answers 300" $client 7001 berth rc-send 300 full
check "of a UC client" "answers 300" $client 7001 berth uc-send 300 full
$client 7001 berth rc-send 200 >"$OUT/bystander" &
bystander=$!
check "of two clients, the second" "answers 200" $client 7001 berth uc-send 200
wait $bystander || true
check "of two clients, the first" "answers 200" cat "$OUT/bystander"
off_gpu gpu
check "all requests were read where they were received" "$(count own rx_frames)" count own rx_kept

on_gpu gpu-killed 8000000 "peers = 8"
check "a GPU answers what is written" "answers 200" $client 7001 berth rc-write 200
for _ in 1 2 3; do
    $client 7001 berth rc-send 100 die >/dev/null 2>&1 || true
done
check "and the next after three were killed" "answers 300" $client 7001 berth rc-send 300 full
kill -9 "$worker"
sleep 2
check "and after its worker was" "answers 300" $client 7001 berth rc-send 300 full
off_gpu gpu-killed

# The place of a peer whose requests are still read goes to the next, whose requests lie elsewhere.
on_gpu gpu-place 10000000 "peers = 1"
kill -STOP "$worker"
timeout -s KILL 2 $client 7001 berth rc-send 100 full >/dev/null 2>&1 || true
sleep 1
$client 7001 berth rc-send 40 >"$OUT/heir" &
heir=$!
sleep 2
kill -CONT "$worker"
wait $heir || true
check "the heir of a place that is still read" "answers 40" cat "$OUT/heir"
check "and the next" "answers 100" $client 7001 berth rc-send 100 full
off_gpu gpu-place
check "requests of the first and the last are read in place" 164 count own rx_kept

# Requests whose time was up hold receives, and no peer lacks one for its next.
on_gpu gpu-late 20000 "peers = 1, slots = 4"
kill -STOP "$worker"
"$BERTH" perf rpc --port verbs --device rxe1 --rendezvous 10.9.0.1:7001 --requests rc-send --count 100 --warmup 0 --cpu 0 --window 4 \
    --timeout 5000 --no-progress --json "$OUT/late.json" >"$OUT/late" 2>&1 || true
refused() { python3 -c 'import json, sys; counts = json.load(open(sys.argv[1]))["cases"][0]["counts"]; print(counts["refused"], counts["lost"])' "$OUT/late.json"; }
check "a stopped GPU's requests are refused, and none lost" "100 0" refused
kill -CONT "$worker"
off_gpu gpu-late
check "of these a peer's slots are kept" 4 count own rx_kept
