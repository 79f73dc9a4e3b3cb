#!/bin/sh
# Disks over NVMe/TCP by Berth and by the kernel's own target, in turns, for the kernel's initiator and fio. Leaves a line for
# each turn in $OUT/rows, and how busy the CPUs were in $OUT/busy.
# modules: nvme_tcp nvmet_tcp ext4
# memory: 1024
# build: berth
# timeout: 900
set -eu

# A disk in RAM for nvmet, and one below the file.
modprobe brd rd_nr=2 rd_size=65536
exec python3 lab/bench/nvme.py
