//! The lease plane: `[node]`, `[control]`, `[[region]]`, `[dataplane]`, `[[binding]]`.

use berth_keys::{Key, Kind, Owned, Owner, Section, key};

pub(super) static NODE: Section = Section::new(
    "",
    &[
        key("state_dir", Kind::Text, "where the journal of leases is kept, and the node's key")
            .default("\"/var/lib/berth\""),
        key("key_file", Kind::Text, "the node's key, made at the first start")
            .otherwise("node.key in state_dir")
            .example("\"node.key\""),
        key("site", Kind::Integer(0, u32::MAX as u64), "where the node stands, as announced").default("0"),
        key("row", Kind::Integer(0, u32::MAX as u64), "where the node stands, as announced").default("0"),
        key("rack", Kind::Integer(0, u32::MAX as u64), "where the node stands, as announced").default("0"),
        key("trust_domain", Kind::Text, "whom it trusts, as announced; at most 255 bytes").default("\"\""),
    ],
);

pub(super) static CONTROL: Section = Section::new(
    "The lease plane: this host as a fabricBIOS node that leases memory and blocks. Off without [control].",
    &[
        key("udp", Kind::Text, "control over UDP")
            .default("\"127.0.0.1:5700\"")
            .more("Port 0 takes a free port; the \"berth ready\" line tells which."),
        key("quic", Kind::Text, "control and data over QUIC").default("\"127.0.0.1:5701\""),
        key("relay", Kind::Text, "the discovery relay").otherwise("off").example("\"127.0.0.1:5706\""),
        key("announce", Kind::Texts, "relays that are told of this node").default("[]").example("[\"10.0.0.1:5706\"]"),
        key(
            "enroll",
            Kind::Choice(&[
                ("closed", "only the keys of `enrolled`"),
                ("open", "any key may enrol itself, without permissions"),
            ]),
            "who may enrol",
        )
        .default("\"closed\"")
        .live(),
        key("enrolled", Kind::Texts, "public keys, 64 hex digits each: what `berth key show` prints")
            .default("[]")
            .live(),
        key("require_fence", Kind::Flag, "no token before a scheduler has installed a fence").default("false"),
        key(
            "max_requests_per_sec",
            Kind::Integer(0, u32::MAX as u64),
            "requests that are served of each sender; 0 is without limit",
        )
        .default("10000")
        .live(),
        key("max_leases", Kind::Integer(1, 1 << 24), "leases at a time, revoked ones that are remembered included")
            .default("65536")
            .more("Room for them is taken at the start."),
        key("policy", Kind::Tables(&POLICY), "what presenters may do").live(),
    ],
);

static POLICY: Section = Section::new(
    "What presenters may do, and how much of the node each may have, whatever the regions. The permissions of all \
          policies that fit a presenter add up. A quota of a policy that names a presenter goes before that of \"*\"; of \
          several the largest counts. What is kept or remembered counts.",
    &[
        key("presenter", Kind::Text, "\"*\" is every enrolled one; or the 32 hex digits of an id")
            .required()
            .example("\"*\""),
        key("perms", Kind::Texts, "of read, write, alloc, revoke, exec, admin, delegate")
            .required()
            .example("[\"read\", \"write\", \"alloc\"]"),
        key("resources", Kind::Texts, "names of regions").otherwise("all").example("[\"scratch\"]"),
        key("max_leases", Kind::Integer(0, 1 << 24), "its leases: in grace and, for 300 s, revoked ones too")
            .otherwise("all of the node's")
            .example("1000"),
        key("max_bytes", Kind::Size, "its bytes, each lease in whole pages of 4 KiB, or chunks of a GPU's own memory")
            .otherwise("all of the node's")
            .example("\"16 MiB\""),
        key("max_handles", Kind::Integer(0, 1 << 24), "handles of its leases").otherwise("4096").example("100"),
        key("max_attachments", Kind::Integer(0, 1 << 24), "handles that it imported").otherwise("4096").example("100"),
        key("max_proxies", Kind::Integer(0, 1 << 16), "TCP proxies").otherwise("1024").example("10"),
        key("max_bindings", Kind::Integer(0, 1 << 16), "its leases that are connected to a transport of their own")
            .otherwise("1024")
            .example("10"),
        key("max_page_state", Kind::Integer(0, 1 << 32), "pages of its leases whose state is kept")
            .otherwise("1048576")
            .example("65536"),
        key("max_functions", Kind::Integer(0, 1 << 16), "virtual functions")
            .otherwise("all of the node's")
            .example("2"),
        key("max_composites", Kind::Integer(0, 1 << 16), "composite leases, of cores and an arena")
            .otherwise("all of the node's")
            .example("2"),
    ],
);

