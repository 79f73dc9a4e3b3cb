#!/bin/sh
# One-sided access to a lease against perftest without one, in turns, each pinned. Leaves a line for each turn in $OUT/rows.
# modules: crc32_generic rdma_rxe
# memory: 1024
# build: berth
# timeout: 300
set -eu

. lab/rxe.sh
exec python3 lab/bench/rdma_lease.py
