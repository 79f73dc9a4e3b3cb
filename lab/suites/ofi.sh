#!/bin/sh
# libfabric over soft-RoCE (verbs;ofi_rxm): Berth's own client and one in C that knows only the documents.
# modules: crc32_generic rdma_rxe rdma_cm rdma_ucm
# memory: 1024
# build: berth
# peers: ofi_client
# timeout: 300
set -eu

. lab/rxe.sh
# ofi_rxm makes its completion queue for this many peers; the usual 256 are more than a queue of soft-RoCE holds.
export FI_UNIVERSE_SIZE=64
work=$(mktemp -d)

# Runs a check; what it prints is shown where it fails.
check() {
    what=$1
    shift
    if "$@" >"$work/out" 2>&1; then echo "ok $what"; else echo "not ok $what: $(tail -n 3 "$work/out" | tr '\n' ' ')"; fi
}

"$BERTH" key new --key "$work/client.key" >/dev/null
public=$("$BERTH" key show --key "$work/client.key" --json | sed 's/.*"public_key": *"\([0-9a-f]*\)".*/\1/')
cat >"$work/berth.toml" <<TOML
[node]
state_dir = "$work/state"
[control]
udp = "127.0.0.1:0"
quic = "127.0.0.1:5701"
enrolled = ["$public"]
[[control.policy]]
presenter = "*"
perms = ["read", "write", "alloc"]
[[region]]
name = "m"
kind = "memory"
size = "4 MiB"
[[port]]
name = "calls"
driver = "ofi"
provider = "verbs;ofi_rxm"
bind = "10.9.0.1:0"
rendezvous = "10.9.0.1:4710"
cpu = 1
idle = "adaptive"
[[port]]
name = "io"
driver = "ofi"
provider = "verbs;ofi_rxm"
bind = "10.9.0.1:0"
rendezvous = "10.9.0.1:5710"
service = "lease-io"
cpu = 1
idle = "adaptive"
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
TOML
"$BERTH" run --config "$work/berth.toml" >"$work/ready" 2>"$OUT/berth.log" &
berth=$!
for _ in $(seq 100); do grep -q "berth ready" "$work/ready" && break; sleep 0.2; done

ofi="--port ofi --provider verbs;ofi_rxm --bind 10.9.0.2:0 --no-progress --cpu 0 --warmup 0"
check "2000 calls from our client" "$BERTH" perf rpc $ofi --rendezvous 10.9.0.1:4710 --count 2000 --timeout 5000
check "20000 calls from a client in C" sh -c \
    "printf 'rpc 20000\n' | '$PEERS/ofi_client' 'verbs;ofi_rxm' 10.9.0.2 10.9.0.1 4710 | grep -q '^right 20000$'"
lease="$BERTH perf lease $ofi --control 127.0.0.1:5701 --identity $work/client.key --size 64,4096 --count 200 --timeout 5000"
check "a lease read by rendezvous" $lease --rendezvous 10.9.0.1:5710
check "a lease written by rendezvous" $lease --rendezvous 10.9.0.1:5710 --op write
bound=$(echo "$lease" | sed 's/--port ofi//')
check "a lease read by LEASE_BIND" $bound --binding ofi
check "unknown leases are refused" sh -c \
    "printf 'read 1 1 0 8\n' | '$PEERS/ofi_client' 'verbs;ofi_rxm' 10.9.0.2 10.9.0.1 5710 | grep -q '^14$'"

kill -TERM $berth
if wait $berth; then echo "ok it ends as it should"; else echo "not ok it ends as it should: $(tail -n 2 "$OUT/berth.log")"; fi