pub(super) static REGION: Section = Section::new(
    "What can be leased.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"scratch\""),
        key(
            "kind",
            Kind::Choice(&[
                ("memory", "bytes"),
                ("block", "blocks of 512 bytes"),
                ("vram", "bytes of a GPU's memory, which kernels of their holder reach"),
                ("vf", "virtual functions of a network card or an NVMe controller, one a lease"),
            ]),
            "what it is leased as",
        )
        .required()
        .example("\"memory\""),
        key("size", Kind::Size, "its length, a multiple of 4096 bytes")
            .otherwise("all of a path, or seven eighths of what is free of a GPU's own memory; else it must be given")
            .example("\"64 MiB\""),
        key("backing", Kind::Text, "ram, hugepages, or for blocks also the path of a file or block device")
            .default("\"ram\""),
        key("numa", Kind::Integer(0, 1023), "the NUMA node of its memory").otherwise("any").example("0"),
    ],
)
.owned(&[&[Owned {
    by: Owner { key: "kind", word: "vram" },
    keys: &[
        key("gpu", Kind::Text, "the name of a [[gpu]] with use = \"lease\"").required().example("\"gpu1\""),
        key(
            "memory",
            Kind::Choice(&[
                ("vram", "in the GPU's own memory"),
                ("pinned", "in the host's, which the GPU reads"),
                ("auto", "in the GPU's own where its driver shares it among processes, else in the host's"),
            ]),
            "where its bytes are",
        )
        .default("\"auto\""),
    ],
}, Owned {
    by: Owner { key: "kind", word: "vf" },
    keys: &[
        key("pf", Kind::Text, "the PCI address of the physical function").required().example("\"0000:03:00.0\""),
        key("count", Kind::Integer(1, 65535), "virtual functions; made where there is another number")
            .otherwise("as many as there are")
            .example("7"),
        key("owner", Kind::Text, "the user whose /dev/vfio/GROUP a holder's function is, by name or number")
            .otherwise("the one that Berth runs as")
            .example("\"berth\""),
        key(
            "namespace",
            Kind::Integer(1, 0xFFFF_FFFE),
            "of an NVMe controller: the namespace of the first, erased after each holder; each further one has the next",
        )
        .otherwise("it is a network card")
        .example("2"),
        key("mac", Kind::Text, "the address of the first; each further one has the next")
            .otherwise("drawn for each holder")
            .example("\"02:00:00:00:10:00\""),
        key("vlan", Kind::Integer(0, 4094), "their VLAN; 0 is none").default("0"),
        key("rate", Kind::Integer(0, u32::MAX as u64), "what each may send, in Mbit/s; 0 is without limit")
            .default("0"),
        key("trust", Kind::Flag, "they may change their address and listen to everything").default("false"),
        key("spoofchk", Kind::Flag, "only frames of their own address leave").default("true"),
        key("client_sets", Kind::Texts, "what holders may choose themselves, of mac and vlan")
            .default("[]")
            .example("[\"mac\"]"),
    ],
}]]);

pub(super) static DATAPLANE: Section = Section::new(
    "Where leases are read and written beside QUIC and ports with service = \"lease-io\". All are off by default.",
    &[
        key("fbmt", Kind::Text, "memory over TCP").otherwise("off").example("\"127.0.0.1:5704\""),
        key("fbbt", Kind::Text, "blocks over TCP").otherwise("off").example("\"127.0.0.1:5705\""),
        key("fbmu", Kind::Text, "memory and blocks over UDP").otherwise("off").example("\"127.0.0.1:5703\""),
    ],
);

/// Of both providers.
const LISTEN: Key = key(
    "listen",
    Kind::Texts,
    "addresses that hosts connect to, none of them a wildcard; port 0 takes a free one, not with provider = \"kernel\"",
)
.default("\"127.0.0.1:4420\"");

