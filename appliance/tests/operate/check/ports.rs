//! `[runtime]` and `[[port]]`.

use super::{PORT, assert_cases, mistakes};

#[test]
fn keys_of_runtime_and_port() {
    assert_cases(
        PORT,
        &[
            (
                "[runtime]\nhouskeeping_cpus = [0]",
                &["7:1: runtime.houskeeping_cpus: is not a key; did you mean `housekeeping_cpus`?"],
            ),
            (
                "[runtime]\nhousekeeping_cpus = [0, 0, 4095, \"1\"]",
                &[
                    "7:25: runtime.housekeeping_cpus[1]: CPU 0 is listed twice; name each CPU once",
                    "7:28: runtime.housekeeping_cpus[2]: CPU 4095 does not exist or is not allowed; this process may use: \
                     CPUS",
                    "7:34: runtime.housekeeping_cpus[3]: is the string \"1\"; an integer from 0 to 4095 is wanted",
                ],
            ),
            (
                "[runtime.dpdk]\nhugepages = 1\nmemory_mb = 1",
                &[
                    "7:13: runtime.dpdk.hugepages: is 1; true, false or \"auto\" is wanted",
                    "8:13: runtime.dpdk.memory_mb: is 1; an integer from 16 to 1048576 is wanted",
                ],
            ),
            ("idle = \"spinn\"", &["6:8: port[0].idle: \"spinn\" is unknown; did you mean `spin`?"]),
            ("idle = 1", &["6:8: port[0].idle: is 1; a string is wanted"]),
            ("service = \"nvme\"", &["6:11: port[0].service: \"nvme\" is unknown; there are: lease-io, rpc"]),
            (
                "[runtime]\nhousekeeping_cpus = []",
                &["7:21: runtime.housekeeping_cpus: is empty; name at least one CPU"],
            ),
            ("cpus = [0]", &["5:1: port[0].cpu: means nothing here; `cpus` is given too, keep one of them"]),
            (
                "udp_port = 1",
                &["6:1: port[0].udp_port: means nothing here; it belongs to driver = \"dpdk\", leave it out"],
            ),
            (
                "[port.fault]\ndrop = 1.5\ncorrupt = \"often\"\nseed = -1\n[port.pcap]\nmax_bytes = 10",
                &[
                    "7:8: port[0].fault.drop: is 1.5; a probability from 0 to 1 is wanted",
                    "8:11: port[0].fault.corrupt: is the string \"often\"; a probability from 0 to 1 is wanted",
                    "9:8: port[0].fault.seed: is -1; an integer from 0 to 9223372036854775807 is wanted",
                    "10:1: port[0].pcap.file: is missing; write file = \"fpga0.pcap\"",
                    "11:13: port[0].pcap.max_bytes: is 10; an integer from 1024 to 1099511627776 is wanted",
                ],
            ),
            (
                "weight = 0\n[port.limits]\nper_peer_rps = 0\nburst = 5\nqueue = 8\nrate = 1",
                &[
                    "6:10: port[0].weight: is 0; an integer from 1 to 1000 is wanted",
                    "8:16: port[0].limits.per_peer_rps: is 0; an integer from 1 to 100000000 is wanted",
                    "9:1: port[0].limits.burst: means nothing here; it is the burst of `rps`, which is not given",
                    "10:9: port[0].limits.queue: is 8; an integer from 32 to 32768 is wanted",
                    "11:1: port[0].limits.rate: is not a key; there are: burst, per_peer_burst, per_peer_rps, queue, rps",
                ],
            ),
            (
                "[port.rpc]\nmemory = \"shared\"\nworker_cpus = [0]\ndispatch = \"ring\"",
                &[
                    "6:1: port[0].rpc.shared_name: is missing; write shared_name = \"fpga0\"",
                    "8:1: port[0].rpc.worker_cpus: means nothing here; with memory = \"shared\" whoever attaches to the \
                     ring serves it",
                ],
            ),
            (
                "[port.rpc]\nmemory = \"shared\"\nshared_name = \"../fpga0\"",
                &["8:15: port[0].rpc.shared_name: \"../fpga0\" is not the name of a file; leave slashes out"],
            ),
            (
                "[port.rpc]\nmemory = \"hugepages\"\nshared_name = \"fpga0\"",
                &["8:1: port[0].rpc.shared_name: means nothing here; it belongs to memory = \"shared\", leave it out"],
            ),
            (
                "[[port.rpc.ring]]\nname = \"a\"\nslots = 0\n[[port.rpc.ring]]\nname = \"a\"\nmemory = \"shared\"\nworker_cpus = \
                 [0]\nshared_name = \"x\"\n[[port.rpc.ring]]\nworker_cpus = [4095]\nslot_size = 64\n[[port.rpc.ring]]\n\
                 name = \"b\"\nworker_cpus = []\nshared_name = \"x\"",
                &[
                    "6:1: port[0].rpc.ring[0].worker_cpus: is missing; write worker_cpus = [1], the CPUs that run handlers \
                     for dispatch = \"ring\"",
                    "8:9: port[0].rpc.ring[0].slots: is 0; an integer from 1 to 65536 is wanted",
                    "10:8: port[0].rpc.ring[1].name: \"a\" is taken; each name is used once",
                    "12:1: port[0].rpc.ring[1].worker_cpus: means nothing here; with memory = \"shared\" whoever attaches to \
                     the ring serves it",
                    "14:1: port[0].rpc.ring[2].name: is missing; write name = \"decoders\"",
                    "15:16: port[0].rpc.ring[2].worker_cpus[0]: CPU 4095 does not exist or is not allowed; this process may \
                     use: CPUS",
                    "16:1: port[0].rpc.ring[2].slot_size: is not a key; did you mean `slots`?",
                    "19:15: port[0].rpc.ring[3].worker_cpus: is empty; name at least one CPU",
                    "20:1: port[0].rpc.ring[3].shared_name: means nothing here; it belongs to memory = \"shared\", leave it out",
                ],
            ),
            (
                "[port.rpc]\nmemory = \"shared\"\nshared_name = \"x\"\n[[port.rpc.ring]]\nname = \"a\"\nmemory = \"shared\"\n\
                 shared_name = \"x\"",
                &["12:15: port[0].rpc.ring[0].shared_name: \"x\" is taken; each name is used once"],
            ),
            (
                "[port.rpc]\nheader = \"v25\"\nslots = 0\nslotsize = 64\ndispatch = \"ring\"",
                &[
                    "6:1: port[0].rpc.worker_cpus: is missing; write worker_cpus = [1], the CPUs that run handlers for \
                     dispatch = \"ring\"",
                    "7:10: port[0].rpc.header: \"v25\" is unknown; there are: v16, v24",
                    "8:9: port[0].rpc.slots: is 0; an integer from 1 to 65536 is wanted",
                    "9:1: port[0].rpc.slotsize: is not a key; did you mean `slot_size`?",
                ],
            ),
        ],
    );
}

