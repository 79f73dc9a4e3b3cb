#!/bin/sh
# Hosts that prove who they are by DH-HMAC-CHAP: the kernel's NVMe/TCP initiator and nvme-cli.
# modules: nvme_tcp
# memory: 1024
# build: berth
# timeout: 400
set -eu

. lab/nvme.sh
hostid=11111111-2222-3333-4444-555555555555

truncate -s 32M "$work/disk.img"
node_config <<TOML
[[region]]
name = "blocks"
kind = "block"
size = "32 MiB"
backing = "$work/disk.img"
[[binding]]
kind = "nvme"
listen = ["127.0.0.1:4420"]
cpus = [1]
idle = "adaptive"
auth = "dhchap"
[admin]
listen = "127.0.0.1:9464"
TOML

bind() { "$BERTH" lease bind "$lease" --kind nvme --host-nqn "$host" "$@"; }
# connect OPTIONS...
connect() { nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" -q "$host" -I "$hostid" "$@"; }
# count RESULT: authentications that ended so.
count() {
    bash -c 'exec 3<>/dev/tcp/127.0.0.1/9464; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; cat <&3' |
        sed -n "s/^berth_control_nvme_authentications_total{result=\"$1\"} //p"
}

start
enroll
lease=$(alloc block "16 MiB")
nqn=nqn.2026-02.io.fabricbios:lease:$lease

check "over UDP there is no secret" not bind --udp --node 127.0.0.1:5700
bind >"$work/bound"
secret=$(sed -n 's/^dhchap_secret *//p' "$work/bound")
ready=$(sed -n 's/^connect *//p' "$work/bound")
check "LEASE_BIND over QUIC prints it" sh -c "echo '$ready' | grep -q -- '-n $nqn -q $host --dhchap-secret DHHC-1:01:.*:$'"
check "nvme-cli takes it for a secret" nvme check-dhchap-key -k "$secret"

check "without a secret the host is not let in" not connect
other=$(nvme gen-dhchap-key -m 0 | tail -n 1)
check "nor with another" not connect --dhchap-secret "$other"
check "nor where this node shall know another" not connect --dhchap-secret "$secret" --dhchap-ctrl-secret "$other"
check "there is no disk" not disk "$lease"
check "the node counts what failed" [ "$(count wrong_secret)" = 2 ]
check "and nobody who proved anything" [ "$(count done)" = 0 ]

check "the printed command connects" sh -c "$ready -I $hostid"
if within 10 disk "$lease" >/dev/null; then echo "ok a disk appears"; else echo "not ok a disk appears"; fi
check "what is written comes back" verify "$(disk "$lease")" randwrite 4k 1M
check "disconnected" nvme disconnect -n "$nqn"

check "both ways, two queues" connect -i 2 -c 2 --dhchap-secret "$secret" --dhchap-ctrl-secret "$secret"
within 10 disk "$lease" >/dev/null || echo "not ok a disk appears"
check "what is written comes back" verify "$(disk "$lease")" randwrite 4k 1M
check "each queue has proved itself" [ "$(count done)" -ge 5 ]

# A host may prove itself anew amid its I/O.
controller=$(echo /sys/class/nvme/nvme*)
fio --name=again --filename="$(disk "$lease")" --rw=randwrite --bs=4k --size=1M --time_based --runtime=3 --ioengine=libaio \
    --iodepth=4 --direct=1 --output="$work/again" &
fio=$!
sleep 1
before=$(count done)
check "the host authenticates again" sh -c "echo '$secret' >'$controller/dhchap_secret'"
if wait $fio; then echo "ok and I/O goes on"; else echo "not ok I/O over a further authentication: $(tail -n 3 "$work/again" | tr '\n' ' ')"; fi
check "on each queue" [ "$(count done)" = $((before + 3)) ]

# A restart amid writes: the host proves itself again with the secret that it has.
kill_under_writes "$(disk "$lease")"
check "it has proved itself to the node that came back" [ "$(count done)" -ge 3 ]
check "disconnected" nvme disconnect-all

bind >"$work/bound"
check "another LEASE_BIND, another secret" not grep -q -- "$secret" "$work/bound"
check "the old one is worth nothing" not connect --dhchap-secret "$secret"
check "the log has no secret" not grep -q DHHC "$OUT/berth.log"
stop
cp "$work/ready" "$OUT/stopped"
dmesg | grep -i nvme | tail -60 >"$OUT/nvme" || true
