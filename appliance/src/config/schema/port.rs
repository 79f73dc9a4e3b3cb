//! `[[port]]`, with `[port.rpc]` and the tables of its drivers and layers.

use berth_port::BURST;

use super::{CPU_MAX, Kind, Section, key};

const DPDK: &str = "driver = \"dpdk\"";
const ROCE: &str = "transport = \"roce\"";
const OFI: &str = "driver = \"ofi\"";
const VERBS: &str = "driver = \"verbs\"";
const RPC: &str = "service = \"rpc\"";

pub(super) static PORT: Section = Section {
    doc: "A port is where requests come in. There may be several, also on one CPU. A node that only leases needs none.",
    keys: &[
        key("name", Kind::Text, "unique name").required().example("\"fpga0\"").said(),
        key(
            "driver",
            Kind::Choice(&[
                ("udp", "kernel sockets, polled"),
                ("uring", "kernel sockets behind an io_uring"),
                ("tcp", "byte streams behind an io_uring: FBMT for service = \"lease-io\"; one CPU"),
                ("dpdk", "a NIC or virtual device of DPDK; needs a build with --features dpdk"),
                ("ofi", "an endpoint of libfabric; needs a build with --features ofi"),
                ("verbs", "queue pairs of an RDMA device, or of soft-RoCE; needs a build with --features verbs"),
                ("loopback", "memory, for tests within the process"),
            ]),
            "where its frames come from",
        )
        .required()
        .example("\"udp\"")
        .said(),
        key("bind", Kind::Text, "the address to bind, UDP or TCP; for ofi the endpoint's own")
            .example("\"127.0.0.1:4700\"")
            .only("driver = \"udp\", \"uring\", \"tcp\" or \"ofi\"")
            .more(
                "Needed for sockets. Port 0 takes a free port; the \"berth ready\" line tells which. Without it the \
                 provider of ofi chooses.",
            )
            .said(),
        key("cpu", Kind::Integer(0, CPU_MAX), "the CPU that polls this port")
            .otherwise("the first that is not for housekeeping")
            .example("1"),
        key("cpus", Kind::Cpus, "several CPUs: the port has a queue for each, instead of `cpu`").example("[2, 3]"),
        key(
            "idle",
            Kind::Choice(&[
                ("spin", "poll without pause"),
                ("adaptive", "poll for a while, then sleep until a frame arrives"),
                ("wait", "sleep at once"),
            ]),
            "what the CPU does while nothing arrives",
        )
        .default("\"spin\"")
        .said(),
        key(
            "service",
            Kind::Choice(&[
                ("rpc", "calls of functions; [port.rpc] is for it"),
                ("lease-io", "two-sided access to leases; needs [control]"),
            ]),
            "what answers its frames",
        )
        .default("\"rpc\"")
        .said(),
        key(
            "weight",
            Kind::Integer(1, 1000),
            "how much of a CPU's time it or its worker gets while others on that CPU have work, relative to theirs",
        )
        .default("1"),
        key("device", Kind::Text, "a PCI address, a virtual device with its arguments, or an RDMA device")
            .required()
            .only("driver = \"dpdk\" or \"verbs\"")
            .example("\"0000:3b:00.0\"")
            .more(
                "For example \"net_memif0,role=server,socket=/run/berth/fpga0.sock\", or \"mlx5_0\". `berth doctor` lists \
                 the cards, and the commands that give them to DPDK.",
            ),
        key("address", Kind::Texts, "its addresses with prefix lengths, IPv4 or IPv6")
            .required()
            .only(DPDK)
            .example("\"10.0.0.2/24\""),
        key("udp_port", Kind::Integer(1, 65535), "the UDP port that is served")
            .required()
            .only(DPDK)
            .example("4700")
            .more("4791 unless given with transport = \"roce\"."),
        key("vlan", Kind::Integer(1, 4094), "the VLAN that all frames are tagged with")
            .only(DPDK)
            .otherwise("none")
            .example("100"),
        key("mtu", Kind::Integer(1280, 65535), "the longest IP packet, in bytes").only(DPDK).default("1500"),
        key("neighbours", Kind::Texts, "peers that need no ARP or NDP: address and MAC address")
            .only(DPDK)
            .default("[]")
            .example("[\"10.0.0.1 02:00:00:00:00:01\"]"),
        key(
            "transport",
            Kind::Choice(&[
                ("udp", "frames"),
                (
                    "roce",
                    "packets of unreliable connections (RoCEv2 in software): peers write requests into slots, or send them; \
                     one CPU",
                ),
            ]),
            "what its datagrams carry; see docs/rdma.md",
        )
        .only(DPDK)
        .default("\"udp\""),
        key("rendezvous", Kind::Text, "the TCP address where peers come to be let in")
            .only("transport = \"roce\", driver = \"ofi\" or \"verbs\"")
            .example("\"10.1.0.2:18515\"")
            .more("Port 0 takes a free port. Needed, but for transport = \"roce\" with [[port.peer]]."),
        key(
            "rendezvous_form",
            Kind::Choice(&[("berth", "Berth's own"), ("host-api", "the 12 bytes of the CUDA-Q host API")]),
            "what is spoken there",
        )
        .only("transport = \"roce\" or driver = \"verbs\"")
        .default("\"berth\""),
        key("provider", Kind::Text, "what `berth doctor` lists with FI_EP_RDM")
            .required()
            .only(OFI)
            .example("\"tcp\"")
            .more("tcp, shm, udp;ofi_rxd, verbs;ofi_rxm ..."),
        key("fabric", Kind::Text, "the fabric, where the provider has several, as `fi_info` names it")
            .only(OFI)
            .example("\"192.0.2.0/24\""),
        key("domain", Kind::Text, "the domain, where the fabric has several").only(OFI).example("\"eth0\""),
        key("max_peers", Kind::Integer(1, 4096), "peers at a time").only(OFI).default("64"),
        key("gid_index", Kind::Integer(0, 255), "the place of our address in the port's table of GIDs")
            .only(VERBS)
            .default("1")
            .more("`berth doctor` lists them."),
        key("rpc", Kind::Table(&RPC_TABLE), "how calls are spoken and dispatched").only(RPC).said(),
        key("limits", Kind::Table(&LIMITS), "what it takes, and what waits for it").otherwise("all is taken").live(),
        key("rdma", Kind::Table(&RDMA), "what each peer of driver = \"verbs\" has").only(VERBS),
        key("roce", Kind::Table(&ROCE_TABLE), "what each peer of transport = \"roce\" has").only(ROCE),
        key("peer", Kind::Tables(&PEER), "peers that are programmed by hand").only(ROCE),
        key("fault", Kind::Table(&FAULT), "faults on purpose, for tests").otherwise("none"),
        key("pcap", Kind::Table(&PCAP), "a capture of all frames").otherwise("none"),
    ],
};

