//! `[[message]]` and `[[ring_kernel]]`.

use super::{PORT, assert_cases, check};

#[test]
fn messages() {
    assert_cases(
        PORT,
        &[
            (
                "[[message]]\nname = \"VectorAddRequest\"\nmembers = [\"A f32\"]\n[[message]]\nname = \"a b\"\nmembers = [\"A f32\"]\n\
                 [[message]]\nname = \"Own\"\nmembers = [\"A f32\", \"A u8\"]\n[[message]]\nname = \"Own\"\nmembers = [\"A f31\", \"B\", \"1 u8\"]",
                &[
                    "7:8: message[0].name: \"VectorAddRequest\" is built in; a new version has a name of its own, such as \
                     \"VectorAddRequestV2\"",
                    "11:11: message[1].members: \"a b\" is not a name of a message; use a letter, then letters, digits and underscores, \
                     64 at most",
                    "14:11: message[2].members: there are two members \"A\"",
                    "17:12: message[3].members[0]: \"f31\" is not a type; there are: bool i8 u8 i16 u16 i32 u32 i64 u64 f32 f64 guid, \
                     each with ? for one that can be absent",
                    "17:21: message[3].members[1]: \"B\" is not a member; write \"NAME TYPE\", such as \"Priority u8\"",
                    "17:26: message[3].members[2]: \"1\" is not a name; use a letter, then letters, digits and underscores, 64 at most",
                ],
            ),
            (
                "[[message]]\nname = \"Own\"\nmembers = []\nresponse = \"Owm\"\n[[message]]\nresponse = \"VectorAddResponse\"",
                &[
                    "8:11: message[0].members: 0 members; a message has 1 to 249",
                    "9:12: message[0].response: there is no message \"Owm\"; there are: VectorAddRequest, VectorAddResponse",
                    "10:1: message[1].name: is missing; write name = \"AccumulateRequest\"",
                    "10:1: message[1].members: is missing; write members = [\"MessageId guid\", \"Priority u8\"]",
                ],
            ),
        ],
    );
}

