# PID 1 of the guest once the host's root is there: runs the suite that /run/lab/env names, then ends the guest. With
# systemd it comes twice: as PID 1, which becomes systemd, and as a service of it, which runs the suite.
. /run/lab/env
if [ "$SYSTEMD" ] && [ $$ = 1 ]; then
    mkdir -p /run/systemd/system
    cat >/run/systemd/system/berth-suite.service <<UNIT
[Unit]
Requires=basic.target
After=basic.target
[Service]
ExecStart=/bin/sh /run/lab/guest.sh
UNIT
    # It would look through the host's /tmp.
    ln -s /dev/null /run/systemd/system/systemd-tmpfiles-setup.service
    exec /lib/systemd/systemd --unit=berth-suite.service
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
