//! `berth check`: exact messages, all of them in one pass.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

fn check(folder: &TempDir, text: &str) -> Output {
    let file = folder.path().join("berth.toml");
    fs::write(&file, text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file).output().unwrap()
}

/// The mistakes in `text`, without the folder of the file.
fn mistakes(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let output = check(&folder, text);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    let prefix = format!("{}/", folder.path().display());
    String::from_utf8(output.stderr).unwrap().replace(&prefix, "").lines().map(str::to_string).collect()
}

const PORT: &str = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\n";

#[test]
fn the_default_file_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/berth.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.starts_with("port fpga0: udp 127.0.0.1:4700, cpu "), "{out}");
    assert!(out.ends_with("function rpc_increment: rpc_increment\n"), "{out}");
}

#[cfg(feature = "dpdk")]
#[test]
fn the_demo_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/demo.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn examples_are_valid_but_for_this_host() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/examples");
    for file in fs::read_dir(folder).unwrap() {
        let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file.unwrap().path()).output().unwrap();
        for line in String::from_utf8(output.stderr).unwrap().lines() {
            let other_builds = ["built without DPDK", "built without libfabric"];
            let fine =
                line.contains("does not exist or is not allowed") || other_builds.iter().any(|b| line.contains(b));
            assert!(fine, "{line}");
        }
    }
}

#[test]
fn no_function_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let output = check(&folder, PORT);
    assert_eq!(output.status.code(), Some(0));
    let wanted = format!(
        "warning: {}/berth.toml:1:1: function: no [[function]] is given, every request will be refused; add one, such as \
         rpc_increment\n",
        folder.path().display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), wanted);
}

#[test]
fn an_unreadable_file_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(["check", "/nowhere/berth.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let wanted = "/nowhere/berth.toml:1:1: cannot be read: No such file or directory (os error 2); name a TOML file\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), wanted);
}

/// A document and the lines it earns, after the name of the file.
type Case = (&'static str, &'static [&'static str]);

fn assert_cases(before: &str, cases: &[Case]) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let cpus = (0..cpus).map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(", ");
    for (text, wanted) in cases {
        let wanted: Vec<_> = wanted.iter().map(|line| format!("berth.toml:{}", line.replace("CPUS", &cpus))).collect();
        let found: Vec<_> = mistakes(&format!("{before}{text}"));
        assert_eq!(found, wanted, "in\n{before}{text}");
    }
}

#[test]
fn the_document_itself() {
    assert_cases(
        "",
        &[
            ("", &["1:1: port: is missing; write [[port]] with a name and a driver"]),
            ("port = 3", &["1:8: port: is 3; a list of tables, each headed [[port]], is wanted"]),
            ("port = []", &["1:8: port: is empty; write [[port]] and its keys"]),
            (
                "[[port]]\nname = \"a\ndriver = 3",
                &[
                    "2:10: not TOML: invalid basic string, expected `\"`",
                    "3:10: port[0].driver: is 3; a string is wanted",
                ],
            ),
            (
                "[[port]]\n",
                &[
                    "1:1: port[0].name: is missing; write name = \"fpga0\"",
                    "1:1: port[0].driver: is missing; write driver = \"udp\", \"uring\", \"dpdk\", \"ofi\", \"verbs\" or \"loopback\"",
                ],
            ),
        ],
    );
}

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
                &[
                    "6:1: port[0].udp_port: means nothing here; only driver = \"dpdk\" has it, kernel sockets have `bind`",
                ],
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
                "[[port]]\nname = \"b\"\ndriver = \"loopback\"\ncpu = 0\nidle = \"wait\"",
                &["10:8: port[1].idle: CPU 0 idles as port \"a\" says; give ports of one CPU the same idle"],
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
                    "14:1: port[1].bind: means nothing here; a DPDK port has `address` and `udp_port`",
                ],
            ),
        ],
    );
}

