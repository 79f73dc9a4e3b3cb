#!/bin/sh
# The installed appliance: the Debian packages in a clean Debian under systemd, the newcomer's path of docs/operate.md word
# for word, every fault that systemd should mend, upgrade, and removal without a trace.
# root: debian
# modules: virtio_net
# devices: iommu virtio-net-pair
# peers: outside
# memory: 1536
# host: $BERTH perf rpc --port udp --peer $GUEST --count 1000 --warmup 0 --timeout 5000 --no-progress --json $OUT/host.json
# timeout: 900
set -u

# The name of a check, then the command that must succeed.
ok() {
    name=$1
    shift
    if "$@" >"$OUT/last" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name"
        tail -30 "$OUT/last"
    fi
}
not() { ! "$@"; }
show() { systemctl show -P "$1" "${2:-berth}"; }
is() { [ "$1" = "$2" ] || { echo "$1, not $2"; false; }; }
# For at most so many seconds, until the command succeeds.
within() {
    until=$(($(uptime) + $1))
    shift
    until "$@"; do
        [ "$(uptime)" -lt "$until" ] || return 1
        sleep 0.3
    done
}
uptime() { cut -d. -f1 /proc/uptime; }
# Asks PEER from the address FROM so many times; no request may be lost, refused or answered wrong.
ask() {
    peer=$1 from=$2 count=$3
    shift 3
    "$@" berth perf rpc --port udp --peer "$peer" --bind "$from" --count "$count" --warmup 0 --timeout 1000 \
        --no-progress --json "$OUT/rpc.json" && grep -q '"answered": *'"$count"'\b' "$OUT/rpc.json"
}
answers() { ask "$1" 127.0.0.1:0 1000; }
# Once it answers at all: a link that is new loses the first ones.
fpga() {
    within 60 ask "$1" "${1%.*}.1:0" 2 ip netns exec fpga && ask "$1" "${1%.*}.1:0" 1000 ip netns exec fpga
}
# The commands of docs/operate.md that are marked so, each block as one script.
block() { awk -v mark="$1" '/^```/ { inside = $0 == "```sh " mark; next } inside' docs/operate.md; }
# Owners by number: find would look up the name of each in files that are the host's.
listing() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp -o -path /var/log \
        -o -path /var/cache -o -path /var/backups -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd/timers -o -path /var/lib/systemd/linger -o -path "$ROOT" \) \
        -prune -o -printf '%p %m %U %G\n' | grep -v '/etc/\(passwd\|group\|shadow\|gshadow\)- ' | sort
    sort /etc/passwd /etc/group
}

listing >"$OUT/before"

block newcomer >"$OUT/newcomer"
ok "the newcomer's path of docs/operate.md" sh -eux "$OUT/newcomer"
ok "it is ready when systemctl returns" is "$(show StatusText)" serving
ok "it is not root" is "$(ps -o user= -p "$(show MainPID)")" berth

ok "the units have no mistakes" systemd-analyze verify --man=no berth.service berth@nic.service berth-tune.service
ok "the sandbox's exposure is 2.0 at most" systemd-analyze security --threshold=20 berth.service

