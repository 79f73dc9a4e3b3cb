#!/bin/sh
# Leases over RDMA, from the side of a client that is written against libibverbs alone.
# modules: crc32_generic rdma_rxe
# memory: 1024
# build: berth
# peers: lease_rdma
# timeout: 300
set -eu

. lab/rxe.sh
exec python3 lab/rdma_lease.py