static RPC_TABLE: Section = Section {
    doc: "",
    keys: &[
        key("header", Kind::Choice(&[("v24", "with a time stamp"), ("v16", "without")]), "the header of the senders")
            .default("\"v24\"")
            .more("Both forms look alike on the wire, so this must be told.")
            .said(),
        key("slots", Kind::Integer(1, 65536), "requests that can wait for a worker").default("64").said(),
        key("slot_size", Kind::Integer(64, 65507), "the longest request and answer with its header, in bytes")
            .default("2048")
            .said(),
        key("dispatch", DISPATCH, "where handlers run, unless the function says otherwise")
            .default("\"inline\"")
            .live()
            .said(),
        key("worker_cpus", Kind::Cpus, "the CPUs that run handlers")
            .default("[]")
            .example("[0]")
            .more("Needed for dispatch = \"ring\", unless memory = \"shared\". They may poll ports, too."),
        key(
            "memory",
            Kind::Choice(&[
                ("heap", "the process's own"),
                ("hugepages", "reserved huge pages of 2 MiB"),
                ("shared", "shared memory: another process serves the ring"),
            ]),
            "what slots are made of",
        )
        .default("\"heap\"")
        .more(
            "Huge pages lie on the NUMA node of the port's CPU. With \"shared\" there are no workers: whoever attaches to the \
             ring serves it, see docs/ring.md.",
        )
        .said(),
        key("shared_name", Kind::Text, "the shared memory object, /dev/shm/berth-NAME")
            .required()
            .only("memory = \"shared\"")
            .example("\"fpga0\"")
            .more("The second CPU of the port has NAME.1, and so on."),
        key(
            "on_undispatchable",
            Kind::Choice(&[("reply", "answer a negative status"), ("drop", "stay silent")]),
            "what becomes of a request that no handler can take",
        )
        .default("\"reply\"")
        .said(),
        key(
            "order",
            Kind::Choice(&[
                ("arrival", "in the order of its requests, wherever they ran"),
                ("ready", "as they become ready"),
            ]),
            "in which order each client gets its answers",
        )
        .default("\"arrival\"")
        .more(
            "It matters where some functions run inline and others on workers: the answer of an inline one then waits for \
             those that the same client asked for before. Clients that tell answers apart by nothing else, such as CUDA-Q's \
             device_call, need \"arrival\". RDMA peers know answers by their slots: there it is no setting, and answers \
             go out as they become ready.",
        )
        .said(),
        key(
            "ptp",
            Kind::Choice(&[("ns", "nanoseconds"), ("sec_nsec", "seconds and nanoseconds, 32 bits each")]),
            "how senders stamp",
        )
        .default("\"ns\"")
        .said(),
    ],
};