#[test]
fn decoders_and_functions() {
    assert_cases(
        PORT,
        &[
            (
                "[[decoder]]\nname = \"a b\"\nalgorithm = \"mwpm\"\ndepth = 2\nmodel = \"gone.dem\"",
                &[
                    "7:8: decoder[0].name: \"a b\" is not a name; use 1 to 64 printable ASCII characters, no spaces",
                    "9:1: decoder[0].depth: means nothing here; only algorithm = \"lut\" has a depth",
                    "10:9: decoder[0].model: there is no file gone.dem; relative paths start at the folder of the configuration file",
                ],
            ),
            (
                "[[function]]\nname = \"f\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"d5\"\n[[function]]\nname = \"f\"\n\
                 handler = \"builtin:rpc_incr\"\n[[function]]\nname = \"g\"\nhandler = \"lib.so\"\ndispatch = \"ring\"\nargs = \
                 [\"int32\"]",
                &[
                    "9:11: function[0].decoder: there is no decoder \"d5\"; there are none",
                    "11:8: function[1].name: \"f\" is taken; each name is used once",
                    "12:11: function[1].handler: \"rpc_incr\" is not built in; did you mean `rpc_increment`?",
                    "13:1: function[2].dispatch: port \"a\" has no workers; give it rpc.worker_cpus",
                    "15:11: function[2].handler: \"lib.so\" is not a handler; write \"builtin:NAME\" or \"plugin:PATH#SYMBOL\"",
                    "17:1: function[2].args: means nothing here; only plug-ins have it, the schema of a builtin is known",
                ],
            ),
            (
                "[[function]]\nname = \"f\"\nhandler = \"plugin:gone.so#f\"\nargs = [\"int33\", \"array_uint8\"]\ntable = \"t\"",
                &[
                    "6:1: function[0].abi: is missing; write abi = \"host_call\" or \"device_call\"",
                    "8:11: function[0].handler: there is no file gone.so; relative paths start at the folder of the configuration file",
                    "9:9: function[0].args[0]: \"int33\" is not a type; there are: uint8, int32, int64, float32, float64, \
                     array_uint8[N], array_int32[N], array_float32[N], array_float64[N], bit_packed[N]",
                    "9:18: function[0].args[1]: \"array_uint8\" is not a type; there are: uint8, int32, int64, float32, float64, \
                     array_uint8[N], array_int32[N], array_float32[N], array_float64[N], bit_packed[N]",
                    "10:1: function[0].table: means nothing here; plug-ins have abi, args and results",
                ],
            ),
        ],
    );
}

/// Like [`mistakes`], with files beside the configuration.
fn mistakes_with(text: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        fs::write(folder.path().join(name), contents).unwrap();
    }
    let output = check(&folder, text);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let prefix = format!("{}/", folder.path().display());
    String::from_utf8(output.stderr).unwrap().replace(&prefix, "").lines().map(str::to_string).collect()
}

