//! What ports serve: `[[decoder]]`, `[[function]]`, `[[message]]` and `[[ring_kernel]]`.

use berth_keys::{Key, Kind, Owned, Owner, Section, key};

use super::port::DISPATCH;

const DEPTH: Key = key("depth", Kind::Integer(1, 8), "the most errors in an entry").default("1");
const RELAYS: Key = key("relays", Kind::Integer(1, 8), "how many relays of legs run in lockstep").default("8");
const ARITHMETIC: Key = key(
    "arithmetic",
    Kind::Choice(&[("fixed16", "16-bit integers, on CPUs and GPUs"), ("float64", "double precision, on CPUs alone")]),
    "what it computes with",
)
.default("\"fixed16\"");
const LEGS: Key = key("legs", Kind::Integer(1, 64), "how many legs a relay has, one after the other").default("4");
const SEED: Key =
    key("seed", Kind::Integer(0, 4_294_967_295), "chooses how strong each error's memory is in each leg").default("0");
const ITERATIONS: Key =
    key("iterations", Kind::Integer(1, 1000), "the most iterations, of each leg if there are legs").default("60");
const SCHEDULE: Key = key(
    "schedule",
    Kind::Choice(&[("serial", "at once: it needs fewer iterations"), ("parallel", "in the next iteration")]),
    "when the next detectors see what a detector has sent",
)
.default("\"serial\"");
const STATISTICS: Key = key(
    "statistics",
    Kind::Choice(&[
        ("ordered", "all, likeliest first (OSD)"),
        ("localized", "those near the events, likeliest first (LSD): faster for large codes"),
    ]),
    "which errors make an answer where belief propagation has none",
)
.default("\"ordered\"");
const ORDER: Key =
    key("order", Kind::Integer(0, 64), "errors of which pairs are tried; 0 tries no other answer than the first")
        .default("10");

pub(super) static DECODER: Section = Section::new(
    "Decoders. The position in this list is the decoder_id of the decoding-server functions. Every core has its own \
          copy. A reload reads their files again.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"surface-d5\""),
        key(
            "algorithm",
            Kind::Choice(&[
                ("mwpm", "minimum-weight perfect matching"),
                ("correlated_mwpm", "mwpm in two passes: parts of one error make each other likelier"),
                ("belief_mwpm", "mwpm with the weights that belief propagation gives each shot"),
                ("lut", "a table of the syndromes of a few errors"),
                ("relay_bp", "relay belief propagation, on errors of any number of detectors"),
                ("bp_osd", "belief propagation and ordered statistics, on errors of any number of detectors"),
                ("multi_error_lut", "lut by the rule of CUDA-Q QEC: the first errors, not what is likeliest"),
                ("window", "some rounds at a time, each by another algorithm"),
            ]),
            "how it decodes",
        )
        .required()
        .example("\"mwpm\""),
        key("model", Kind::Text, "a Stim detector error model").required().example("\"decoders/surface_d5.dem\""),
        key("measurements", Kind::Text, "which measurements make up each detector")
            .otherwise("measurements are detection events")
            .example("\"d_sparse.txt\""),
    ],
)
.owned(&[&[
    Owned { by: Owner { key: "algorithm", word: "lut" }, keys: &[DEPTH] },
    Owned { by: Owner { key: "algorithm", word: "multi_error_lut" }, keys: &[DEPTH] },
    Owned { by: Owner { key: "algorithm", word: "relay_bp" }, keys: &[RELAYS, LEGS, SEED, ITERATIONS, ARITHMETIC] },
    Owned { by: Owner { key: "algorithm", word: "bp_osd" }, keys: &[ITERATIONS, SCHEDULE, STATISTICS, ORDER] },
    Owned {
        by: Owner { key: "algorithm", word: "window" },
        keys: &[
            key("window", Kind::Integer(1, 100_000), "rounds of a window").required().example("10"),
            key("commit", Kind::Integer(1, 100_000), "rounds of it whose errors are decided").required().example("5"),
            key(
                "parallel",
                Kind::Integer(1, 32),
                "windows stand side by side, and so many cores decode those of one experiment of the decoding server, with \
                 worker_cpus of the port",
            )
            .otherwise("each window begins behind what the one before decides"),
            key(
                "inner",
                Kind::Choice(&[
                    ("mwpm", "minimum-weight perfect matching"),
                    ("correlated_mwpm", "mwpm in two passes"),
                    ("belief_mwpm", "mwpm with the weights of belief propagation"),
                    ("lut", "a table of the syndromes of a few errors"),
                    ("relay_bp", "relay belief propagation"),
                    ("bp_osd", "belief propagation and ordered statistics"),
                ]),
                "how it decodes a window",
            )
            .default("\"mwpm\""),
            key(
                "rounds",
                Kind::Integer(0, 1_000_000_000_000),
                "rounds of an experiment of the decoding server; 0: it has no end",
            )
            .otherwise("those of the model"),
            key(
                "corrections",
                Kind::Choice(&[
                    ("whole", "when an experiment has ended"),
                    ("decided", "at any time, for the rounds that are decided; always so without an end"),
                ]),
                "when get_corrections answers",
            )
            .default("\"whole\""),
            key(
                "counter",
                Kind::Choice(&[
                    ("ignored", "nothing"),
                    ("round", "which round the request begins with, modulo 65536 in its low 16 bits"),
                ]),
                "what the counter of enqueue_syndromes says",
            )
            .default("\"ignored\""),
        ],
    },
    Owned { by: Owner { key: "inner", word: "lut" }, keys: &[DEPTH] },
    Owned { by: Owner { key: "inner", word: "relay_bp" }, keys: &[RELAYS, LEGS, SEED, ITERATIONS, ARITHMETIC] },
    Owned { by: Owner { key: "inner", word: "bp_osd" }, keys: &[ITERATIONS, SCHEDULE, STATISTICS, ORDER] },
]]);