pub(super) const DISPATCH: Kind = Kind::Choice(&[("inline", "on the poll core"), ("ring", "on workers")]);

const IMMEDIATE: Kind = Kind::Choice(&[("psn20", "20 bits"), ("psn24", "24 bits")]);

const RPS: Kind = Kind::Integer(1, 100_000_000);
const BURSTS: Kind = Kind::Integer(1, 1_000_000);

static LIMITS: Section = Section {
    doc: "What the port takes. RPC requests over a limit are answered \"overloaded\" (or as on_undispatchable says), accesses \
          to leases are dropped; both are counted. Without a limit everything is taken. A reload changes the limits of RPC \
          ports.",
    keys: &[
        key("per_peer_rps", RPS, "requests per second of each peer, which is an IP address")
            .otherwise("no limit")
            .example("100000"),
        key("per_peer_burst", BURSTS, "requests of one peer at once")
            .otherwise("a hundredth of per_peer_rps, at least 32")
            .example("1000"),
        key("rps", RPS, "requests per second of all peers").otherwise("no limit").example("1000000"),
        key("burst", BURSTS, "requests of all peers at once")
            .otherwise("a hundredth of rps, at least 32")
            .example("10000"),
        key("queue", Kind::Integer(BURST as u64, 32_768), "frames that may wait for the port")
            .only("driver = \"udp\", \"uring\" or \"dpdk\"")
            .otherwise("some 5,000; with dpdk 1024")
            .example("1024")
            .fixed()
            .more("Beyond, they are dropped and counted, so that none waits longer than so many take."),
    ],
};

static RDMA: Section = Section {
    doc: "",
    keys: &[
        key("port", Kind::Integer(1, 255), "the device's port").default("1"),
        key("immediate", IMMEDIATE, "how many bits of sequence number stand above the slot").default("\"psn20\""),
        key("slots", Kind::Integer(1, 4096), "slots of each peer, at most 4 with psn24").default("64"),
        key("peers", Kind::Integer(1, 1024), "peers of each queue").default("64"),
    ],
};

static ROCE_TABLE: Section = Section {
    doc: "",
    keys: &[
        key("slots", Kind::Integer(1, 4096), "slots of each peer, at most 4 with psn24").default("64"),
        key("stride", Kind::Integer(128, 1 << 24), "bytes from one slot to the next, a multiple of 128")
            .default("2048"),
        key("base", Kind::Integer(0, 1 << 39), "the virtual address of the first slot, a multiple of 128").default("0"),
        key("immediate", IMMEDIATE, "how many bits of sequence number stand above the slot").default("\"psn20\""),
        key("p_key", Kind::Integer(1, 0xffff), "the partition").default("0xffff"),
        key("peers", Kind::Integer(1, 4096), "peers, at most").otherwise("16 more than are given here").example("16"),
    ],
};

static PEER: Section = Section {
    doc: "A peer that is programmed by hand. The \"berth ready\" line tells the queue pair and the key that it must use.",
    keys: &[
        key("address", Kind::Text, "its address").required().example("\"10.0.0.1\""),
        key("qpn", Kind::Integer(2, 0x00ff_fffe), "the number of its queue pair").required().example("0x11"),
        key("psn", Kind::Integer(0, 0x00ff_ffff), "the number of the first packet in each direction").default("0"),
    ],
};

static FAULT: Section = Section {
    doc: "Faults on purpose, for tests. Probabilities per frame, in each direction.",
    keys: &[
        key("seed", Kind::Integer(0, i64::MAX as u64), "equal seeds give equal faults").default("1"),
        key("drop", Kind::Probability, "the frame is lost").default("0.0"),
        key("duplicate", Kind::Probability, "the frame comes twice").default("0.0"),
        key("reorder", Kind::Probability, "the frame comes after the next one").default("0.0"),
        key("corrupt", Kind::Probability, "one bit of the frame is flipped").default("0.0"),
        key("delay_us", Kind::Integer(0, 1_000_000), "every frame comes this much later, in microseconds").default("0"),
    ],
};

static PCAP: Section = Section {
    doc: "A capture of all frames, readable by Wireshark.",
    keys: &[
        key("file", Kind::Text, "the file to write").required().example("\"fpga0.pcap\""),
        key("max_bytes", Kind::Integer(1024, 1 << 40), "where the capture ends, in bytes of the file")
            .default("100000000"),
    ],
};
