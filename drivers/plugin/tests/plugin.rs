//! Plug-ins in C and Rust, built here and called through a service.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use berth_plugin::{Abi, Plugin, PluginError};
use berth_port::{Clock, Frame, Now, Service, Verdict};
use berth_rpc::{
    Config, FunctionTable, Order, RpcService, Undispatchable,
    handlers::{Handler, HandlerSet},
};
use berth_wire::rpc::{
    HandlerSchema, HeaderForm, PtpEncoding, RequestHeader, ResponseHeader, TypeDesc, TypeId, fnv1a, status,
};

const SLOT: usize = 200;
const FORM: HeaderForm = HeaderForm::V24;

fn source(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn compile_c(path: &str, dir: &Path) -> PathBuf {
    let library = dir.join("plugin.so");
    let include = source("../../dataplane/ring/include");
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-I", &include])
        .args([&source(path), "-o"])
        .arg(&library));
    library
}

fn any_to_any() -> HandlerSchema {
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    HandlerSchema::new(&[bytes], &[bytes]).unwrap()
}

fn load(library: &Path, symbol: &str, abi: Abi) -> Plugin {
    Plugin::load(library, symbol, abi, any_to_any(), SLOT).unwrap()
}

#[derive(Clone)]
struct NoTime;

impl Clock for NoTime {
    fn now(&self) -> Now {
        Now::default()
    }
}

/// Sends `args` to a plug-in through a service; returns the status and the result.
fn call(plugin: Plugin, args: &[u8]) -> (i32, Vec<u8>) {
    send(&mut service(plugin), args.len(), args)
}

fn service(plugin: Plugin) -> impl Service {
    let set = HandlerSet::new(vec![("f".to_owned(), Handler::Custom(plugin))], vec![]).unwrap();
    let table = Arc::new(FunctionTable::new(set.functions()).unwrap());
    let config = Config {
        header: FORM,
        slot_size: SLOT,
        on_undispatchable: Undispatchable::Reply,
        ptp: PtpEncoding::Ns,
        order: Order::Arrival,
    };
    RpcService::new(config, table, set, None, NoTime, |_, _| {}).unwrap()
}

/// Sends a request that claims `claimed` bytes of arguments; returns the status and the result.
fn send(service: &mut impl Service, claimed: usize, args: &[u8]) -> (i32, Vec<u8>) {
    let header =
        RequestHeader { function_id: fnv1a("f"), arg_len: claimed as u32, request_id: 0xABCD, ptp_timestamp: 77 };
    // A buffer as unaligned as a packet's payload is.
    let mut buf = vec![0xEE; SLOT + 1];
    let buf = &mut buf[1..];
    header.write(FORM, buf).unwrap();
    buf[FORM.len()..][..args.len()].copy_from_slice(args);
    let len = FORM.len() + args.len();
    let mut frame = Frame::new(buf, len, len, std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
    assert_eq!(service.handle(&mut frame, Now::default()), Verdict::Reply);
    let response = ResponseHeader::parse(FORM, frame.data()).unwrap();
    assert_eq!((response.request_id, response.ptp_timestamp), (0xABCD, 77));
    assert_eq!(frame.len(), FORM.len() + response.result_len as usize);
    (response.status, frame.data()[FORM.len()..].to_vec())
}

#[test]
fn the_c_example_answers_with_either_signature() {
    let dir = tempfile::tempdir().unwrap();
    let library = compile_c("examples-c/xor.c", dir.path());
    for (symbol, abi) in [("xor_host", Abi::HostCall), ("xor_device", Abi::DeviceCall)] {
        assert_eq!(call(load(&library, symbol, abi), &[1, 2, 4, 0x80]), (0, vec![0x87]), "{symbol}");
        assert_eq!(call(load(&library, symbol, abi), &[]), (0, vec![0]), "{symbol}");
        assert_eq!(call(load(&library, symbol, abi), &[0xFF; SLOT - 24]), (0, vec![0]), "{symbol}");
    }
}

#[test]
fn a_short_request_after_a_long_one_has_its_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let library = compile_c("examples-c/xor.c", dir.path());
    for (symbol, abi) in [("xor_host", Abi::HostCall), ("xor_device", Abi::DeviceCall)] {
        let mut service = service(load(&library, symbol, abi));
        for (claimed, args, expected) in [
            (SLOT - 24, &[0x55; SLOT - 24][..], (0, vec![0])),
            (1, &[7], (0, vec![7])),
            (2, &[7], (status::BAD_LENGTH, vec![])),
            (SLOT - 24, &[7], (status::BAD_LENGTH, vec![])),
            (0, &[], (0, vec![0])),
        ] {
            assert_eq!(send(&mut service, claimed, args), expected, "{symbol}: {claimed}");
        }
    }
}