pub(super) static BINDING: Section = Section::new(
    "Transports of their own that a lease is connected to by LEASE_BIND.",
    &[
        key(
            "kind",
            Kind::Choice(&[
                ("rdma", "one-sided reads and writes, past the lease table"),
                ("nvme", "a disk of the client's host: blocks over NVMe"),
                ("sriov", "the leased virtual function itself, through vfio-pci"),
            ]),
            "the transport",
        )
        .required()
        .example("\"rdma\""),
        key("max_leases", Kind::Integer(1, 65536), "leases that are connected at once").default("256"),
    ],
)
.owned(&[&[
    Owned {
        by: Owner { key: "kind", word: "rdma" },
        keys: &[
            key("device", Kind::Text, "a name that `rdma link` prints").required().example("\"mlx5_0\""),
            key("port", Kind::Integer(1, 255), "the device's port").default("1"),
            key("gid_index", Kind::Integer(0, 255), "the address that clients connect to; `berth doctor` lists them")
                .default("1"),
            key(
                "windows",
                Kind::Choice(&[
                    ("auto", "memory windows where they work"),
                    ("always", "or else the appliance does not start"),
                    ("never", "a memory region for each lease"),
                ]),
                "what scopes a remote key",
            )
            .default("\"auto\""),
        ],
    },
    Owned {
        by: Owner { key: "kind", word: "nvme" },
        keys: &[
            key(
                "provider",
                Kind::Choice(&[
                    ("berth", "this program, which checks each command"),
                    ("kernel", "the kernel's own target, of regions in a file or on a device"),
                ]),
                "who serves it",
            )
            .default("\"berth\""),
            key(
                "transport",
                Kind::Choice(&[
                    ("tcp", "TCP, by this program"),
                    ("rdma", "RDMA, by the kernel"),
                    ("loop", "to this very host, by the kernel"),
                ]),
                "what it is served over",
            )
            .default("\"tcp\""),
        ],
    },
    Owned { by: Owner { key: "transport", word: "rdma" }, keys: &[LISTEN] },
    Owned {
        by: Owner { key: "provider", word: "berth" },
        keys: &[
            key(
                "auth",
                Kind::Choice(&[
                    ("none", "a host is whom its NQN says"),
                    (
                        "dhchap",
                        "DH-HMAC-CHAP on each queue, with a secret of each LEASE_BIND, which is for QUIC alone then",
                    ),
                    ("tls", "not built yet"),
                ]),
                "how hosts prove who they are",
            )
            .default("\"none\"")
            .more("An NQN is no secret: without authentication, listen where only your hosts are. None encrypts."),
            LISTEN,
            key("cpus", Kind::Cpus, "the CPUs that poll connections; a queue stays on one")
                .otherwise("the first one that is not for housekeeping")
                .example("[1]"),
            key("idle", super::port::IDLE, "what these CPUs do when there is nothing to do").default("\"adaptive\""),
            key(
                "max_hosts",
                Kind::Integer(1, 65519),
                "controllers at once: one for each lease that a host has connected, and for its discovery",
            )
            .default("64"),
            key("io_queues", Kind::Integer(1, 256), "I/O queues of a controller").default("8"),
            key("queue_depth", Kind::Integer(2, 256), "commands of a queue at once").default("128"),
            key("in_capsule", Kind::Size, "data that a command may bring with it (IOCCSZ), from 4 KiB to 64 KiB")
                .default("\"16 KiB\""),
            key("buffers", Kind::Size, "memory for data under way, of all connections").default("\"64 MiB\""),
        ],
    },
    Owned {
        by: Owner { key: "kind", word: "sriov" },
        keys: &[key(
            "on_revoke",
            Kind::Choice(&[
                ("fence", "nobody gets the function before its holder has closed it"),
                ("kill", "the process that holds it is ended"),
            ]),
            "what follows when a holder does not let go in 2 s",
        )
        .default("\"fence\"")],
    },
]]);

pub(super) static TASKLET: Section = Section::new(
    "WASM that clients submit, to run beside what they lease (docs/tasklets.md). Needs a build with `wasm`. Off without \
          [tasklet].",
    &[
        key("cpus", Kind::Cpus, "the CPUs that tasklets run on; as many as composite leases can have")
            .required()
            .example("[0]"),
        key(
            "isolation",
            Kind::Choice(&[
                ("process", "each run in a process of its own, which reaches nothing but what the run may touch"),
                ("inline", "on threads of this process: for tenants that are trusted not to break the WASM runtime"),
            ]),
            "where tasklets run",
        )
        .default("\"process\""),
        key(
            "executors",
            Kind::Choice(&[
                ("auto", "the unit where its socket is there, /run/berth-executor.sock; else as `child`"),
                ("unit", "berth-executor.service, another user's: no tasklet runs without it"),
                ("child", "this process"),
            ]),
            "who starts the processes of tasklets",
        )
        .default("\"auto\""),
        key("memory", Kind::Size, "all linear memories, those of composite leases included").default("\"256 MiB\""),
        key("modules", Kind::Size, "compiled modules that are kept").default("\"256 MiB\""),
        key("results", Kind::Size, "results that are kept").default("\"64 MiB\""),
        key("result_secs", Kind::Integer(1, 86_400), "how long a result is kept").default("300"),
        key("sync_wait_ms", Kind::Integer(0, 10_000), "how long TASKLET_SUBMIT waits for the end of a run")
            .default("1000"),
        key("queue", Kind::Integer(1, 1 << 20), "runs that wait, a quarter of them of one key").default("1024"),
        key("max_fuel", Kind::Integer(0, i64::MAX as u64), "fuel of a run, at most").default("10000000000"),
        key("max_memory", Kind::Size, "linear memory of a run, at most; a multiple of 64 KiB").default("\"64 MiB\""),
        key("max_output", Kind::Size, "output of a run, at most; up to 512 KiB").default("\"512 KiB\""),
        key("max_hostcalls", Kind::Integer(0, u32::MAX as u64), "hostcalls of a run, at most").default("1000000"),
        key("max_wall_ms", Kind::Integer(1, 3_600_000), "time of a run, at most").default("10000"),
    ],
);