answered() { answers 127.0.0.1:4700; }
ok "it answers" answered
# The appliance on the guest's own address, and the emulator on the host.
host() {
    card=$(basename "$(dirname "$(grep -l 02:00:00:00:ff:00 /sys/class/net/*/address)")")
    ip addr add 10.0.2.15/24 dev "$card" && ip link set "$card" up &&
        sed -i 's/^bind = "127.0.0.1:4700"/bind = "0.0.0.0:4700"/' /etc/berth/berth.toml && systemctl restart berth &&
        touch "$OUT/go" && within 60 test -s "$OUT/host" && cat "$OUT/host.log" && is "$(cat "$OUT/host")" 0 && grep -q '"answered": *1000\b' "$OUT/host.json"
}
ok "it answers the host's emulator" host
# Two CPUs are few enough without one that spins.
sed -i 's/^idle = "spin"/idle = "adaptive"/' /etc/berth/berth.toml
systemctl restart berth

ready() { [ "$(show StatusText)" = serving ]; }
# What systemd mends.
fault() {
    what=$1
    restarts=$(show NRestarts)
    shift
    "$@"
    more() { [ "$(show NRestarts)" -gt "$restarts" ]; }
    ok "$what: it is started again" within 40 more
    ok "$what: it is ready" within 40 ready
    ok "$what: it answers" answered
}
fault "killed" kill -9 "$(show MainPID)"
lcore=$(grep -lx berth-cpu1 /proc/"$(show MainPID)"/task/*/comm | cut -d/ -f5)
# tgkill(2): the thread, not the process.
fault "an lcore thread crashes" perl -e 'syscall(234, $ARGV[0] + 0, $ARGV[1] + 0, 11)' "$(show MainPID)" "$lcore"
fault "stalled" kill -STOP "$(show MainPID)"
ok "stalled: the watchdog saw it" sh -c 'journalctl -u berth | grep -q "Watchdog timeout"'
starve() {
    systemctl set-property --runtime berth.service MemoryMax=1M
    within 20 sh -c 'journalctl -u berth | grep -q "oom-kill"'
    systemctl set-property --runtime berth.service MemoryMax=infinity
}
fault "out of memory" starve
ok "out of memory: restarts slowed down" test -s /run/berth/berth.failures

step() { date -s "$1" >/dev/null && sleep 2 && is "$(show ActiveState)" active && answered; }
before=$(show NRestarts)
ok "the clock leaps a day ahead" step "+1 day"
ok "and back" step "-1 day"
ok "no restart by that" is "$(show NRestarts)" "$before"

ok "a slice keeps appliances on their CPUs" systemctl set-property --runtime berth.slice AllowedCPUs=1
cpus() { sed -n 's/^Cpus_allowed_list:\t//p' /proc/"$(show MainPID)"/task/*/status | sort -u; }
ok "all threads" is "$(cpus)" 1
systemctl set-property --runtime berth.slice AllowedCPUs=0-1
ok "restarted, on all again" systemctl restart berth

cp /etc/berth/berth.toml "$OUT/good.toml"
echo "[nonsense]" >>/etc/berth/berth.toml
ok "a configuration with mistakes does not start" not systemctl restart berth
ok "and says where they are" sh -c 'journalctl -u berth | grep -q "berth.toml:[0-9]*:[0-9]*: nonsense: is not a key"'
sleep 1.5
ok "nor is it tried again" is "$(show ActiveState)" failed
cp "$OUT/good.toml" /etc/berth/berth.toml
ok "mended, it starts" systemctl start berth

# Reload, by a drop-in.
drop_in() {
    printf "$1" >/etc/berth/conf.d/reload.toml && systemctl reload berth
}
reloads() { berth status --json | grep -q "\"$1\": *1\b"; }
refusal() { show StatusText | grep "reload.toml:1:.*nonsense"; }
pid=$(show MainPID)
drop_in '[[function]]\nname = "more"\nhandler = "builtin:rpc_increment"\n'
ok "a reload takes effect" within 20 reloads done
drop_in '[nonsense]\n'
ok "one with mistakes is refused" within 20 reloads refused
ok "and systemctl status says why" within 5 refusal
ok "the old configuration answers on" answered
rm /etc/berth/conf.d/reload.toml
ok "without it, reloaded" systemctl reload berth
ok "all by the same process" is "$(show MainPID)" "$pid"

# Veth ends that vanish with the port open.
veth() {
    ip link add nic0 type veth peer name fpga0 &&
        ip link set fpga0 netns fpga &&
        ip addr add 10.1.0.2/24 dev nic0 && ip link set nic0 up &&
        ip -n fpga addr add 10.1.0.1/24 dev fpga0 && ip -n fpga link set fpga0 up &&
        ip netns exec fpga ethtool -K fpga0 tx off >/dev/null
}
ip netns add fpga
veth
instance() {
    mkdir -p "/etc/berth/$1"
    cat >"/etc/berth/$1/berth.toml"
}
port() {
    printf '[[port]]\nname = "p"\ncpu = 1\nidle = "adaptive"\n%s\n' "$1"
    printf '[[function]]\nname = "rpc_increment"\nhandler = "builtin:rpc_increment"\n'
}
is_not_active() { is "$(show ActiveState "berth@$1")" inactive; }
dpdk() { printf '[runtime.dpdk]\nhugepages = false\nmemory_mb = 64\n'; port "driver = \"dpdk\"
device = \"$1\"
address = \"$2\"
udp_port = 4700"; }
port 'driver = "udp"
bind = "10.1.0.2:4701"' | instance udp
dpdk net_af_packet0,iface=nic0 10.1.0.3/24 | instance packet
mkdir -p /run/systemd/system/berth@packet.service.d
printf '[Unit]\n%s\n' BindsTo=sys-subsystem-net-devices-nic0.device After=sys-subsystem-net-devices-nic0.device \
    >/run/systemd/system/berth@packet.service.d/device.conf
wants=/run/systemd/system/sys-subsystem-net-devices-nic0.device.wants
mkdir -p $wants && ln -s /lib/systemd/system/berth@.service $wants/berth@packet.service
install -D -m 644 /usr/share/doc/berth-common/examples/packet.conf -t /run/systemd/system/berth@packet.service.d
systemctl daemon-reload
ok "instances start" systemctl start berth@udp berth@packet
ok "kernel sockets answer" fpga 10.1.0.2:4701
ok "packet sockets answer" fpga 10.1.0.3:4700
ip link del nic0
ok "the device is gone: the instance that is bound to it stops" within 20 is_not_active packet
veth
ok "the device is gone and back: kernel sockets answer" fpga 10.1.0.2:4701
ok "the device is gone and back: packet sockets answer" fpga 10.1.0.3:4700
systemctl stop berth@udp berth@packet

dpdk net_af_xdp0,iface=nic0 10.1.0.3/24 | instance xdp
ok "AF_XDP is refused by the sandbox" not systemctl start berth@xdp
systemctl stop berth@xdp
install -D -m 644 /usr/share/doc/berth-common/examples/af-xdp.conf -t /run/systemd/system/berth@xdp.service.d
systemctl daemon-reload
ok "AF_XDP starts with its drop-in" systemctl start berth@xdp
ok "AF_XDP answers" fpga 10.1.0.3:4700
systemctl stop berth@xdp

# The journal of leases on a disk that fills up.
export HOME=$OUT
mkdir -p /var/lib/berth/disk
mount -t tmpfs -o size=12m,mode=700,uid=berth,gid=berth tmpfs /var/lib/berth/disk
fill() { dd if=/dev/zero of=/var/lib/berth/disk/fill bs=4k 2>/dev/null; }
{
    port 'driver = "udp"
bind = "127.0.0.1:4702"'
    cat <<TOML
[node]
state_dir = "/var/lib/berth/disk"
[control]
enroll = "open"
[[control.policy]]
presenter = "*"
perms = ["read", "write", "alloc"]
[[region]]
name = "scratch"
kind = "memory"
size = "4 MiB"
TOML
} | instance disk
lease() { berth lease alloc --size "4 KiB"; }
written() {
    leased=$(lease | sed -n 's/^lease_id *//p') && berth lease write "$leased" hello
}
read_back() { is "$(berth lease read "$leased" --len 5)" hello; }
serves() { is "$(show StatusText berth@disk)" serving; }
fill
ok "disk full: a node does not start" not systemctl start berth@disk
ok "disk full: it says so" sh -c 'journalctl -u berth@disk | grep "No space left"'
rm /var/lib/berth/disk/fill
ok "space again: it starts by itself" within 60 serves
ok "it leases" sh -c 'berth key new && berth enroll'
ok "and keeps what is written" written
fill
ok "disk full: leases are served" read_back
ok "disk full: leases are granted, as the journal has reserved its space" lease
ok "disk full: requests are answered" answers 127.0.0.1:4702
systemctl stop berth@disk
umount /var/lib/berth/disk

# Tasklets, whose executors are of a unit and a user of their own.
ok "executors: the unit has no mistakes" systemd-analyze verify --man=no berth-executor.service berth-executor.socket
ok "executors: their exposure is 2.0 at most" systemd-analyze security --threshold=20 berth-executor.service
export HOME=$OUT/tasklets
mkdir -p "$HOME"
{
    port 'driver = "udp"
bind = "127.0.0.1:4703"'
    cat <<TOML
[node]
state_dir = "/var/lib/berth/tasklets"
[control]
enroll = "open"
[[control.policy]]
presenter = "*"
perms = ["read", "write", "alloc", "exec"]
[[region]]
name = "scratch"
kind = "memory"
size = "4 MiB"
[tasklet]
cpus = [0]
executors = "unit"
max_fuel = 1000000000000
max_wall_ms = 60000
TOML
} | instance tasklets
# A module whose section of code is this.
module() {
    printf '\0asm\001\0\0\0\001\007\001\140\002\177\177\001\176\003\002\001\0\005\003\001\0\001\007\030\002\006memory\002\0\013tasklet_run\0\0'
    printf "$1"
}
module '\012\006\001\004\0\102\0\013' >"$OUT/nothing.wasm"
module '\012\012\001\010\0\003\100\014\0\013\0\013' >"$OUT/endless.wasm"
runs() { berth tasklet run "$OUT/nothing.wasm"; }
endless() { berth tasklet run "$OUT/endless.wasm" --fuel 1000000000000 --detach | sed -n 's/^tasklet *//p'; }
executors() { pgrep -u berth-executor -f '^/usr/bin/berth-executor [0-9]'; }
# Once it has run for a while: its process, which the others wait for.
busy() { for pid in $(executors); do [ "$(cut -d' ' -f14 "/proc/$pid/stat")" -lt 20 ] || echo "$pid"; done | grep .; }
failed() { berth tasklet result "$1" 2>&1 | grep "$2"; }
ok "executors: an appliance starts with them" systemctl start berth@tasklets
ok "executors: it is enrolled" sh -c 'berth key new && berth enroll'
ok "executors: a tasklet runs" runs
shut_in() {
    for pid in $(executors); do grep -qx "Seccomp:	2" "/proc/$pid/status" && grep -qx "CapEff:	0*" "/proc/$pid/status" || return 1; done
    executors | grep -q .
}
ok "executors: they are another user's, and shut in" shut_in
cgroups() {
    of=$(systemctl show -P ControlGroup berth-executor)
    for pid in $(executors); do
        own=/sys/fs/cgroup$(sed 's/^0:://' "/proc/$pid/cgroup")
        echo "$own" && case $own in /sys/fs/cgroup$of/executor-*) ;; *) return 1 ;; esac
        is "$(cat "$own/cpu.max")" "100000 100000" && is "$(cat "$own/cpuset.cpus")" 0 && [ "$(cat "$own/memory.max")" -lt 300000000 ] || return 1
    done
    executors | grep -q .
}
ok "executors: a cgroup each" cgroups
ok "executors: and doctor says so" sh -c 'berth doctor | grep "^ok *tasklets .*a cgroup each"'
id=$(endless)
ok "executors: an endless tasklet runs" within 10 busy
pid=$(busy)
ok "executors: killed in the middle" kill -9 "$pid"
ok "executors: that costs its run" within 5 failed "$id" EXEC_FAILED
ok "executors: and nothing else" runs
id=$(endless)
ok "executors: another runs" within 10 busy
ok "executors: it is cancelled" berth tasklet cancel "$id"
id=$(endless)
ok "executors: their keeper is killed" sh -c 'kill -9 $(systemctl show -P MainPID berth-executor)'
ok "executors: that costs the run that they had" within 5 failed "$id" EXEC_FAILED
ok "executors: and they are there again" within 20 runs
systemctl stop berth@tasklets
gone() { ! executors; }
ok "executors: they end with the appliance" within 5 gone
ok "executors: and leave no cgroup" not ls -d "/sys/fs/cgroup$(systemctl show -P ControlGroup berth-executor)"/executor-*
systemctl stop berth-executor.service berth-executor.socket
# What is in reach of who has taken one over and broken its filter of system calls.
ok "outside: without walls there is much" sh -c 'setpriv --reuid berth-executor --regid berth-executor --clear-groups "$PEERS/outside" "$ROOT" /run/lab 2>&1 | grep "outside: [0-9][0-9]* things" | grep -v ": [0-9] things"'
mv /usr/bin/berth-executor "$OUT/berth-executor" && cp "$PEERS/outside" /usr/bin/berth-executor
systemctl start berth-executor.socket berth-executor.service
looked() { journalctl -u berth-executor | grep "outside: [0-9]* things"; }
ok "outside: it has looked" within 10 looked
ok "outside: no file, key, socket, region, process or network is in reach" sh -c 'journalctl -u berth-executor | grep "outside:" | tee /dev/stderr | grep -q ": 0 things"'
systemctl stop berth-executor.service berth-executor.socket
mv "$OUT/berth-executor" /usr/bin/berth-executor

