#!/bin/sh
# The verbs layer on soft-RoCE: every kind of queue pair and work, faults, misuse.
# modules: crc32_generic rdma_rxe rdma_ucm
# build: rping_peer verbs_check
# peers: rping_listener
# timeout: 120
set -eu

. lab/rxe.sh
"$ROOT/target/release/examples/verbs_check" rxe0 1

# rping, which comes by rdma_cm and checks what it gets back, with a queue pair of this layer.
"$ROOT/target/release/examples/rping_peer" rxe0 1 "$PEERS/rping_listener" 10.9.0.1 7174 >"$OUT/rping_peer" &
server=$!
until grep -q listening "$OUT/rping_peer"; do sleep 0.1; done
if timeout 60 rping -c -a 10.9.0.1 -p 7174 -I 10.9.0.2 -C 1000 -S 3000 -V >"$OUT/rping" 2>&1 && wait $server &&
    grep -q "served 1000 rounds" "$OUT/rping_peer"; then
    echo "ok rping gets 1000 texts back from a queue pair of this layer"
else
    echo "not ok rping: $(tail -n 3 "$OUT/rping" "$OUT/rping_peer" | tr '\n' ' ')"
fi