#[test]
fn ring_kernels() {
    assert_cases(
        PORT,
        &[
            (
                "[[ring_kernel]]\nmessage = \"VectorAddReqest\"\nkernel = \"builtin:vector_ad\"\ndedup = 15\n[[ring_kernel]]\n\
                 message = \"VectorAddResponse\"\nkernel = \"wasm:\"\nformat = \"json\"\nfuel = 0",
                &[
                    "7:11: ring_kernel[0].message: there is no message \"VectorAddReqest\"; did you mean `VectorAddRequest`?",
                    "8:10: ring_kernel[0].kernel: \"vector_ad\" is not built in; did you mean `vector_add`?",
                    "9:9: ring_kernel[0].dedup: 15 is too few; write 0 for none, or 16 to 1024",
                    "11:11: ring_kernel[1].message: \"VectorAddResponse\" has no response; name one in its [[message]]",
                    "12:10: ring_kernel[1].kernel: \"wasm:\" is not a kernel; write \"builtin:vector_add\" or \
                     \"wasm:/path/to/file.wasm\"",
                    "13:10: ring_kernel[1].format: \"json\" is unknown; there are: auto, dotcompute, memorypack, raw",
                    "14:8: ring_kernel[1].fuel: is 0; an integer from 1 to 1000000000 is wanted",
                ],
            ),
            (
                "rpc.slot_size = 64\n[[message]]\nname = \"Own\"\nmembers = [\"A f32\", \"B f64\"]\nresponse = \"Own\"\n[[ring_kernel]]\n\
                 message = \"Own\"\nkernel = \"builtin:vector_add\"\n[[ring_kernel]]\nmessage = \"VectorAddRequest\"\n\
                 kernel = \"builtin:vector_add\"\n[[ring_kernel]]\nmessage = \"VectorAddRequest\"\nkernel = \"builtin:vector_add\"\n\
                 format = \"raw\"\n[[function]]\nname = \"VectorAddRequest\"\nhandler = \"builtin:rpc_increment\"",
                &[
                    "13:10: ring_kernel[0].kernel: Own has no member \"B f32\", which the kernel reads",
                    "15:11: ring_kernel[1].message: takes 70 bytes with the header, slots of port \"a\" have 64; raise its rpc.slot_size",
                    "18:11: ring_kernel[2].message: takes 66 bytes with the header, slots of port \"a\" have 64; raise its rpc.slot_size",
                    "18:11: ring_kernel[2].message: \"VectorAddRequest\" is taken; each name is used once",
                    "22:8: function[0].name: a ring kernel answers \"VectorAddRequest\"; give the function another name",
                ],
            ),
            (
                "[[message]]\nname = \"Bare\"\nmembers = [\"A f32\", \"B f32\", \"N u64?\"]\nresponse = \"VectorAddResponse\"\n[[ring_kernel]]\n\
                 message = \"Bare\"\nkernel = \"builtin:vector_add\"\ndispatch = \"ring\"\nring = \"fast\"\nqueue = 48\n\
                 priority = true\ntimeout_ms = 0\nbackpressure = \"block\"\n[[ring_kernel]]\nmessage = \"VectorAddRequest\"\n\
                 kernel = \"builtin:vector_add\"\nqueue = 64",
                &[
                    "14:8: ring_kernel[0].ring: port \"a\" has no ring \"fast\"; there are none",
                    "15:9: ring_kernel[0].queue: 48 is no power of two",
                    "16:12: ring_kernel[0].priority: Bare has no member \"Priority u8\", by which messages wait with priority = \
                     true",
                    "17:14: ring_kernel[0].timeout_ms: is 0; an integer from 1 to 3600000 is wanted",
                    "18:16: ring_kernel[0].backpressure: \"block\" is unknown; there are: drop_new, drop_oldest, reject",
                    "22:1: ring_kernel[1].queue: means nothing here; it belongs to dispatch = \"ring\", leave it out",
                ],
            ),
            (
                "[port.rpc]\nmemory = \"shared\"\nshared_name = \"s\"\n[[ring_kernel]]\nmessage = \"VectorAddRequest\"\n\
                 kernel = \"builtin:vector_add\"\ndispatch = \"ring\"",
                &["12:12: ring_kernel[0].dispatch: another process serves that ring of port \"a\"; give it workers"],
            ),
            (
                "[[message]]\nname = \"Add\"\nmembers = [\"A f32\", \"B f32\"]\nresponse = \"Sum\"\n[[message]]\nname = \"Sum\"\n\
                 members = [\"Result f32\", \"Note u32?\"]\n[[ring_kernel]]\nmessage = \"Add\"\nkernel = \"builtin:vector_add\"",
                &[
                    "13:1: ring_kernel[0].format: the formats dotcompute and memorypack of Add have one length, and those of Sum \
                     differ; choose one by format",
                ],
            ),
        ],
    );
}

#[test]
fn what_would_run_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[message]]\nname = \"AddV2\"\nmembers = [\"A f32\", \"B f32\", \"Note guid?\"]\nresponse = \"VectorAddResponse\"\n\
                [[ring_kernel]]\nmessage = \"AddV2\"\nkernel = \"builtin:vector_add\"\nactive = false\n";
    let output = check(&folder, &format!("{PORT}{text}"));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "kernels are functions enough");
    let out = String::from_utf8(output.stdout).unwrap();
    let wanted = "message AddV2: bytes dotcompute 26, memorypack 29, raw 25\n\
                  ring kernel AddV2: vector_add -> VectorAddResponse, format auto, dedup 256, not active\n";
    assert!(out.ends_with(wanted), "{out}");
    let text = "rpc.worker_cpus = [0]\n[[ring_kernel]]\nmessage = \"VectorAddRequest\"\nkernel = \"builtin:vector_add\"\n\
                dispatch = \"ring\"\nqueue = 64\n";
    let output = check(&folder, &format!("{PORT}{text}"));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let out = String::from_utf8(output.stdout).unwrap();
    let wanted = "ring kernel VectorAddRequest: vector_add -> VectorAddResponse, format auto, dedup 256, on workers, 64 wait \
                  at most 30000 ms\n";
    assert!(out.ends_with(wanted), "{out}");
}
