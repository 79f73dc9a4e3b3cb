# For suites that lease virtual functions of a card, the only one there is. `region` is what the pool says beside `pf`, and has
# a line `count = N`. Sourced.
. lab/node.sh

for pf in /sys/bus/pci/devices/*; do [ ! -e "$pf/sriov_totalvfs" ] || break; done
pf=$(basename "$pf")
count=$(echo "$region" | sed -n 's/^count = //p')
function() { basename "$(readlink "/sys/bus/pci/devices/$pf/virtfn$1")"; }

# configure POLICY
configure() {
    node_config <<TOML
[admin]
listen = "127.0.0.1:5780"
[[region]]
name = "vfs"
kind = "vf"
pf = "$pf"
owner = "root"
$region
[[binding]]
kind = "sriov"
on_revoke = "$1"
TOML
}
# state NAME: how many functions are in it. A shell starts in a tenth of Python's time.
state() {
    bash -c 'exec 3<>/dev/tcp/127.0.0.1/5780 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3' |
        sed -n "s/^berth_control_sriov_functions{.*state=\"$1\".*} \([0-9]*\).*/\1/p"
}
is() { [ "$(state "$1")" = "$2" ]; }
whole() { is free "$count"; }

tenants() {
    mkdir "$work/ann" "$work/bob"
    for tenant in ann bob; do as $tenant key new >/dev/null && as $tenant enroll >/dev/null; done
}
# as TENANT berth arguments
as() {
    tenant=$1
    shift
    HOME="$work/$tenant" "$BERTH" "$@"
}
alloc() {
    as "$1" lease alloc $node --type net --json >"$work/alloc"
    sed 's/.*"lease_id": *"\([0-9a-f]*\)".*/\1/' "$work/alloc"
}
# bind TENANT LEASE OPTIONS...: the function's address.
bind() {
    tenant=$1 lease=$2
    shift 2
    as "$tenant" lease bind $node "$lease" --kind sriov --json "$@" >"$work/bind" || return 1
    sed 's/.*"function": *"\([^"]*\)".*/\1/' "$work/bind"
}
free() { as "$1" lease free $node "$2"; }

# A node that is killed somewhere amid a hand-over.
kills() {
    for wait in 0.05 0.1 0.2 0.3 0.5; do
        ann=$(alloc ann)
        bind ann "$ann" >/dev/null 2>&1 &
        binding=$!
        sleep $wait
        kill -9 $berth
        wait $berth 2>/dev/null || true
        kill $binding 2>/dev/null || true
        wait $binding 2>/dev/null || true
        start
        free ann "$ann" >/dev/null 2>&1 || true
    done
    check "the pool is whole after five kills amid hand-overs" within 10 whole
}
# As many rounds as a sample has, or ten times as many.
rounds() {
    rounds=$((ANSWERS / 1000)) bound=0 taken=0
    for _ in $(seq "$rounds"); do
        ann=$(alloc ann)
        before=$(date +%s%N)
        bind ann "$ann" >/dev/null || echo "not ok a round"
        between=$(date +%s%N)
        free ann "$ann" >/dev/null || echo "not ok a round"
        bound=$((bound + between - before)) taken=$((taken + $(date +%s%N) - between))
    done
    echo "$rounds rounds: bound in $((bound / rounds / 1000000)) ms, taken back in $((taken / rounds / 1000000)) ms, the commands included"
    check "the pool is whole after $rounds rounds" whole
}
