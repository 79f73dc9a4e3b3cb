#!/bin/sh
# The units under a real systemd: ready, answering, watched, restarted, drained, and not as root.
# init: systemd
# build: -p berth --features dpdk,verbs,ofi
# memory: 1024
# timeout: 300
set -eu

# The name of a check, then the command that must succeed.
ok() {
    name=$1
    shift
    if "$@" >"$OUT/last" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name"
        tail -20 "$OUT/last"
    fi
}

show() { systemctl show -P "$1" "${2:-berth}"; }
is() { [ "$1" = "$2" ] || { echo "$1, not $2"; false; }; }
# For at most so many seconds, until the command succeeds.
within() {
    left=$1
    shift
    until "$@"; do
        [ "$left" -gt 0 ] || return 1
        left=$((left - 1))
        sleep 1
    done
}
answers() {
    "$BERTH" perf rpc --port "${2:-udp}" --peer "$1" --count 2000 --no-progress --json "$OUT/rpc.json" &&
        grep -q '"wrong": *0' "$OUT/rpc.json"
}
restarted() { [ "$(show NRestarts)" -ge "$1" ] && [ "$(show ActiveState)" = active ]; }

install -D "$BERTH" /usr/bin/berth
install -m 644 systemd/*.service systemd/*.slice /etc/systemd/system
systemd-sysusers "$PWD/systemd/berth.sysusers"
mkdir -p /etc/berth
cat >/etc/berth/berth.toml <<TOML
[admin]
[tune]
hugepages_2m = 8
rt_throttling = false
cpu_dma_latency_us = 0
[[port]]
name = "fpga0"
driver = "udp"
bind = "127.0.0.1:4700"
cpu = 1
idle = "adaptive"
[[port]]
name = "fpga1"
driver = "uring"
bind = "127.0.0.1:4701"
cpu = 1
idle = "adaptive"
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
[node]
state_dir = "/var/lib/berth"
[control]
TOML
systemctl daemon-reload

ok "the units have no mistakes" systemd-analyze verify --man=no berth.service berth@fpga.service berth-tune.service
ok "the sandbox keeps its score" systemd-analyze security --threshold=24 berth.service

before=$(cat /proc/sys/kernel/sched_rt_runtime_us)
ok "it starts" systemctl start berth
ok "it is ready when systemctl returns" is "$(show StatusText)" serving
ok "it is not root" is "$(ps -o user= -p "$(show MainPID)")" berth
ok "the host was tuned before" is "$(cat /proc/sys/kernel/sched_rt_runtime_us)" -1
ok "udp answers" answers 127.0.0.1:4700
ok "uring answers" answers 127.0.0.1:4701
ok "berth status says that it serves" berth status

kill -9 "$(show MainPID)"
ok "killed, it is back" within 20 restarted 1
ok "and answers" answers 127.0.0.1:4700

kill -STOP "$(show MainPID)"
ok "stalled, the watchdog has it restarted" within 60 restarted 2
ok "and it answers" answers 127.0.0.1:4700

ok "it stops" systemctl stop berth
ok "drained, not killed" is "$(show Result)" success
ok "the tuning is taken back when it is stopped" systemctl stop berth-tune
ok "all of it" is "$(cat /proc/sys/kernel/sched_rt_runtime_us)" "$before"

cp /etc/berth/berth.toml /etc/berth/good
echo "[nonsense]" >>/etc/berth/berth.toml
ok "a configuration with mistakes does not start" sh -c '! systemctl start berth'
ok "and says where they are" sh -c 'journalctl -u berth | grep -q "berth.toml:[0-9]*:[0-9]*: nonsense: is not a key"'
sleep 3
ok "nor is it tried again" is "$(show ActiveState)" failed
cp /etc/berth/good /etc/berth/berth.toml

ip netns add fpga
ip link add nic0 type veth peer name fpga0 netns fpga
ip link set nic0 up
ip -n fpga addr add 10.0.0.1/24 dev fpga0
ip -n fpga link set fpga0 up
ip netns exec fpga ethtool -K fpga0 tx off >/dev/null
cat >/etc/berth/nic.toml <<TOML
[runtime]
dpdk.hugepages = false
[[port]]
name = "fpga"
driver = "dpdk"
device = "net_af_packet0,iface=nic0"
address = "10.0.0.2/24"
udp_port = 4700
cpu = 1
idle = "adaptive"
[[function]]
name = "rpc_increment"
handler = "builtin:rpc_increment"
TOML
ok "an instance with a DPDK port starts" systemctl start berth@nic
ok "and answers" ip netns exec fpga "$BERTH" perf rpc --port udp --peer 10.0.0.2:4700 --bind 10.0.0.1:0 --count 1000 --no-progress
ok "and stops" systemctl stop berth@nic
journalctl -b --no-pager >"$OUT/journal"
