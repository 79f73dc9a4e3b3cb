//! The three formats of a message from its one declaration.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use berth_kernels::{
    Choice, Format, MAX_MEMBERS, Member, Registry, Scalar, Schema, SchemaError, VectorAddRequest, VectorAddResponse,
};
use berth_wire::memory_pack::{Error, Guid, MemoryPack, Message as _, Reader, Writer};
use proptest::prelude::*;

const FORMATS: [Format; 3] = [Format::DotCompute, Format::MemoryPack, Format::Raw];

fn schema(name: &str, members: &[&str]) -> Schema {
    Schema::new(name, members.iter().map(|member| member.parse().unwrap()).collect()).unwrap()
}

#[test]
fn vector_add_has_the_documented_lengths_and_bytes() {
    let registry = Registry::default();
    let request = &registry.find("VectorAddRequest").unwrap().schema;
    let response = &registry.find("VectorAddResponse").unwrap().schema;
    assert_eq!(FORMATS.map(|format| request.len(format)), [43, 46, 42]);
    assert_eq!(FORMATS.map(|format| response.len(format)), [39, 42, 38]);
    assert_eq!((request.short_len(), response.short_len()), (Some(27), Some(23)));
    let raw = [
        &[0xA0; 16][..],     // MessageId
        &[0x80],             // Priority
        &[1],                // CorrelationId: there is one
        &[0xC0; 16],         // its value
        &[0, 0, 0x20, 0x41], // A = 10
        &[0, 0, 0xA0, 0x41], // B = 20
    ]
    .concat();
    let dotcompute = [&[5][..], &raw].concat(); // five members
    let memory_pack = [&[5][..], &raw[..18], &[0; 3], &raw[18..]].concat(); // padding up to the alignment of a Guid, 4
    for (format, bytes) in FORMATS.into_iter().zip([&dotcompute, &memory_pack, &raw]) {
        let mut out = [0xEE; 46];
        assert_eq!(request.write(format, &raw, &mut out), Some(bytes.len()));
        assert_eq!(out[..bytes.len()], bytes[..]);
        assert_eq!(request.write(format, &raw, &mut out[..bytes.len() - 1]), None);
        for choice in [Choice::Auto, Choice::Only(format)] {
            let mut read = [0xEE; 42];
            assert_eq!(request.read(choice, bytes, &mut read), Some(format));
            assert_eq!(read[..], raw[..]);
        }
    }
    let short = [&[5][..], &raw[..17], &[0], &raw[34..]].concat();
    let mut read = [0xEE; 42];
    assert_eq!(request.read(Choice::Auto, &short, &mut read), Some(Format::DotCompute));
    assert_eq!(read[..], [&raw[..17], &[0; 17], &raw[34..]].concat()[..]);
    for other in [Format::MemoryPack, Format::Raw] {
        assert_eq!(request.read(Choice::Only(other), &short, &mut read), None);
    }
}

#[test]
fn the_codec_of_memory_pack_reads_and_writes_the_same_bytes() {
    let request = Registry::default().find("VectorAddRequest").unwrap().schema.clone();
    for correlation in [None, Some(Guid([0xC0; 16]))] {
        let mut bytes = [0xEE; 46];
        let mut writer = Writer::new(&mut bytes);
        writer.object(5).unwrap();
        writer.value(Guid([0xA0; 16])).unwrap();
        writer.value(128_u8).unwrap();
        writer.nullable(correlation).unwrap();
        writer.value(10.0_f32).unwrap();
        writer.value(20.0_f32).unwrap();
        assert_eq!(writer.len(), 46);
        let (mut raw, mut again) = ([0; 42], [0xEE; 46]);
        assert_eq!(request.read(Choice::Auto, &bytes, &mut raw), Some(Format::MemoryPack));
        assert_eq!(request.write(Format::MemoryPack, &raw, &mut again), Some(46));
        assert_eq!(again, bytes);
        let read = Reader::new(&again).object(5, |members| {
            members.next(Reader::value::<Guid>)?;
            members.next(Reader::value::<u8>)?;
            let correlation = members.next(Reader::nullable::<Guid>)?;
            Ok((correlation, members.next(Reader::value::<f32>)?, members.next(Reader::value::<f32>)?))
        });
        assert_eq!(read, Ok(Some((Some(correlation), Some(10.0), Some(20.0)))));
    }
}