pub(super) static GPU: Section = Section::new(
    "GPUs (docs/gpu.md, docs/hip-remote.md).",
    &[
        key("name", Kind::Text, "unique name").required().example("\"gpu0\""),
        key(
            "device",
            Kind::Text,
            "which: \"auto\" is the first that NVIDIA's driver has, \"soft\" the one in software",
        )
        .required()
        .example("\"soft\"")
        .more(
            "Or the PCI address of one of NVIDIA's, or its GPU-uuid; with use = \"hip\" also \"hip:0\", AMD's of that number. \
             The one in software is never chosen silently.",
        ),
        key(
            "use",
            Kind::Choice(&[
                ("dispatch", "it serves rings of ports, by a worker process of its own"),
                ("lease", "its memory is leased, by a [[region]] with kind = \"vram\", and runs what holders submit"),
                ("hip", "sessions of HIP Remote use it"),
            ]),
            "what it does",
        )
        .default("\"dispatch\""),
    ],
)
.owned(&[&[
    Owned {
        by: Owner { key: "use", word: "dispatch" },
        keys: &[
            key(
                "blocks",
                Kind::Integer(1, 256),
                "thread blocks that serve a ring, of which each has its share of the slots",
            )
            .default("1"),
            TIME_LIMIT,
        ],
    },
    Owned { by: Owner { key: "use", word: "lease" }, keys: &[TIME_LIMIT] },
]]);

/// Of GPUs that serve rings, and of those that are leased.
const TIME_LIMIT: Key = key(
    "time_limit_ms",
    Kind::Integer(100, 600_000),
    "a kernel that shows no life for so long, or one that was submitted and runs for so long, is killed, in milliseconds",
)
.default("2000");