#[test]
fn several_ports() {
    assert_cases(
        PORT,
        &[
            (
                "[[port]]\nname = \"a\"\ndriver = \"uring\"\nbind = \"localhost:1\"\ncpu = 4095",
                &[
                    "7:8: port[1].name: \"a\" is taken; each name is used once",
                    "9:8: port[1].bind: \"localhost:1\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"",
                    "10:7: port[1].cpu: CPU 4095 does not exist or is not allowed; this process may use: CPUS",
                ],
            ),
            (
                "[[port]]\nname = \"b\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"",
                &["11:8: port[1].idle: CPU 0 idles as port \"a\" says; give ports of one CPU the same idle"],
            ),
            (
                "[[port]]\nname = \"b\"\ndriver = \"udp\"\nbind = \"[::1]:5\"\n[[port]]\nname = \"c\"\ndriver = \"uring\"\n\
                 bind = \"[::1]:5\"",
                &["13:8: port[2].bind: port \"b\" binds [::1]:5 too; give each port its own address"],
            ),
        ],
    );
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn dpdk_ports() {
    const BUILD: &str = "8:10: port[1].driver: this berth was built without DPDK; build it with `cargo build --release \
                         --features dpdk`";
    assert_cases(
        &format!("{PORT}[[port]]\nname = \"b\"\ndriver = \"dpdk\"\n"),
        &[
            (
                "",
                &[
                    "6:1: port[1].device: is missing; write device = \"0000:3b:00.0\" or \
                     \"net_memif0,role=server,socket=/run/berth/fpga0.sock\"",
                    "6:1: port[1].address: is missing; write address = \"10.0.0.2/24\"",
                    "6:1: port[1].udp_port: is missing; write udp_port = 4700",
                    BUILD,
                ],
            ),
            (
                "device = \"net_null0\"\nudp_port = 1\naddress = [\"10.0.0.2/33\", \"fd00::1\"]\nvlan = 4095\n\
                 neighbours = \"10.0.0.1\"\nbind = \"[::1]:1\"",
                &[
                    BUILD,
                    "11:12: port[1].address[0]: \"10.0.0.2/33\" is not an address with a prefix; write one like \"10.0.0.2/24\"",
                    "11:27: port[1].address[1]: \"fd00::1\" is not an address with a prefix; write one like \"10.0.0.2/24\"",
                    "12:8: port[1].vlan: is 4095; an integer from 1 to 4094 is wanted",
                    "13:14: port[1].neighbours: \"10.0.0.1\" is not a neighbour; write one like \"10.0.0.1 02:00:00:00:00:01\"",
                    "14:1: port[1].bind: means nothing here; it belongs to driver = \"udp\", \"uring\", \"tcp\" or \"ofi\", leave it out",
                ],
            ),
        ],
    );
}

#[test]
fn keys_of_libfabric_ports() {
    let port = "[[port]]\nname = \"a\"\ndriver = \"ofi\"\ncpus = [0, 1]\nbind = \"here\"\nmax_peers = 0\nmtu = 1500\n";
    let mut wanted = vec![
        "berth.toml:1:1: port[0].provider: is missing; write provider = \"tcp\", or another one that `berth doctor` lists \
         with FI_EP_RDM",
        "berth.toml:1:1: port[0].rendezvous: is missing; write rendezvous = \"127.0.0.1:0\"",
        "berth.toml:5:8: port[0].bind: \"here\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"",
        "berth.toml:6:13: port[0].max_peers: is 0; an integer from 1 to 4096 is wanted",
        "berth.toml:7:1: port[0].mtu: means nothing here; it belongs to driver = \"dpdk\", leave it out",
    ];
    if !cfg!(feature = "ofi") {
        wanted.insert(
            2,
            "berth.toml:3:10: port[0].driver: this berth was built without libfabric; build it with `cargo build --release \
             --features ofi`",
        );
    }
    assert_eq!(mistakes(port), wanted);
    let elsewhere = mistakes(&format!("{PORT}rendezvous = \"127.0.0.1:0\"\n"));
    assert_eq!(
        elsewhere,
        [
            "berth.toml:6:1: port[0].rendezvous: means nothing here; it belongs to transport = \"roce\", or driver = \"ofi\" or \"verbs\", leave it out"
        ]
    );
    let both =
        "[[port]]\nname = \"a\"\ndriver = \"ofi\"\nprovider = \"tcp\"\nrendezvous = \"127.0.0.1:0\"\ncpus = [0, 1]\n";
    let wanted = "berth.toml:6:1: port[0].cpus: means nothing here; a libfabric port has one endpoint; give it one `cpu`, \
                  and other CPUs ports of their own";
    assert!(mistakes(both).contains(&wanted.to_string()));
}

#[test]
fn keys_of_verbs_ports() {
    let port = format!("{PORT}[[port]]\nname = \"b\"\ndriver = \"verbs\"\n");
    let build = "berth.toml:8:10: port[1].driver: this berth was built without RDMA; build it with `cargo build --release \
                 --features verbs`";
    let assert_case = |text: &str, wanted: &[&str]| {
        let mut wanted: Vec<_> = wanted.iter().map(|line| format!("berth.toml:{line}")).collect();
        let found: Vec<_> = mistakes(&format!("{port}{text}")).into_iter().filter(|line| line != build).collect();
        wanted.sort();
        assert_eq!(
            {
                let mut found = found;
                found.sort();
                found
            },
            wanted,
            "{text}"
        );
    };
    assert_case(
        "",
        &[
            "6:1: port[1].device: is missing; write device = \"mlx5_0\", a name that `rdma link` prints",
            "6:1: port[1].rendezvous: is missing; write rendezvous = \"10.0.1.2:4791\", where peers come",
        ],
    );
    let whole = "device = \"rxe0\"\nrendezvous = \"127.0.0.1:0\"\n";
    assert_case(
        &format!("{whole}bind = \"127.0.0.1:0\"\naddress = \"10.0.0.1/24\"\ngid_index = 256\n"),
        &[
            "11:1: port[1].bind: means nothing here; it belongs to driver = \"udp\", \"uring\", \"tcp\" or \"ofi\", leave it out",
            "12:1: port[1].address: means nothing here; it belongs to driver = \"dpdk\", leave it out",
            "13:13: port[1].gid_index: is 256; an integer from 0 to 255 is wanted",
        ],
    );
    assert_case(
        &format!("{whole}rdma = {{ immediate = \"psn24\", slots = 5, peers = 0 }}\n"),
        &[
            "11:39: port[1].rdma.slots: immediates of the form psn24 name 4 slots; write at most that",
            "11:50: port[1].rdma.peers: is 0; an integer from 1 to 1024 is wanted",
        ],
    );
    let elsewhere = mistakes(&format!("{PORT}gid_index = 1\nrendezvous = \"127.0.0.1:0\"\n"));
    let wanted = [
        "berth.toml:6:1: port[0].gid_index: means nothing here; it belongs to driver = \"verbs\", leave it out",
        "berth.toml:7:1: port[0].rendezvous: means nothing here; it belongs to transport = \"roce\", or driver = \"ofi\" or \"verbs\", leave it out",
    ];
    assert_eq!(elsewhere, wanted);
}

#[cfg(feature = "dpdk")]
#[test]
fn software_roce_has_keys_of_its_own() {
    let port = |lines: &str| {
        format!(
            "[[port]]\nname = \"a\"\ndriver = \"dpdk\"\ndevice = \"net_null0\"\naddress = \"10.0.0.2/24\"\n{lines}\n\
             [[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n"
        )
    };
    let roce = |lines: &str| port(&format!("transport = \"roce\"\nrendezvous = \"127.0.0.1:0\"\n{lines}"));
    let folder = tempfile::tempdir().unwrap();
    let good = super::check(
        &folder,
        &roce("[port.roce]\nslots = 4096\nstride = 256\n[[port.peer]]\naddress = \"fd00::1\"\nqpn = 0x11"),
    );
    assert_eq!(good.status.code(), Some(0), "{}", String::from_utf8_lossy(&good.stderr));
    let out = String::from_utf8(good.stdout).unwrap();
    let wanted =
        "port a: dpdk net_null0 roce port 4791, 4096 slots x 256 B, 1 known peers, rendezvous 127.0.0.1:0 Berth, cpu ";
    assert!(out.starts_with(wanted), "{out}");
    for (text, wanted) in [
        (
            port("transport = \"roce\""),
            "1:1: port[0].rendezvous: is missing; write rendezvous = \"10.0.1.2:4791\", where peers come, or [[port.peer]]",
        ),
        (
            port("udp_port = 4700\nrendezvous = \"127.0.0.1:0\""),
            "7:1: port[0].rendezvous: means nothing here; it belongs to transport = \"roce\", or driver = \"ofi\" or \"verbs\", leave it out",
        ),
        (
            roce("cpus = [0, 1]"),
            "8:1: port[0].cpus: means nothing here; a connection's packets all come to one queue; give transport = \"roce\" one `cpu`",
        ),
        (roce("[port.roce]\nstride = 200"), "8:1: port[0].roce: a stride of 200 bytes: a multiple of 128"),
        (
            roce("[port.roce]\nimmediate = \"psn24\"\nslots = 5"),
            "8:1: port[0].roce: 5 slots: from 1 to 4, which is what the immediate can name",
        ),
        (
            roce("[[port.peer]]\naddress = \"x\"\nqpn = 2"),
            "9:11: port[0].peer[0].address: \"x\" is not an address; write one like \"10.0.0.1\"",
        ),
    ] {
        assert_eq!(mistakes(&text), [format!("berth.toml:{wanted}")]);
    }
}

#[cfg(all(feature = "dpdk", feature = "verbs"))]
#[test]
fn order_means_nothing_to_rdma_peers() {
    let verbs = "driver = \"verbs\"\ndevice = \"rxe0\"\nrendezvous = \"127.0.0.1:0\"";
    let roce = "driver = \"dpdk\"\ndevice = \"net_null0\"\naddress = \"10.0.0.2/24\"\ntransport = \"roce\"\nrendezvous = \
                \"127.0.0.1:0\"";
    for (driver, line) in [(verbs, 8), (roce, 10)] {
        for word in ["arrival", "ready"] {
            let found =
                mistakes(&format!("[[port]]\nname = \"a\"\ncpu = 0\n{driver}\n[port.rpc]\norder = \"{word}\"\n"));
            let wanted = format!(
                "berth.toml:{line}:1: port[0].rpc.order: means nothing here; RDMA peers know answers by their slots"
            );
            assert_eq!(found, [wanted]);
        }
    }
    // Peers of other ports may need it.
    for word in ["arrival", "ready"] {
        let folder = tempfile::tempdir().unwrap();
        let good = super::check(&folder, &format!("{PORT}[port.rpc]\norder = \"{word}\"\n"));
        assert_eq!(good.status.code(), Some(0), "{}", String::from_utf8_lossy(&good.stderr));
    }
    assert_eq!(
        mistakes(&format!("{PORT}[port.rpc]\norder = \"fast\"\n")),
        ["berth.toml:7:9: port[0].rpc.order: \"fast\" is unknown; there are: arrival, ready"]
    );
}
