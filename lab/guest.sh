# PID 1 of the guest once the host's root is there: runs the suite that /run/lab/env names, then ends the guest.
. /run/lab/env
mount -t debugfs debugfs /sys/kernel/debug
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
