//! `[node]`, `[control]`, `[[region]]`, `[dataplane]` and `[[binding]]`.

use super::{PORT, assert_cases, check, mistakes};

#[test]
fn keys_of_bindings() {
    let twice = "[control]\n[[binding]]\nkind = \"rdma\"\ndevice = \"rxe0\"\n[[binding]]\nkind = \"rdma\"\nport = 0\n\
                 windows = \"often\"\nmax_leases = 65537\n[[binding]]\nkind = \"rdma\"\ndevice = \"rxe0\"\n";
    let without = "this berth was built without RDMA; build it with `cargo build --release --features verbs`";
    let mut wanted = vec![
        "berth.toml:5:1: binding[1].device: is missing; write device = \"mlx5_0\", a name that `rdma link` prints"
            .into(),
        "berth.toml:7:8: binding[1].port: is 0; an integer from 1 to 255 is wanted".into(),
        "berth.toml:8:11: binding[1].windows: \"often\" is unknown; there are: always, auto, never".into(),
        "berth.toml:9:14: binding[1].max_leases: is 65537; an integer from 1 to 65536 is wanted".into(),
        "berth.toml:12:10: binding[2].device: there is a binding of this device already".into(),
    ];
    if !cfg!(feature = "verbs") {
        wanted.insert(0, format!("berth.toml:3:8: binding[0].kind: {without}"));
        wanted.insert(2, format!("berth.toml:6:8: binding[1].kind: {without}"));
        wanted.insert(6, format!("berth.toml:11:8: binding[2].kind: {without}"));
    }
    assert_eq!(mistakes(twice), wanted);
    let alone = format!("{PORT}[[binding]]\nkind = \"rdma\"\ndevice = \"rxe0\"\n");
    let wanted = "berth.toml:6:1: binding[0]: connects leases, and nothing grants any; add [control]";
    assert!(mistakes(&alone).contains(&wanted.to_string()));
}

