#!/bin/sh
# The guest itself: soft-RoCE devices reach one another, and devices behind the IOMMU are seen.
# modules: crc32_generic rdma_rxe nvme igb
# devices: iommu nvme igb
# timeout: 60
set -eu

. lab/rxe.sh

taskset -c 0 ib_send_lat -d rxe0 -x 1 -n 1000 -s 64 >/dev/null &
sleep 0.5
if taskset -c 1 ib_send_lat -d rxe1 -x 1 -n 1000 -s 64 10.9.0.1 >"$OUT/ib_send_lat" && wait $!; then
    echo "ok ib_send_lat between rxe devices"
else
    echo "not ok ib_send_lat between rxe devices"
fi

rping -s -a 10.9.0.1 -C 10 &
sleep 0.5
if rping -c -a 10.9.0.1 -I 10.9.0.2 -C 10 && wait $!; then
    echo "ok rping between rxe devices"
else
    echo "not ok rping between rxe devices"
fi

if [ -b /dev/nvme0n1 ]; then echo "ok nvme disk"; else echo "not ok nvme disk"; fi

nic=$(dirname /sys/bus/pci/drivers/igb/0*/net)
echo 2 >"$nic/sriov_numvfs"
groups=$(for function in "$nic" "$nic"/virtfn*; do readlink "$function/iommu_group"; done | sort -u | wc -l)
if [ "$groups" = 3 ]; then echo "ok igb and two functions, each in its IOMMU group"; else echo "not ok igb: $groups groups"; fi