pub(super) static FUNCTION: Section = Section::new(
    "Functions. The id on the wire is the FNV-1a hash of the name. Every port serves all of them.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"rpc_increment\"").said(),
        key("handler", Kind::Text, "what runs: \"builtin:NAME\", \"plugin:PATH#SYMBOL\" or \"gpu:PATH#SYMBOL\"")
            .required()
            .example("\"builtin:rpc_increment\"")
            .more(
                "Built in are rpc_increment, mock_decode, qec_decode and the decoding server: enqueue_syndromes, \
                 get_corrections and reset_decoder, on one session for each decoder. A plug-in is an exported function of \
                 a shared library, such as \"plugin:/usr/lib/berth/mine.so#mine\"; a reload loads a library again only \
                 under another path. With \"gpu:\" it is a device function of a PTX file, for dispatch = \"gpu\"; of those that \
                 are built in, GPUs have rpc_increment and mock_decode.",
            )
            .said(),
        key("dispatch", DISPATCH, "where it runs").otherwise("where the port says").example("\"inline\""),
        key("budget_us", Kind::Integer(1, 10_000_000), "a longer call is counted as an overrun, in microseconds")
            .otherwise("none")
            .example("100")
            .more(
                "A function that overruns three times in a row rests for 100 ms. What a decoder with algorithm = \"mwpm\" has not \
                 matched in time for the least budget of its functions is matched by union-find.",
            ),
    ],
)
.owned(&[&[
    Owned {
        by: Owner { key: "dispatch", word: "ring" },
        keys: &[key("ring", Kind::Text, "the name of the ring that its requests go to")
            .otherwise("the port's own")
            .example("\"decoders\"")
            .more("Each port with service = \"rpc\" needs a [[port.rpc.ring]] of this name.")],
    },
    Owned {
        by: Owner { key: "handler", word: "builtin:qec_decode" },
        keys: &[
            key("decoder", Kind::Text, "the name of its decoder").required().example("\"surface-d5\""),
            key(
                "shots",
                Kind::Choice(&[
                    ("events", "detection events, a bit each"),
                    ("soft4", "outcomes in 4 bits: v is 1 with the probability v / 15"),
                    ("soft8", "outcomes in 8 bits: v is 1 with the probability v / 255"),
                    ("float32", "for each outcome the probability that it is 1"),
                    ("leakage8", "outcomes in a byte each: 0, 1, or 2 where nothing is known"),
                    ("leakage32", "the same in 32 bits each"),
                ]),
                "what its first argument is",
            )
            .default("\"events\"")
            .more(
                "Outcomes are those of the decoder's measurements, in their order, and change the weights of the shot. For mwpm \
                 and bp_osd (docs/decoders.md).",
            ),
            key("confidence", Kind::Flag, "whether a second result says how much heavier the next answer is")
                .default("false")
                .more("For mwpm."),
        ],
    },
    Owned {
        by: Owner { key: "handler", word: "builtin:mock_decode" },
        keys: &[key("table", Kind::Text, "the recorded answers").required().example("\"mock.txt\"")],
    },
    Owned {
        by: Owner { key: "handler", word: PLUGIN },
        keys: &[
            key(
                "abi",
                Kind::Choice(&[
                    ("host_call", "whole slots, headers included"),
                    ("device_call", "arguments and results"),
                ]),
                "how a plug-in is called",
            )
            .required()
            .example("\"device_call\""),
            key("args", Kind::Texts, "the types of a plug-in's arguments")
                .otherwise("bytes of any number")
                .example("[\"bit_packed[24]\", \"int32\"]")
                .more("uint8 int32 int64 float32 float64 array_TYPE[N] bit_packed[N]; [] is any number."),
            key("results", Kind::Texts, "the types of its results")
                .otherwise("bytes of any number")
                .example("[\"uint8\"]"),
        ],
    },
    Owned {
        by: Owner { key: "handler", word: DEVICE },
        keys: &[
            key(
                "parallel",
                Kind::Choice(&[("thread", "one thread of the block"), ("block", "all of them; the first one's result counts")]),
                "which threads call a device function",
            )
            .default("\"thread\""),
            key("mode", Kind::Choice(&[
                ("call", "called by the dispatcher that never stops"),
                ("graph", "a kernel, launched for each request"),
            ]), "how a device function is run")
                .default("\"call\""),
            key("args", Kind::Texts, "the types of its arguments")
                .otherwise("bytes of any number")
                .example("[\"bit_packed[24]\", \"int32\"]")
                .more("As of a plug-in."),
            key("results", Kind::Texts, "the types of its results")
                .otherwise("bytes of any number")
                .example("[\"uint8\"]"),
        ],
    },
]]);