#[test]
fn keys_of_nvme_bindings() {
    let text = "[control]\nudp = \"127.0.0.1:5700\"\n[[binding]]\nkind = \"nvme\"\nlisten = [\"0.0.0.0:4420\", \"x\"]\n\
                buffers = 4096\nin_capsule = 8200\nqueue_depth = 1\ndevice = \"rxe0\"\n[[binding]]\nkind = \"nvme\"\n\
                listen = \"127.0.0.1:1\"\n[[binding]]\nkind = \"nvme\"\nlisten = \"127.0.0.1:1\"\n";
    let wanted = [
        "berth.toml:5:11: binding[0].listen[0]: is no address that a host can connect to; name one of this host",
        "berth.toml:5:27: binding[0].listen[1]: \"x\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"",
        "berth.toml:6:11: binding[0].buffers: is less than 131072 bytes",
        "berth.toml:7:14: binding[0].in_capsule: is not a multiple of 16 from 4096 to 65536 bytes",
        "berth.toml:8:15: binding[0].queue_depth: is 1; an integer from 2 to 256 is wanted",
        "berth.toml:9:1: binding[0].device: means nothing here; it belongs to kind = \"rdma\", leave it out",
        "berth.toml:15:10: binding[2].listen: binding[1] binds 127.0.0.1:1 too; give each port its own address",
    ];
    assert_eq!(mistakes(text), wanted);
    let auth = |word| format!("[control]\n[[binding]]\nkind = \"nvme\"\nauth = \"{word}\"\n");
    let tls = "berth.toml:4:8: binding[0].auth: \"tls\" is not built; write \"dhchap\", which proves who a host is and \
               encrypts nothing";
    assert_eq!(mistakes(&auth("tls")), [tls]);
    let text = "[control]\nudp = \"127.0.0.1:5700\"\n\
                [[binding]]\nkind = \"nvme\"\ntransport = \"rdma\"\n\
                [[binding]]\nkind = \"nvme\"\nprovider = \"kernel\"\n\
                [[binding]]\nkind = \"nvme\"\nprovider = \"kernel\"\ntransport = \"tcp\"\n\
                [[binding]]\nkind = \"nvme\"\nprovider = \"kernel\"\ntransport = \"rdma\"\nauth = \"none\"\n\
                [[binding]]\nkind = \"nvme\"\nprovider = \"kernel\"\ntransport = \"rdma\"\nlisten = [\"10.0.0.1:0\"]\n\
                [[binding]]\nkind = \"nvme\"\nprovider = \"kernel\"\ntransport = \"loop\"\nlisten = \"10.0.0.1:1\"\n\
                [[binding]]\nkind = \"nvme\"\nprovider = \"kernel\"\ntransport = \"loop\"\n";
    let wanted = [
        "berth.toml:5:13: binding[0].transport: is what provider = \"kernel\" serves",
        "berth.toml:6:1: binding[1].transport: is missing; write transport = \"rdma\", or \"loop\"",
        "berth.toml:12:13: binding[2].transport: is what provider = \"berth\" serves",
        "berth.toml:13:1: binding[3].listen: is missing; write listen = [\"10.0.0.2:4420\"], an address of an RDMA device",
        "berth.toml:17:1: binding[3].auth: means nothing here; it belongs to provider = \"berth\", leave it out",
        "berth.toml:22:11: binding[4].listen[0]: names no port, and the kernel does not choose one",
        "berth.toml:27:1: binding[5].listen: means nothing here; it belongs to transport = \"rdma\", or provider = \"berth\", leave it out",
        "berth.toml:31:13: binding[6].transport: there is a binding of it already",
    ];
    assert_eq!(mistakes(text), wanted);
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
                    "2:1: region[0].kind: is missing; write kind = \"memory\", \"block\", \"vram\" or \"vf\"",
                    "2:1: region[0].size: is missing; write size = \"64 MiB\"",
                    "5:8: region[1].name: \"a\" is taken; each name is used once",
                    "7:11: region[1].backing: \"disk\" is a path, and memory is \"ram\" or \"hugepages\"",
                    "8:1: region[1].numa: means nothing here; a path has no NUMA node",
                    "9:8: region[1].size: is 1000 bytes; a multiple of 4096 is wanted",
                ],
            ),
            (
                "[[region]]\nname = \"a\"\nkind = \"vf\"\nsize = 4096\npf = \"3:00.0\"\nmac = \"01:00:00:00:00:00\"\n\
                 client_sets = [\"vlans\"]\n[[region]]\nname = \"b\"\nkind = \"vf\"\npf = \"0000:03:00.0\"\nvlan = 4095\n\
                 [[region]]\nname = \"c\"\nkind = \"vf\"\npf = \"0000:03:00.0\"\n[[region]]\nname = \"d\"\n\
                 kind = \"memory\"\nsize = 4096\nrate = 1\n[[region]]\nname = \"e\"\nkind = \"vf\"\npf = \"0000:04:00.0\"\n\
                 vlan = 3\nnamespace = 0\n[[region]]\nname = \"f\"\nkind = \"vf\"\npf = \"0000:05:00.0\"\nnamespace = 2\n\
                 spoofchk = true",
                &[
                    "2:1: region: has functions that nobody is handed over; add [[binding]] with kind = \"sriov\"",
                    "5:1: region[0].size: means nothing here; functions have no bytes",
                    "6:6: region[0].pf: \"3:00.0\" is no PCI address; write one such as 0000:03:00.0",
                    "7:7: region[0].mac: \"01:00:00:00:00:00\" is not the address of one card; write one such as \
                     02:00:00:00:10:00",
                    "8:16: region[0].client_sets[0]: \"vlans\" is nothing that a holder may choose; did you mean `vlan`?",
                    "13:8: region[1].vlan: is 4095; an integer from 0 to 4094 is wanted",
                    "17:6: region[2].pf: there is a region of this function already",
                    "22:1: region[3].rate: means nothing here; it belongs to kind = \"vf\", leave it out",
                    "28:13: region[4].namespace: is 0; an integer from 1 to 4294967294 is wanted",
                    "34:1: region[5].spoofchk: means nothing here; functions of an NVMe controller have a namespace, and no \
                     network",
                ],
            ),
            (
                "[[region]]\nname = \"a\"\nkind = \"vf\"\n[[binding]]\nkind = \"sriov\"\nmax_leases = 2\non_revoke = \"ask\"\n\
                 [[binding]]\nkind = \"sriov\"",
                &[
                    "2:1: region[0].pf: is missing; write pf = \"0000:03:00.0\", an address that `lspci -D` prints",
                    "7:1: binding[0].max_leases: means nothing here; as many are connected as there are functions",
                    "8:13: binding[0].on_revoke: \"ask\" is unknown; there are: fence, kill",
                    "10:8: binding[1]: there is a binding of this kind already, and it is of all pools",
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
                    "14:7: port[0].rpc: means nothing here; it belongs to service = \"rpc\", leave it out",
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

#[cfg(feature = "wasm")]
#[test]
fn who_runs_tasklets_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (key, by) in [
        ("", "in processes of their unit, or of this one where it is not there"),
        ("executors = \"unit\"", "in processes of their unit"),
        ("executors = \"child\"", "in processes of this one"),
        ("isolation = \"inline\"", "on threads of this process"),
    ] {
        let output = check(&folder, &format!("[control]\nudp = \"127.0.0.1:0\"\n[tasklet]\ncpus = [1]\n{key}\n"));
        let out = String::from_utf8(output.stdout).unwrap();
        let wanted = format!("\ntasklets: {by}, on cpu 1, 268435456 bytes of memory\n");
        assert!(out.contains(&wanted), "{out}");
    }
}

#[cfg(feature = "wasm")]
#[test]
fn tasklets_keep_off_cpus_that_poll() {
    let polling = "[runtime]\nhousekeeping_cpus = [0]\n[control]\nudp = \"127.0.0.1:0\"\n\
        [[binding]]\nkind = \"nvme\"\nlisten = [\"127.0.0.1:0\"]\ncpus = [1]\n[tasklet]\ncpus = [1]\n";
    let found = mistakes(polling);
    assert_eq!(found, ["berth.toml:9:1: tasklet: CPU 1 polls ports, rings or sessions; tasklets need others"]);
}