#[test]
fn a_model_that_is_none_is_reported_with_its_own_line() {
    let decoder = "[[decoder]]\nname = \"d\"\nalgorithm = \"mwpm\"\nmodel = \"m.dem\"\n";
    let text = format!("{PORT}{decoder}");
    let found = mistakes_with(&text, &[("m.dem", "error(0.1) D0 L0\nerror(1.5) D1\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("berth.toml:9:9: decoder[0].model: not a detector error model: m.dem:2:"),
        "{found:?}"
    );
    // Three detectors in one error: a hyperedge, which matching cannot take.
    let found = mistakes_with(&text, &[("m.dem", "error(0.1) D0 D1 D2 L0\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("berth.toml:9:9: decoder[0].model: m.dem suits another algorithm: "), "{found:?}");
}

#[test]
fn measurements_and_tables_are_read_too() {
    let decoder = "[[decoder]]\nname = \"d\"\nalgorithm = \"mwpm\"\nmodel = \"m.dem\"\nmeasurements = \"s.txt\"\n";
    let model = ("m.dem", "error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1\n");
    for (matrix, wanted) in [
        ("0 x -1", "\"x\" is not a number; write each detector's measurements and -1"),
        ("0 1", "the last row does not end: -1 is missing; write each detector's measurements and -1"),
        ("0 1 -1", "has 1 rows; the model has 2 detectors"),
    ] {
        let found = mistakes_with(&format!("{PORT}{decoder}"), &[model, ("s.txt", matrix)]);
        assert_eq!(found, [format!("berth.toml:10:16: decoder[0].measurements: s.txt: {wanted}")]);
    }
    let function = "[[function]]\nname = \"m\"\nhandler = \"builtin:mock_decode\"\ntable = \"t.txt\"\n";
    let found = mistakes_with(&format!("{PORT}{function}"), &[("t.txt", "NUM_DATA 1\nWHAT\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("berth.toml:9:9: function[0].table: not a syndrome file: t.txt:2: "), "{found:?}");
}

#[test]
fn plug_ins_are_loaded() {
    let function = |symbol| {
        format!("{PORT}[[function]]\nname = \"f\"\nabi = \"host_call\"\nhandler = \"plugin:lib.so#{symbol}\"\n")
    };
    let found = mistakes_with(&function("f"), &[("lib.so", "not a library")]);
    assert_eq!(found.len(), 1, "{found:?}");
    let prefix = "berth.toml:9:11: function[0].handler: plug-in lib.so ";
    assert!(found[0].starts_with(&format!("{prefix}is not a shared library that can be loaded: ")), "{found:?}");

    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("f.c");
    fs::write(&source, "void f(const void *rx, void *tx, unsigned long size) { (void)rx; (void)tx; (void)size; }")
        .unwrap();
    let library = folder.path().join("lib.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(built.success());
    assert_eq!(check(&folder, &function("f")).status.code(), Some(0));
    let output = check(&folder, &function("g"));
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let stderr = stderr.replace(&format!("{}/", folder.path().display()), "");
    let wanted = "exports no symbol \"g\"; C++ needs extern \"C\", Rust #[unsafe(no_mangle)]\n";
    assert_eq!(stderr, format!("{prefix}{wanted}"));
}

#[test]
fn a_decoding_server_has_one_place() {
    let functions = "[port.rpc]\nworker_cpus = [0]\n[[function]]\nname = \"enqueue_syndromes\"\nhandler = \
                     \"builtin:enqueue_syndromes\"\ndispatch = \"ring\"\n[[function]]\nname = \"get_corrections\"\n\
                     handler = \"builtin:get_corrections\"\n";
    let wanted = "berth.toml:14:11: function[1].handler: port \"a\" runs it elsewhere than \"enqueue_syndromes\", without \
                  its sessions; give both the same dispatch";
    assert_eq!(mistakes(&format!("{PORT}{functions}")), [wanted]);
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
        "berth.toml:7:1: port[0].mtu: means nothing here; only driver = \"dpdk\" has it",
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
            "berth.toml:6:1: port[0].rendezvous: means nothing here; only transport = \"roce\", driver = \"verbs\" and driver = \"ofi\" have it"
        ]
    );
    let both =
        "[[port]]\nname = \"a\"\ndriver = \"ofi\"\nprovider = \"tcp\"\nrendezvous = \"127.0.0.1:0\"\ncpus = [0, 1]\n";
    let wanted = "berth.toml:6:1: port[0].cpus: means nothing here; a libfabric port has one endpoint; give it one `cpu`, \
                  and other CPUs ports of their own";
    assert!(mistakes(both).contains(&wanted.to_string()));
}

#[test]
fn keys_of_bindings() {
    let twice = "[control]\n[[binding]]\nkind = \"rdma\"\ndevice = \"rxe0\"\n[[binding]]\nkind = \"rdma\"\nport = 0\n\
                 windows = \"often\"\nmax_leases = 65537\n";
    let without = "this berth was built without RDMA; build it with `cargo build --release --features verbs`";
    let mut wanted = vec![
        "berth.toml:5:1: binding[1].device: is missing; write device = \"mlx5_0\", a name that `rdma link` prints"
            .into(),
        "berth.toml:6:8: binding[1].kind: there is a binding of this kind already; a node has one of each kind".into(),
        "berth.toml:7:8: binding[1].port: is 0; an integer from 1 to 255 is wanted".into(),
        "berth.toml:8:11: binding[1].windows: \"often\" is unknown; there are: always, auto, never".into(),
        "berth.toml:9:14: binding[1].max_leases: is 65537; an integer from 1 to 65536 is wanted".into(),
    ];
    if !cfg!(feature = "verbs") {
        wanted.insert(0, format!("berth.toml:3:8: binding[0].kind: {without}"));
        wanted.insert(2, format!("berth.toml:6:8: binding[1].kind: {without}"));
    }
    assert_eq!(mistakes(twice), wanted);
    let alone = format!("{PORT}[[binding]]\nkind = \"rdma\"\ndevice = \"rxe0\"\n");
    let wanted = "berth.toml:6:1: binding[0]: connects leases, and nothing grants any; add [control]";
    assert!(mistakes(&alone).contains(&wanted.to_string()));
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
            "11:1: port[1].bind: means nothing here; an RDMA port has `device` and `rendezvous`",
            "12:1: port[1].address: means nothing here; an RDMA port has `device` and `rendezvous`",
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
        "berth.toml:6:1: port[0].gid_index: means nothing here; only driver = \"verbs\" has it",
        "berth.toml:7:1: port[0].rendezvous: means nothing here; only transport = \"roce\", driver = \"verbs\" and driver = \"ofi\" have it",
    ];
    assert_eq!(elsewhere, wanted);
}

/// RFC 8032, section 7.1, test 1.
const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

#[test]
fn a_node_may_lease_without_ports() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[node]\nstate_dir = \"state\"\nsite = 1\nrow = 2\nrack = 3\ntrust_domain = \"lab\"\n\
         [control]\nudp = \"127.0.0.1:0\"\nenrolled = [\"{PUBLIC}\"]\nrequire_fence = true\nrelay = \"[::1]:5706\"\n\
         [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\"]\n\
         [[control.policy]]\npresenter = \"21fe31dfa154a261626bf854046fd227\"\nperms = \"admin\"\nresources = [\"a\", \"c\"]\n\
         [[region]]\nname = \"a\"\nkind = \"memory\"\nsize = \"64 MiB\"\nnuma = 0\n\
         [[region]]\nname = \"b\"\nkind = \"memory\"\nsize = 8192\nbacking = \"hugepages\"\n\
         [[region]]\nname = \"c\"\nkind = \"block\"\nbacking = \"disk\"\n\
         [dataplane]\nfbmt = \"0.0.0.0:5704\"\nfbmu = \"0.0.0.0:5703\"\n"
    );
    let output = check(&folder, &text);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let out = String::from_utf8(output.stdout).unwrap().replace(&format!("{}/", folder.path().display()), "");
    let wanted = [
        "region a: memory, 67108864 B of ram, numa node 0",
        "region b: memory, 8192 B of hugepages",
        "region c: block, all of disk",
        "control: 1 enrolled, enrolment closed, tokens only under a fence, state state, key state/node.key",
        "policy *: read, write, alloc on all regions",
        "policy 21fe31dfa154a261626bf854046fd227: admin on a, c",
        "endpoint control-udp: 127.0.0.1:0",
        "endpoint quic: 127.0.0.1:5701",
        "endpoint relay: [::1]:5706",
        "endpoint fbmu: 0.0.0.0:5703",
        "endpoint fbmt: 0.0.0.0:5704",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), wanted);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn keys_of_the_lease_plane() {
    assert_cases(
        "[control]\n",
        &[
            (
                "udp = \"localhost\"\nquic = 5701\nenroll = \"opened\"\nrequire_fence = 1\nmax_requests_per_sec = -1\n\
                 enrolled = \"00\"\nregion = 1",
                &[
                    "2:7: control.udp: \"localhost\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"",
                    "3:8: control.quic: is 5701; a string is wanted",
                    "4:10: control.enroll: \"opened\" is unknown; did you mean `open`?",
                    "5:17: control.require_fence: is 1; true or false is wanted",
                    "6:24: control.max_requests_per_sec: is -1; an integer from 0 to 4294967295 is wanted",
                    "7:12: control.enrolled: \"00\" is not a public key; `berth key show` prints one: 64 hex digits",
                    "8:1: control.region: is not a key; there are: announce, enroll, enrolled, max_leases, max_requests_per_sec, policy, quic, relay, \
                     require_fence, udp",
                ],
            ),
            (
                "[[control.policy]]\n[[control.policy]]\npresenter = \"me\"\nperms = [\"read\", \"rite\"]\nresources = [\"b\"]\n\
                 [[region]]\nname = \"a\"\nkind = \"memory\"\nsize = \"1 MB\"",
                &[
                    "2:1: control.policy[0].presenter: is missing; write presenter = \"*\" or the id that `berth key show` prints",
                    "2:1: control.policy[0].perms: is missing; write perms = [\"read\", \"write\", \"alloc\"]",
                    "4:13: control.policy[1].presenter: \"me\" is not an id; write \"*\" or the 32 hex digits that `berth key \
                     show` prints",
                    "5:18: control.policy[1].perms[1]: \"rite\" is not a permission; did you mean `write`?",
                    "6:14: control.policy[1].resources[0]: there is no region \"b\"; there are: a",
                    "10:8: region[0].size: is the string \"1 MB\"; a number of bytes such as 67108864 or \"64 MiB\" is wanted",
                ],
            ),
            (
                "[[region]]\nname = \"a\"\n[[region]]\nname = \"a\"\nkind = \"memory\"\nbacking = \"disk\"\nnuma = 0\nsize = 1000",
                &[
                    "2:1: region[0].kind: is missing; write kind = \"memory\" or \"block\"",
                    "2:1: region[0].size: is missing; write size = \"64 MiB\"",
                    "5:8: region[1].name: \"a\" is taken; each name is used once",
                    "7:11: region[1].backing: \"disk\" is a path, and memory is \"ram\" or \"hugepages\"",
                    "8:1: region[1].numa: means nothing here; a path has no NUMA node",
                    "9:8: region[1].size: is 1000 bytes; a multiple of 4096 is wanted",
                ],
            ),
            (
                "udp = \"127.0.0.1:7\"\nquic = \"127.0.0.1:7\"\n[dataplane]\nfbmu = \"127.0.0.1:7\"\nfbmt = \"127.0.0.1:7\"\n\
                 fbbt = \"127.0.0.1:7\"\n[[port]]\nname = \"p\"\ndriver = \"udp\"\nbind = \"127.0.0.1:7\"\ncpu = 0\n\
                 service = \"lease-io\"\n[port.rpc]",
                &[
                    "3:8: control.quic: control.udp binds 127.0.0.1:7 too; give each port its own address",
                    "5:8: dataplane.fbmu: control.quic binds 127.0.0.1:7 too; give each port its own address",
                    "7:8: dataplane.fbbt: dataplane.fbmt binds 127.0.0.1:7 too; give each port its own address",
                    "11:8: port[0].bind: dataplane.fbmu binds 127.0.0.1:7 too; give each port its own address",
                    "14:7: port[0].rpc: means nothing here; only service = \"rpc\" has it",
                ],
            ),
        ],
    );
}

#[test]
fn what_serves_leases_needs_a_control_plane() {
    assert_cases(
        PORT,
        &[(
            "service = \"lease-io\"\n[dataplane]\nfbmt = \"127.0.0.1:0\"",
            &[
                "6:11: port[0].service: \"lease-io\" serves leases, and nothing grants any; add [control]",
                "7:1: dataplane: serves leases, and nothing grants any; add [control]",
            ],
        )],
    );
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
    let good = check(
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
            "7:1: port[0].rendezvous: means nothing here; only transport = \"roce\", driver = \"verbs\" and driver = \"ofi\" have it",
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