#[test]
fn nullables_of_each_width_are_padded_in_memory_pack_alone() {
    let all = ["A bool?", "B i16?", "C u8", "D f32?", "E u64?", "F guid?", "G bool"];
    let schema = schema("Wide", &all);
    let raw = [
        &[1, 1][..],                  // A true
        &[1, 2, 3],                   // B 0x0302
        &[9],                         // C
        &[0, 0, 0, 0, 0],             // D absent
        &[1, 8, 7, 6, 5, 4, 3, 2, 1], // E
        &[1],
        &[0xC0; 16], // F
        &[1],        // G
    ]
    .concat();
    let memory_pack = [
        &[7][..],
        &[1, 1],
        &[1, 0, 2, 3], // one byte of padding
        &[9],
        &[0, 0, 0, 0, 0, 0, 0, 0],                         // three, and the absent value
        &[1, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1], // seven
        &[1, 0, 0, 0],
        &[0xC0; 16], // three
        &[1],
    ]
    .concat();
    let mut out = [0xEE; 100];
    assert_eq!(schema.write(Format::MemoryPack, &raw, &mut out), Some(memory_pack.len()));
    assert_eq!(out[..memory_pack.len()], memory_pack[..]);
    // Whatever a writer left in padding and absent values, and flags and booleans that are not 1.
    let mut dirty = memory_pack.clone();
    for at in [1, 3] {
        dirty[at] = 0x80;
    }
    dirty[4] = 0xEE;
    dirty[9..16].fill(0xEE);
    *dirty.last_mut().unwrap() = 0xFF;
    let mut read = vec![0xEE; raw.len()];
    assert_eq!(schema.read(Choice::Auto, &dirty, &mut read), Some(Format::MemoryPack));
    assert_eq!(read, raw);
    assert_eq!(schema.short_len(), None, "its one nullable is not CorrelationId");
}

#[test]
fn a_declaration_has_a_fingerprint() {
    let registry = Registry::default();
    let request = &registry.find("VectorAddRequest").unwrap().schema;
    let declaration = "VectorAddRequest{guid MessageId;u8 Priority;guid? CorrelationId;f32 A;f32 B;}";
    assert_eq!(request.declaration(), declaration);
    // printf '%s' 'VectorAddRequest{..}' | sha256sum
    assert_eq!(request.fingerprint(), "4c88c8462c08e11bf279b8ba3c4bc5b6ad502edbb978922490502b629552c372");
}

/// Names stand for layouts for good. A line here never changes; a new version is a new name, and a line of its own.
#[test]
fn built_in_messages_are_those_of_the_lock_file() {
    let registry = Registry::default();
    let line = |message: &berth_kernels::Message| {
        format!("{} {}\n", message.schema.fingerprint(), message.schema.declaration())
    };
    let lines: String = registry.messages().iter().map(line).collect();
    assert_eq!(lines, include_str!("../messages.lock"), "dataplane/kernels/messages.lock");
}

#[test]
fn what_is_no_message_is_refused() {
    assert_eq!(Schema::new("", vec![]).unwrap_err(), SchemaError::Name(String::new()));
    assert_eq!(Schema::new("a-b", vec![]).unwrap_err(), SchemaError::Name("a-b".into()));
    assert_eq!(Schema::new("A", vec![]).unwrap_err(), SchemaError::Members(0));
    let members = |n: usize| (0..n).map(|i| Member::new(&format!("m{i}"), Scalar::U8)).collect::<Vec<_>>();
    assert!(Schema::new("A", members(MAX_MEMBERS)).is_ok());
    assert_eq!(Schema::new("A", members(250)).unwrap_err(), SchemaError::Members(250));
    let twice = vec![Member::new("x", Scalar::U8), Member::new("x", Scalar::Guid)];
    assert_eq!(Schema::new("A", twice).unwrap_err(), SchemaError::Twice("x".into()));
    for (text, wanted) in [
        ("x", "\"x\" is not a member; write \"NAME TYPE\", such as \"Priority u8\""),
        ("x u8 y", "\"x u8 y\" is not a member; write \"NAME TYPE\", such as \"Priority u8\""),
        ("1x u8", "\"1x\" is not a name; use a letter, then letters, digits and underscores, 64 at most"),
        (
            "x u9",
            "\"u9\" is not a type; there are: bool i8 u8 i16 u16 i32 u32 i64 u64 f32 f64 guid, each with ? for one that can be absent",
        ),
    ] {
        assert_eq!(text.parse::<Member>().unwrap_err().to_string(), wanted);
    }
    let mut registry = Registry::default();
    let taken = registry.add("VectorAddRequest", members(1), None).unwrap_err();
    assert_eq!(
        taken.to_string(),
        "\"VectorAddRequest\" is built in; a new version has a name of its own, such as \"VectorAddRequestV2\""
    );
    registry.add("Mine", members(1), None).unwrap();
    let taken = registry.add("Mine", members(2), None).unwrap_err();
    assert_eq!(taken.to_string(), "\"Mine\" is taken; a new version has a name of its own, such as \"MineV2\"");
}