#[test]
fn the_rust_example_answers_and_survives_its_own_panic() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin-example");
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "-p", "berth-plugin-example", "--target-dir"])
        .arg(&target)
        .current_dir(source("../..")));
    let library = target.join("debug/libberth_plugin_example.so");
    let popcount = || load(&library, "popcount", Abi::DeviceCall);
    assert_eq!(call(popcount(), &[0xFF, 1, 0, 2]), (0, vec![10, 0, 0, 0]));
    assert_eq!(call(popcount(), &[0; 13]), (2, vec![]), "its status for a panic");
}

#[test]
fn what_a_plugin_answers_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let library = compile_c("tests/rude.c", dir.path());
    for (symbol, expected) in [
        ("silent", status::HANDLER_FAILED),
        ("wrong_magic", status::HANDLER_FAILED),
        ("wrong_id", status::HANDLER_FAILED),
        ("nonsense_status", status::HANDLER_FAILED),
        ("minus_one", status::HANDLER_FAILED),
        ("too_long", status::RESULT_TOO_LARGE),
        ("own_error", 9),
    ] {
        assert_eq!(call(load(&library, symbol, Abi::HostCall), &[1]), (expected, vec![]), "{symbol}");
    }
    let (status, longest) = call(load(&library, "as_long_as_can_be", Abi::HostCall), &[1]);
    assert_eq!((status, longest.len()), (0, SLOT - 24));
    let (_, told) = call(load(&library, "slot_size_and_alignment", Abi::HostCall), &[]);
    assert_eq!(told, [SLOT as u8, 0, 0, 0, 0, 0, 0, 0]);

    let device = |symbol| call(load(&library, symbol, Abi::DeviceCall), &[1]);
    assert_eq!(device("device_too_long"), (status::RESULT_TOO_LARGE, vec![]));
    assert_eq!(device("device_error"), (77, vec![]));
    assert_eq!(device("device_minus_one"), (status::HANDLER_FAILED, vec![]), "not \"unknown function\": it ran");
    assert_eq!(device("device_room"), (0, vec![SLOT as u8 - 24, 0, 0, 0]));
}

#[test]
fn what_cannot_be_loaded_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let load = |path: &Path, symbol| Plugin::load(path, symbol, Abi::HostCall, any_to_any(), SLOT).unwrap_err();
    let nowhere = dir.path().join("nowhere.so");
    assert!(matches!(load(&nowhere, "f"), PluginError::File { path, .. } if path == nowhere));
    let text = dir.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    assert!(matches!(load(&text, "f"), PluginError::Library { path, .. } if path == text));
    assert!(matches!(load(dir.path(), "f"), PluginError::Library { .. }), "a directory");
    let library = compile_c("examples-c/xor.c", dir.path());
    let error = load(&library, "xor_guest");
    assert!(matches!(&error, PluginError::Symbol { symbol, .. } if symbol == "xor_guest"));
    assert!(error.to_string().contains("exports no symbol \"xor_guest\""), "{error}");
    assert!(matches!(load(&library, "xor\0host"), PluginError::Symbol { .. }));
}