pub(super) static MESSAGE: Section = Section::new(
    "Types of messages, each of a fixed size. VectorAddRequest and VectorAddResponse are built in. A name stands for one \
          layout for good: a reload refuses another, which needs a name of its own.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"SumRequest\""),
        key("members", Kind::Texts, "its members in the order of the C# source, each a name and a type")
            .required()
            .example("[\"MessageId guid\", \"Priority u8\", \"CorrelationId guid?\", \"A f32\", \"B f32\"]")
            .more("bool i8 u8 i16 u16 i32 u32 i64 u64 f32 f64 guid; ? behind the type says that it can be absent."),
        key("response", Kind::Text, "the message that answers it")
            .otherwise("none: it is no request")
            .example("\"VectorAddResponse\""),
    ],
);

pub(super) static RING_KERNEL: Section = Section::new(
    "Ring kernels, which answer messages (docs/ring-kernels.md). The function id on the wire is the FNV-1a hash of the \
          message's name. Every port serves all of them, on the core that receives the message or, with dispatch = \"ring\", on a \
          worker that messages wait for.",
    &[
        key("message", Kind::Text, "the name of the message that it takes").required().example("\"VectorAddRequest\""),
        key("kernel", Kind::Text, "what runs: \"builtin:NAME\" or \"wasm:PATH\"")
            .required()
            .example("\"builtin:vector_add\"")
            .more(
                "Built in is vector_add, for messages with \"A f32\" and \"B f32\" whose response has \"Result f32\". With \
                 \"wasm:\" it is a WebAssembly module, compiled when the configuration is read.",
            ),
        key(
            "format",
            Kind::Choice(&[
                ("auto", "each message has the format that its length tells"),
                ("dotcompute", "a count, then packed members"),
                ("memorypack", "a count, then members with nullables padded as in .NET"),
                ("raw", "packed members"),
            ]),
            "the format of the messages",
        )
        .default("\"auto\"")
        .more("Answers have the format of their request."),
        key(
            "dedup",
            Kind::Integer(0, 1024),
            "messages of each core that are answered from memory when they come again",
        )
        .default("256")
        .more("16 at least, or 0 for none."),
        key("active", Kind::Flag, "whether it runs; if not, messages are answered with status 2").default("true"),
        key(
            "dispatch",
            Kind::Choice(&[
                ("inline", "on the core that receives the message, at once"),
                ("ring", "on a worker, for which messages wait"),
            ]),
            "where it runs",
        )
        .default("\"inline\""),
    ],
)
.owned(&[&[Owned {
    by: Owner { key: "kernel", word: MODULE },
    keys: &[key("fuel", Kind::Integer(1, 1_000_000_000), "units that a module may use for a message").default("1000000")],
}, Owned {
    by: Owner { key: "dispatch", word: "ring" },
    keys: &[
        key("ring", Kind::Text, "the [[port.rpc.ring]] whose worker runs it")
            .otherwise("the port's own ring")
            .example("\"kernels\""),
        key("queue", Kind::Integer(16, 1 << 20), "messages that wait on each core, a power of two").default("1024"),
        key("priority", Kind::Flag, "whether messages of higher Priority go first").default("false"),
        key(
            "backpressure",
            Kind::Choice(&[
                ("reject", "it is answered with status -5"),
                ("drop_new", "it is answered with status 1"),
                ("drop_oldest", "the one that has waited longest is answered with status 1"),
            ]),
            "what happens to a message when as many wait already",
        )
        .default("\"reject\""),
        key("timeout_ms", Kind::Integer(1, 3_600_000), "how long a message waits before it is answered with status 1")
            .default("30000"),
    ],
}]]);

/// The form of the handlers that are plug-ins.
pub(in crate::config) const PLUGIN: &str = "plugin:PATH#SYMBOL";

/// The form of ring kernels that are modules.
pub(in crate::config) const MODULE: &str = "wasm:PATH";

/// The form of those that are device functions.
pub(in crate::config) const DEVICE: &str = "gpu:PATH#SYMBOL";
