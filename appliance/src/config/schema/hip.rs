//! HIP Remote: `[hip]`.

use berth_keys::{Kind, Section, key};

pub(super) static HIP: Section = Section::new(
    "HIP calls of remote clients over TCP. Off without [hip]. Needs a [[hip.device]]; ports and [control] are not needed.",
    &[
        key("listen", Kind::Text, "the TCP address").default("\"127.0.0.1:18515\"").more(
            "Port 0 takes a free port; the \"berth ready\" line tells which. Beyond loopback only with [hip.tls] or insecure.",
        ),
        key(
            "insecure",
            Kind::Flag,
            "true: whoever reaches the address may use the GPUs, and without [hip.tls] everything is readable on the way",
        )
        .default("false"),
        key("cpus", Kind::Cpus, "the CPUs that poll the connections")
            .otherwise("those for housekeeping")
            .example("[1]"),
        key("idle", super::port::IDLE, "what these CPUs do when there is nothing to do").default("\"adaptive\""),
        key("max_payload", Kind::Size, "the longest request or answer").default("\"1 GiB\""),
        key("max_sessions", Kind::Integer(1, 3500), "sessions at once").default("256"),
        key("per_peer", Kind::Integer(1, 3500), "sessions of one address at once").default("64"),
        key(
            "lease",
            Kind::Choice(&[
                ("off", "devices are not leased"),
                ("optional", "sessions may present a lease, and have its device and its bytes for themselves"),
                ("required", "nothing is served before a session has presented one"),
            ]),
            "whether sessions lease their device; with anything but off, [control] grants leases of each",
        )
        .default("\"off\""),
        key("tls", Kind::Table(&TLS), "TLS 1.3 on every connection"),
        key("session", Kind::Table(&SESSION), "what each session may have"),
        key("device", Kind::Tables(&DEVICE), "the GPUs that sessions see, in the order of their ids").said(),
    ],
);

static TLS: Section = Section::new(
    "TLS 1.3 on every connection to `hip.listen`.",
    &[
        key("cert", Kind::Text, "a PEM file: the certificate, and those that it was issued by")
            .required()
            .example("\"hip.crt\""),
        key("key", Kind::Text, "a PEM file that others cannot read: the certificate's private key")
            .required()
            .example("\"hip.key\""),
        key("clients", Kind::Texts, "public keys, 64 hex digits each, of which clients have a certificate of one")
            .default("[]")
            .more("Without any, whoever speaks TLS is let in."),
    ],
);

static SESSION: Section = Section::new(
    "What each session may have.",
    &[
        key("memory", Kind::Size, "its memory on all devices").default("\"1 GiB\""),
        key("handles", Kind::Integer(1, 1 << 24), "streams, events, modules, functions and graphs together")
            .default("65536"),
        key("kernel_timeout_ms", Kind::Integer(1, 3_600_000), "how long a kernel may run, in milliseconds")
            .default("10000"),
        key("idle_timeout_s", Kind::Integer(0, 31_536_000), "how long it may be silent, in seconds; 0 is for ever")
            .default("0"),
    ],
);

static DEVICE: Section = Section::new(
    "A GPU that sessions see.",
    &[
        key("gpu", Kind::Text, "a [[gpu]] with use = \"hip\"").required().example("\"gpu0\""),
        key("memory", Kind::Size, "what of its memory all sessions together may use").default("\"4 GiB\""),
    ],
);
