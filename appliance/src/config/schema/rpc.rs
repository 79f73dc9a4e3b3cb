//! What ports serve: `[[decoder]]` and `[[function]]`.

use berth_keys::{Kind, Owned, Owner, Section, key};

use super::port::DISPATCH;

pub(super) static DECODER: Section = Section::new(
    "Decoders. The position in this list is the decoder_id of the decoding-server functions. Every core has its own \
          copy. A reload reads their files again.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"surface-d5\""),
        key(
            "algorithm",
            Kind::Choice(&[
                ("mwpm", "minimum-weight perfect matching"),
                ("lut", "a table of the syndromes of a few errors"),
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
.owned(&[&[Owned {
    by: Owner { key: "algorithm", word: "lut" },
    keys: &[key("depth", Kind::Integer(1, 8), "the most errors in an entry").default("1")],
}]]);

pub(super) static FUNCTION: Section = Section::new(
    "Functions. The id on the wire is the FNV-1a hash of the name. Every port serves all of them.",
    &[
        key("name", Kind::Text, "unique name").required().example("\"rpc_increment\"").said(),
        key("handler", Kind::Text, "what runs: \"builtin:NAME\" or \"plugin:PATH#SYMBOL\"")
            .required()
            .example("\"builtin:rpc_increment\"")
            .more(
                "Built in are rpc_increment, mock_decode, qec_decode and the decoding server: enqueue_syndromes, \
                 get_corrections and reset_decoder, on one session for each decoder. A plug-in is an exported function of \
                 a shared library, such as \"plugin:/usr/lib/berth/mine.so#mine\"; a reload loads a library again only \
                 under another path.",
            )
            .said(),
        key("dispatch", DISPATCH, "where it runs").otherwise("where the port says").example("\"inline\""),
        key("budget_us", Kind::Integer(1, 10_000_000), "a longer call is counted as an overrun, in microseconds")
            .otherwise("none")
            .example("100")
            .more("A function that overruns three times in a row rests for 100 ms."),
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
        keys: &[key("decoder", Kind::Text, "the name of its decoder").required().example("\"surface-d5\"")],
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
]]);

/// The form of the handlers that are plug-ins.
pub(in crate::config) const PLUGIN: &str = "plugin:PATH#SYMBOL";
