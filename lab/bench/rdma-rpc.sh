#!/bin/sh
# Rows of `cargo xtask bench rdma`: calls over verbs against perftest, in turns in one guest, each end on a CPU of its own.
# Leaves a line of JSON for each pair of figures in rows.
# modules: crc32_generic rdma_rxe
# memory: 1024
# build: berth
# timeout: 300
set -eu

. lab/rxe.sh
cat >"$OUT/berth.toml" <<TOML
[[port]]
name = "verbs"
driver = "verbs"
device = "rxe0"
gid_index = 1
rendezvous = "10.9.0.1:7001"
cpu = 1
idle = "spin"
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
TOML

# The median round trip of a program of perftest in microseconds: it prints half of it.
theirs() {
    taskset -c 1 "$1" -d rxe0 -x 1 -F -n 1500 -s 56 >/dev/null &
    server=$!
    sleep 0.5
    taskset -c 0 "$1" -d rxe1 -x 1 -F -n 1500 -s 56 10.9.0.1 | awk '$1 == 56 { print 2 * $5 }'
    wait $server
}

# Ours, in microseconds: calls with 24 bytes of header and 32 of arguments, so as many as perftest sends.
ours() {
    "$BERTH" run --config "$OUT/berth.toml" >"$OUT/ready" 2>"$OUT/berth.err" &
    server=$!
    until grep -q 'berth ready' "$OUT/ready"; do sleep 0.1; done
    "$BERTH" perf rpc --port verbs --device rxe1 --rendezvous 10.9.0.1:7001 --requests "$1" --payload 32 --count 1500 \
        --warmup 0.1 --cpu 0 --bounce-cpu 1 --no-progress --json "$OUT/report" >/dev/null
    kill $server
    wait $server
    tr -d ' \n' <"$OUT/report" | grep -o '"latency":{[^}]*' | grep -o '"p50":[0-9]*' | head -n 1 | awk -F: '{ print $2 / 1000 }'
}

row() {
    case=$1 baseline=$2 reach=$3 requests=$4
    for turn in 1 2 3 4 5 6 7 8 9; do
        a=$(ours "$requests") b=$(theirs "$baseline")
        echo "{\"case\":\"$case\",\"baseline\":\"$baseline x 2\",\"reach\":$reach,\"ours\":$a,\"theirs\":$b}" | tee -a "$OUT/rows"
        [ -n "$a" ] && [ -n "$b" ] && echo "ok $case, turn $turn" || echo "not ok $case, turn $turn"
    done
}

row "rpc_increment 32 B, verbs SEND (RC), rxe to rxe, RTT p50" ib_send_lat 1.15 rc-send
row "rpc_increment 32 B, WRITE with immediate (RC), rxe to rxe, RTT p50" ib_write_lat 1.25 rc-write-imm