fn any_schema() -> impl Strategy<Value = Schema> {
    prop::collection::vec((0_usize..12, any::<bool>()), 1..30).prop_map(|kinds| {
        let member = |(i, (kind, nullable)): (usize, (usize, bool))| Member {
            name: format!("m{i}"),
            scalar: Scalar::WORDS[kind].1,
            nullable,
        };
        Schema::new("Any", kinds.into_iter().enumerate().map(member).collect()).unwrap()
    })
}

/// A raw message as kernels see it: flags and booleans are 0 or 1, absent values zero.
fn tidy(schema: &Schema, noise: &[u8]) -> Vec<u8> {
    let mut raw: Vec<u8> = noise.iter().copied().cycle().take(schema.len(Format::Raw)).collect();
    for (at, member) in schema.placed() {
        let (flag, value) = (raw[at] & 1, at + usize::from(member.nullable));
        if member.scalar == Scalar::Bool {
            raw[value] &= 1;
        }
        if member.nullable {
            raw[at] = flag;
            raw[value..][..member.scalar.size()].iter_mut().for_each(|byte| *byte *= flag);
        }
    }
    raw
}

proptest! {
    #[test]
    fn every_format_of_any_message_gives_back_what_was_written(
        schema in any_schema(),
        noise in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let raw = tidy(&schema, &noise);
        for format in FORMATS {
            let mut out = vec![0xEE; schema.len(format)];
            prop_assert_eq!(schema.write(format, &raw, &mut out), Some(out.len()));
            let mut read = vec![0xEE; raw.len()];
            prop_assert_eq!(schema.read(Choice::Only(format), &out, &mut read), Some(format));
            prop_assert_eq!(&read, &raw);
            // By length alone: another format is found only where it is the same bytes.
            let found = schema.read(Choice::Auto, &out, &mut read).unwrap();
            prop_assert_eq!(&read, &raw);
            prop_assert_eq!(schema.len(found), schema.len(format));
        }
    }

    #[test]
    fn other_bytes_are_a_tidy_message_or_none(
        schema in any_schema(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        count: bool,
    ) {
        for len in FORMATS.map(|format| schema.len(format)).into_iter().chain([bytes.len(), 26, 27]) {
            let mut message: Vec<u8> = bytes.iter().copied().cycle().chain([0]).take(len).collect();
            message.resize(len, 7);
            if count && len > 0 {
                message[0] = schema.members().len() as u8;
            }
            for choice in [Choice::Auto].into_iter().chain(FORMATS.map(Choice::Only)) {
                let mut raw = vec![0xEE; schema.len(Format::Raw)];
                if let Some(format) = schema.read(choice, &message, &mut raw) {
                    prop_assert!(choice == Choice::Auto || choice == Choice::Only(format));
                    prop_assert_eq!(tidy(&schema, &raw), raw);
                }
            }
        }
        // A module's answer may be any bytes, too.
        let raw: Vec<u8> = bytes.iter().copied().cycle().chain([0]).take(schema.len(Format::Raw)).collect();
        if raw.len() == schema.len(Format::Raw) {
            let mut tidied = raw.clone();
            prop_assert_eq!(schema.read(Choice::Only(Format::Raw), &raw, &mut tidied), Some(Format::Raw));
            for format in FORMATS {
                let written = |raw: &[u8]| {
                    let mut out = vec![0xEE; schema.len(format)];
                    schema.write(format, raw, &mut out).map(|len| (len, out))
                };
                prop_assert_eq!(written(&raw), written(&tidied));
            }
        }
    }
}

/// A type gives what the node makes of its declaration, and the node reads what it writes.
#[derive(Debug, Clone, Copy, PartialEq, MemoryPack)]
#[memory_pack(message)]
struct Wide {
    flag: bool,
    maybe_flag: Option<bool>,
    i8: i8,
    maybe_u8: Option<u8>,
    i16: Option<i16>,
    u16: u16,
    i32: i32,
    maybe_u32: Option<u32>,
    i64: Option<i64>,
    u64: u64,
    f32: f32,
    maybe_f64: Option<f64>,
    guid: Guid,
    r#type: Option<Guid>,
}

#[test]
fn a_type_is_the_declaration_of_a_message() {
    assert_eq!(
        Schema::of::<Wide>().unwrap().declaration(),
        "Wide{bool Flag;bool? MaybeFlag;i8 I8;u8? MaybeU8;i16? I16;u16 U16;i32 I32;u32? MaybeU32;i64? I64;u64 U64;f32 F32;f64? MaybeF64;\
         guid Guid;guid? Type;}"
    );
    let response = VectorAddResponse { message_id: Guid([1; 16]), priority: 2, correlation_id: None, result: 1.5 };
    let mut out = [0xEE; 42];
    assert_eq!(response.write_in(Format::DotCompute, &mut out), Ok(39));
    let bytes = [
        &[4][..],            // four members
        &[1; 16],            // MessageId
        &[2],                // Priority
        &[0; 17],            // CorrelationId: absent
        &[0, 0, 0xC0, 0x3F], // Result: 0x3FC00000 is 1.5
    ]
    .concat();
    assert_eq!(out[..39], bytes);
    assert_eq!(VectorAddResponse::read_in(Format::DotCompute, &bytes), Ok(response));
    assert_eq!(VectorAddResponse::read_in(Format::DotCompute, &bytes[..38]), Err(Error::Truncated));
    assert_eq!(VectorAddResponse::read_in(Format::Raw, &bytes), Err(Error::Trailing(1)));
    assert_eq!(VectorAddRequest::read_in(Format::DotCompute, &bytes), Err(Error::Members(4)), "exactly its members");
    assert_eq!(response.write_in(Format::MemoryPack, &mut out[..41]), Err(Error::NoRoom));
}

proptest! {
    #[test]
    fn a_type_and_its_schema_agree_in_every_format(
        (flag, i8, u16, i32, u64) in any::<(bool, i8, u16, i32, u64)>(),
        (maybe_flag, maybe_u8, i16) in any::<(Option<bool>, Option<u8>, Option<i16>)>(),
        (maybe_u32, i64, f32, maybe_f64) in any::<(Option<u32>, Option<i64>, f32, Option<f64>)>(),
        (guid, id) in any::<([u8; 16], Option<[u8; 16]>)>(),
    ) {
        let (guid, id) = (Guid(guid), id.map(Guid));
        let wide = Wide {
            flag, maybe_flag, i8, maybe_u8, i16, u16, i32, maybe_u32, i64, u64, f32, maybe_f64, guid, r#type: id,
        };
        let schema = Schema::of::<Wide>().unwrap();
        let mut raw = vec![0xEE; schema.len(Format::Raw)];
        prop_assert_eq!(wide.write_in(Format::Raw, &mut raw), Ok(raw.len()));
        for format in FORMATS {
            let (mut typed, mut by_schema) = (vec![0xEE; schema.len(format)], vec![0xEE; schema.len(format)]);
            prop_assert_eq!(wide.write_in(format, &mut typed), Ok(typed.len()));
            prop_assert_eq!(schema.write(format, &raw, &mut by_schema), Some(typed.len()));
            prop_assert_eq!(&typed, &by_schema);
            prop_assert_eq!(Wide::read_in(format, &typed), Ok(wide));
        }
        // An object of MemoryPack is that format.
        let mut object = vec![0xEE; schema.len(Format::MemoryPack)];
        wide.write(&mut Writer::new(&mut object)).unwrap();
        prop_assert_eq!(Wide::read_in(Format::MemoryPack, &object), Ok(wide));
    }
}

/// A GPU traps where more than one byte is loaded or stored at an odd address.
#[test]
fn a_header_is_compiled_for_gpus_and_touches_messages_by_bytes() {
    for schema in [Schema::of::<VectorAddRequest>(), Schema::of::<Wide>()].map(Result::unwrap) {
        let name = schema.name();
        let functions = FORMATS.map(Format::word).map(|format| {
            format!(
                "int in_{format}(const uint8_t *m, size_t len, {name} *to) {{ return {name}_read_{format}(m, len, to); }}\n\
                 void out_{format}(const {name} *from, uint8_t *m) {{ {name}_write_{format}(from, m); }}\n"
            )
        });
        let source = format!("{}\n{}", schema.c_header(), functions.concat());
        let mut clang = Command::new("clang-14")
            .args(["--target=nvptx64-nvidia-cuda", "-ffreestanding", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"])
            .args(["-S", "-x", "c", "-", "-o", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("clang-14, which `cargo xtask setup` installs");
        clang.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        let output = clang.wait_with_output().unwrap();
        assert!(output.status.success(), "{name}");
        let ptx = String::from_utf8(output.stdout).unwrap();
        assert_eq!(ptx.matches(".visible .func").count(), 6);
        let accesses = || ptx.lines().map(str::trim).filter(|line| line.starts_with("ld.") || line.starts_with("st."));
        let wide: Vec<_> = accesses().filter(|line| !line.contains(".param.") && !line.contains(".u8")).collect();
        assert!(wide.is_empty(), "{wide:#?}");
        assert!(accesses().any(|line| line.starts_with("st.u8")));
    }
}
