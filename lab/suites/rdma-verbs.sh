#!/bin/sh
# The verbs layer on soft-RoCE: every kind of queue pair and work, faults, misuse.
# modules: crc32_generic rdma_rxe
# build: -p berth-verbs --example verbs_check
# timeout: 120
set -eu

. lab/rxe.sh
"$ROOT/target/release/examples/verbs_check" rxe0 1
