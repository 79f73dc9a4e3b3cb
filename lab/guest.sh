# PID 1 of the guest once its root is there: runs the suite that /run/lab/env names, then ends the guest. In a clean Debian
# it comes twice: as PID 1, which becomes systemd, and as a service of it, which runs the suite.
. /run/lab/env
if [ "$DEBIAN" ] && [ $$ = 1 ]; then
    mkdir -p "$ROOT" /run/systemd/system
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,ro,cache=loose repository "$ROOT"
    # Without one this would be the first boot ever, which enables every service there is.
    tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
    cat >/run/systemd/system/lab.service <<UNIT
[Unit]
Requires=basic.target
After=basic.target
[Service]
ExecStart=/bin/sh /run/lab/guest.sh
UNIT
    exec /lib/systemd/systemd --unit=lab.service
fi
[ -d /sys/kernel/debug/block ] || mount -t debugfs debugfs /sys/kernel/debug
ip link set lo up
until port=$(grep -lx berth /sys/class/virtio-ports/*/name); do sleep 0.01; done
port=/dev/$(basename "${port%/name}")
{
    for module in $MODULES; do modprobe "$module" || echo "not ok modprobe $module"; done
    cd "$ROOT" && timeout -k 5 "$TIMEOUT" "$SUITE"
    echo $? >/run/lab/exit
} >"$port" 2>&1 </dev/null
# A reset ends QEMU, which runs with -no-reboot, at once.
echo b >/proc/sysrq-trigger
