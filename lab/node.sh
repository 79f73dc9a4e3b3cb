# For suites that run a node by `$work/berth.toml`. Sourced.
work=$(mktemp -d)
export HOME="$work"
node="--udp --node 127.0.0.1:5700"

# Writes the configuration of a node from which everybody may lease; standard input is what there is to lease, and the rest.
node_config() {
    {
        cat <<TOML
[runtime]
housekeeping_cpus = [0]
[node]
state_dir = "$work/state"
[control]
udp = "127.0.0.1:5700"
quic = "127.0.0.1:5701"
enroll = "open"
[[control.policy]]
presenter = "*"
perms = ["read", "write", "alloc", "revoke"]
TOML
        cat
    } >"$work/berth.toml"
}

# Runs a check; the end of what it prints is shown where it fails.
check() {
    what=$1
    shift
    if "$@" >"$work/out" 2>&1; then echo "ok $what"; else echo "not ok $what: $(tail -n 3 "$work/out" | tr '\n' ' ')"; fi
}
not() { ! "$@"; }
within() {
    tries=$(($1 * 10))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

start() {
    "$BERTH" run --config "$work/berth.toml" >"$work/ready" 2>>"$OUT/berth.log" &
    berth=$!
    until grep -q "^berth ready" "$work/ready"; do
        kill -0 $berth 2>/dev/null || { echo "not ok berth starts: $(tail -n 1 "$OUT/berth.log")"; exit 0; }
        sleep 0.1
    done
}
stop() {
    kill $berth
    wait $berth || echo "not ok berth ends with $?"
}
