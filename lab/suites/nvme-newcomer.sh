#!/bin/sh
# The commands of docs/nvme.md lead to a mounted file system on a lease, word for word.
# modules: nvme_tcp ext4
# memory: 1024
# build: berth
# timeout: 120
set -eu

. lab/nvme.sh
ln -s "$BERTH" /usr/local/bin/berth
mkdir -p /etc/nvme
nvme gen-hostnqn >/etc/nvme/hostnqn
sed 's/.*uuid://' /etc/nvme/hostnqn >/etc/nvme/hostid

awk '/^## /{ within = /five commands/ } within && /^```$/{ block = 0 } block { print } within && /^```sh$/{ block = 1 }' \
    docs/nvme.md >"$work/commands"
check "they are five" [ "$(wc -l <"$work/commands")" = 5 ]

# The first stays; the others are one shell's.
sh -c "$(sed -n 1p "$work/commands")" >"$work/ready" 2>"$OUT/berth.log" &
check "berth runs" within 30 grep -q "^berth ready" "$work/ready"
lease=
for nth in 2 3 4 5; do
    command=$(sed -n ${nth}p "$work/commands" | sed "s/LEASE/$lease/g")
    if sh -c "$command" >"$work/said" 2>&1; then echo "ok $command"; else echo "not ok $command: $(tail -n 2 "$work/said" | tr '\n' ' ')"; fi
    cp "$work/said" "$OUT/said.$nth"
    [ $nth != 2 ] || lease=$(awk '/^lease_id/ { print $2 }' "$work/said")
    [ $nth != 3 ] || check "the third prints the fourth" grep -qF "$(sed -n 4p "$work/commands" | sed "s/LEASE/$lease/g")" "$work/said"
    # A person is slower than the kernel's scan of a new controller.
    [ $nth != 4 ] || within 10 disk "$lease" >/dev/null
done
check "a file system is mounted" grep -q "^$(disk "$lease") /mnt ext4" /proc/mounts
check "it takes a file" sh -c "echo hello >/mnt/file && sync && grep -q hello /mnt/file"
