# Sourced by suites: two soft-RoCE devices, rxe0 at 10.9.0.1 and rxe1 at 10.9.0.2, on the two ends of a veth pair.
# The GID of an IPv4 address has index 1.
ip link add roce0 type veth peer name roce1
for n in 0 1; do
    ip addr add 10.9.0.$((n + 1))/24 dev roce$n
    ip link set roce$n up mtu 4200
    # Both ends are in one network namespace.
    sysctl -qw net.ipv4.conf.roce$n.accept_local=1 net.ipv4.conf.roce$n.rp_filter=0
    rdma link add rxe$n type rxe netdev roce$n
done
sysctl -qw net.ipv4.conf.all.rp_filter=0