# The path of docs/operate.md to a network card behind vfio-pci; the card's peer is the other end of the guest's wire.
card=$(grep -l 0x1041 /sys/bus/pci/devices/*/device | cut -d/ -f6 | head -1)
peer=$(ls "/sys/bus/pci/devices/$(grep -l 0x1041 /sys/bus/pci/devices/*/device | cut -d/ -f6 | tail -1)"/virtio*/net)
ip link set "$peer" netns fpga
ip -n fpga addr add 10.0.0.1/24 dev "$peer"
ip -n fpga link set "$peer" up
block nic | sed "s/^NIC=.*/NIC=$card/" >"$OUT/nic"
ok "the path of docs/operate.md to a network card" sh -eux "$OUT/nic"
ok "the card is DPDK's" is "$(basename "$(readlink "/sys/bus/pci/devices/$card/driver")")" vfio-pci
ok "the host is tuned" is "$(cat /proc/sys/kernel/sched_rt_runtime_us)" -1
ok "the card answers" fpga 10.0.0.2:4700

# A newer version with another configuration file, and another build of the program. In the guest's memory: $OUT is far away.
rebuild() {
    rm -rf /tmp/tree && dpkg-deb -R "$1" /tmp/tree &&
        sed -i "s/^Version: .*/&+1/; s/\(berth[a-z-]* (= [^)]*\))/\1+1)/" /tmp/tree/DEBIAN/control &&
        { [ ! -f /tmp/tree/etc/berth/berth.toml ] || echo "# newer" >>/tmp/tree/etc/berth/berth.toml; } &&
        dpkg-deb -Znone -b /tmp/tree "/tmp/$2.deb"
}
upgrade() {
    rebuild "$PACKAGES"/berth-common_*.deb common && rebuild "$PACKAGES"/berth-full_*.deb full &&
        rebuild "$PACKAGES"/berth_*.deb lean &&
        dpkg --force-confdef --force-confold -i /tmp/common.deb /tmp/full.deb
}
cp /etc/berth/berth.toml "$OUT/mine.toml"
was=$(show MainPID)
ok "upgrade" upgrade
ok "upgrade: the changed configuration is kept" cmp /etc/berth/berth.toml "$OUT/mine.toml"
ok "upgrade: the newer one lies beside it" grep -q "# newer" /etc/berth/berth.toml.dpkg-dist
ok "upgrade: what ran runs anew" not is "$(show MainPID)" "$was"
ok "upgrade: it answers" fpga 10.0.0.2:4700

stopped() { systemctl stop berth && is "$(show Result)" success && journalctl -u berth | tail -5 | grep -q "berth stopped"; }
ok "it stops, drained" stopped
restored() { systemctl stop berth-tune && is "$(cat /proc/sys/kernel/sched_rt_runtime_us)" 950000; }
ok "the host is as before when berth-tune stops" restored

lean() {
    cp "$OUT/good.toml" /etc/berth/berth.toml && systemctl start berth &&
        apt-get install -y /tmp/lean.deb &&
        ! ldd /usr/bin/berth | grep -E 'librte|libfabric|libibverbs'
}
ok "the package without heavy libraries takes the place" lean
ok "it answers" answered

ip netns del fpga
driverctl unset-override "$card"
rm /etc/udev/rules.d/61-berth-nic.rules
systemctl reset-failed
block uninstall >"$OUT/uninstall"
ok "uninstalled as docs/operate.md says" sh -eux "$OUT/uninstall"
listing >"$OUT/after"
ok "nothing is left behind" diff "$OUT/before" "$OUT/after"
journalctl -b --no-pager >"$OUT/journal"
