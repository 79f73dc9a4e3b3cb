//! `[[port]]`, with `[port.rpc]` and the tables of its drivers and layers.

use berth_keys::{CPU_MAX, Key, Kind, Owned, Owner, Section, key};

pub(super) static PORT: Section = Section::new(
    "A port is where requests come in. There may be several, also on one CPU. A node that only leases needs none.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"fpga0\"").said(),
        key("driver", Kind::Choice(berth_ports::WORDS), "where its frames come from")
            .required()
            .example("\"udp\"")
            .said(),
        key("cpu", Kind::Integer(0, CPU_MAX), "the CPU that polls this port")
            .otherwise("the first that is not for housekeeping")
            .example("1"),
        key("cpus", Kind::Cpus, "several CPUs: the port has a queue for each, instead of `cpu`").example("[2, 3]"),
        key("idle", IDLE, "what the CPU does while nothing arrives").default("\"spin\"").said(),
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
        key("limits", Kind::Table(&LIMITS), "what it takes, and what waits for it").otherwise("all is taken").live(),
        key("fault", Kind::Table(&FAULT), "faults on purpose, for tests").otherwise("none"),
        key("pcap", Kind::Table(&PCAP), "a capture of all frames").otherwise("none"),
    ],
)
.owned(&OWNED);

/// The keys of the services and of the drivers.
static OWNED: [&[Owned]; 1 + berth_ports::KEYS.len()] = {
    let mut owned = [SERVICES; 1 + berth_ports::KEYS.len()];
    let mut nth = 0;
    while nth < berth_ports::KEYS.len() {
        owned[nth + 1] = berth_ports::KEYS[nth];
        nth += 1;
    }
    owned
};

const SERVICES: &[Owned] = &[Owned {
    by: Owner { key: "service", word: "rpc" },
    keys: &[key("rpc", Kind::Table(&RPC_TABLE), "how calls are spoken and dispatched").said()],
}];

static RPC_TABLE: Section = Section::new(
    "",
    &[
        key("header", Kind::Choice(&[("v24", "with a time stamp"), ("v16", "without")]), "the header of the senders")
            .default("\"v24\"")
            .more("Both forms look alike on the wire, so this must be told.")
            .said(),
        SLOTS.said(),
        key("slot_size", Kind::Integer(64, 65507), "the longest request and answer with its header, in bytes")
            .default("2048")
            .said(),
        key("dispatch", DISPATCH, "where handlers run, unless the function says otherwise")
            .default("\"inline\"")
            .live()
            .said(),
        WORKER_CPUS
            .default("[]")
            .more("Needed for dispatch = \"ring\", unless memory = \"shared\". They may poll ports, too."),
        key("gpu", Kind::Text, "the name of the [[gpu]] that serves the port's own ring")
            .otherwise("none")
            .example("\"gpu0\"")
            .more("Needed for dispatch = \"gpu\". `slots` is then a multiple of the GPU's `blocks`."),
        OWN_MEMORY.said(),
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
        key("ring", Kind::Tables(&RING), "rings beside the port's own").otherwise("none"),
    ],
)
.owned(&[SHARED]);

static RING: Section = Section::new(
    "A ring beside the port's own, with workers of its own, for the functions that name it: quick ones then do not wait \
     for slow ones.",
    &[
        key("name", Kind::Text, "unique name within the port").required().example("\"decoders\""),
        SLOTS,
        WORKER_CPUS
            .otherwise("it must be given")
            .more("Not with memory = \"shared\". They may poll ports, and serve other rings."),
        MEMORY,
    ],
)
.owned(&[SHARED]);

const SLOTS: Key = key("slots", Kind::Integer(1, 65536), "requests that can wait for a worker").default("64");

const WORKER_CPUS: Key = key("worker_cpus", Kind::Cpus, "the CPUs that run handlers").example("[0]");

const MEMORY: Key = key(
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
);

const OWN_MEMORY: Key = key(
    "memory",
    Kind::Choice(&[
        ("heap", "the process's own"),
        ("hugepages", "reserved huge pages of 2 MiB"),
        ("shared", "shared memory: another process serves the ring"),
        ("pinned", "with gpu: memory of the host that the GPU reads"),
        ("vram", "with gpu: requests lie in the GPU's memory, which the CPU writes; answers are pinned"),
        ("auto", "with gpu, where it is the default: vram where that can be, else pinned"),
    ]),
    "what slots are made of",
)
.default("\"heap\"")
.more(
    "Huge pages lie on the NUMA node of the port's CPU. With \"shared\" there are no workers: whoever attaches to the \
     ring serves it, see docs/ring.md.",
);

const SHARED: &[Owned] = &[Owned {
    by: Owner { key: "memory", word: "shared" },
    keys: &[
        key("shared_name", Kind::Text, "the shared memory object, /dev/shm/berth-NAME")
            .required()
            .example("\"fpga0\"")
            .more("The second CPU of the port has NAME.1, and so on."),
        key(
            "unanswered_ms",
            Kind::Integer(0, 60_000),
            "how long after its request was freed an answer may come, in milliseconds",
        )
        .default("50")
        .more("Dispatchers that launch graphs free requests first; 0 is for those that answer first."),
    ],
}];

pub(super) const IDLE: Kind = Kind::Choice(&[
    ("spin", "poll without pause"),
    ("adaptive", "poll for a while, then sleep until something arrives"),
    ("wait", "sleep at once"),
]);

pub(super) const DISPATCH: Kind =
    Kind::Choice(&[("inline", "on the poll core"), ("ring", "on workers"), ("gpu", "on a GPU")]);

const RPS: Kind = Kind::Integer(1, 100_000_000);
const BURSTS: Kind = Kind::Integer(1, 1_000_000);

static LIMITS: Section = Section::new(
    "What the port takes. RPC requests over a limit are answered \"overloaded\" (or as on_undispatchable says), accesses \
          to leases are dropped; both are counted. Without a limit everything is taken. A reload changes the limits of RPC \
          ports.",
    &[
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
    ],
)
.owned(berth_ports::LIMITS);

static FAULT: Section = Section::new(
    "Faults on purpose, for tests. Probabilities per frame, in each direction.",
    &[
        key("seed", Kind::Integer(0, i64::MAX as u64), "equal seeds give equal faults").default("1"),
        key("drop", Kind::Probability, "the frame is lost").default("0.0"),
        key("duplicate", Kind::Probability, "the frame comes twice").default("0.0"),
        key("reorder", Kind::Probability, "the frame comes after the next one").default("0.0"),
        key("corrupt", Kind::Probability, "one bit of the frame is flipped").default("0.0"),
        key("delay_us", Kind::Integer(0, 1_000_000), "every frame comes this much later, in microseconds").default("0"),
    ],
);

static PCAP: Section = Section::new(
    "A capture of all frames, readable by Wireshark.",
    &[
        key("file", Kind::Text, "the file to write").required().example("\"fpga0.pcap\""),
        key("max_bytes", Kind::Integer(1024, 1 << 40), "where the capture ends, in bytes of the file")
            .default("100000000"),
    ],
);
