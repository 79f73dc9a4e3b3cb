//! The appliance on its host: `[runtime]`, `[log]`, `[tune]`, `[admin]`.

use berth_keys::{Kind, Section, key};

pub(super) static RUNTIME: Section = Section::new(
    "",
    &[
        key("housekeeping_cpus", Kind::Cpus, "where everything but the poll loops runs: signals, clocks, logs, leases")
            .otherwise("the first CPU this process may use")
            .example("[0]")
            .said(),
        key("dpdk", Kind::Table(&DPDK), "memory of DPDK"),
    ],
);

static DPDK: Section = Section::new(
    "",
    &[
        key("hugepages", Kind::FlagOr("auto"), "whether DPDK's memory comes from huge pages")
            .default("\"auto\"")
            .more("true: start only with huge pages; false: ordinary pages; \"auto\": huge where enough are free."),
        key("memory_mb", Kind::Integer(16, 1 << 20), "how much ordinary memory DPDK takes, in MiB")
            .default("256")
            .more("Of huge pages it takes what it needs."),
    ],
);

pub(super) static LOG: Section = Section::new(
    "What `berth run` says of itself. The variable RUST_LOG goes before its level.",
    &[
        key("level", Kind::Text, "the least level that is logged")
            .default("\"info\"")
            .more("error, warn, info, debug or trace, also by module: \"info,berth::run=debug\"."),
        key(
            "format",
            Kind::Choice(&[
                ("auto", "to journald, with fields, where standard error leads there; else text"),
                ("text", "lines for people, on standard error"),
                ("json", "a JSON object a line, on standard error"),
                ("journal", "to journald, with a field for each value"),
            ]),
            "where lines go, and how they look",
        )
        .default("\"auto\"")
        .fixed(),
    ],
);

pub(super) static TUNE: Section = Section::new(
    "What `berth tune apply` makes of the host, and `berth tune revert` takes back. CPUs that poll are those of ports \
          and workers, and of NVMe/TCP and HIP Remote where they are not for housekeeping.",
    &[
        key("hugepages_2m", Kind::Integer(0, 1 << 24), "at least so many huge pages of 2 MiB")
            .otherwise("as they are")
            .example("512")
            .live(),
        key("hugepages_1g", Kind::Integer(0, 1 << 14), "at least so many huge pages of 1 GiB")
            .otherwise("as they are")
            .example("4")
            .live(),
        key("interrupts", Kind::Flag, "interrupts and kernel work go to CPUs that do not poll").default("true").live(),
        key(
            "governor",
            Kind::Choice(&[
                ("performance", "the highest frequency"),
                ("schedutil", "as the scheduler sees the load"),
                ("ondemand", "by sampling the load"),
                ("powersave", "the lowest frequency"),
            ]),
            "the frequency governor of the CPUs that poll",
        )
        .otherwise("as it is")
        .example("\"performance\"")
        .live(),
        key("rt_throttling", Kind::Flag, "false: real-time tasks may have a whole CPU")
            .otherwise("as it is")
            .example("false")
            .live(),
        key(
            "cpu_dma_latency_us",
            Kind::Integer(0, 1_000_000),
            "`berth run` keeps CPUs out of idle states that take longer to leave, in microseconds",
        )
        .otherwise("as the host does")
        .example("0"),
        key("nic", Kind::Tables(&NIC), "interfaces of the kernel, for udp, uring and AF_XDP ports").live(),
    ],
);

static NIC: Section = Section::new(
    "An interface of the kernel.",
    &[
        key("name", Kind::Text, "the interface").required().example("\"eth0\""),
        key("defer_hard_irqs", Kind::Integer(0, 1000), "how many polls without a frame put its interrupt off")
            .otherwise("as it is")
            .example("200"),
        key(
            "gro_flush_timeout_ns",
            Kind::Integer(0, 1_000_000_000),
            "when a deferred interrupt comes after all, in nanoseconds",
        )
        .otherwise("as it is")
        .example("20000"),
    ],
);

pub(super) static ADMIN: Section = Section::new(
    "Where the appliance tells how it is: /metrics for Prometheus, /status, /healthz, /readyz. Off without [admin].",
    &[
        key("listen", Kind::Text, "the TCP address")
            .default("\"127.0.0.1:5780\"")
            .more("Port 0 takes a free port; the \"berth ready\" line tells which."),
        key("token_file", Kind::Text, "a file with the secret that requests carry as bearer token")
            .otherwise("none is wanted")
            .example("\"admin.token\"")
            .more("Needed beyond loopback; at least 16 printable characters."),
    ],
);
