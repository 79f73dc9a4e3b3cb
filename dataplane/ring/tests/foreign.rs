//! C on the other side of the ring. The header compiles as C and C++, a C dispatcher serves our ring, and our
//! dispatcher serves a ring that C allocated and fills.

use std::{mem::MaybeUninit, path::Path, process::Command, thread};

use berth_memory::Heap;
use berth_ring::{ErrorCode, Geometry, Ring, TxError, abi};
use libloading::{Library, Symbol};

const SLOTS: u32 = 8;
const SLOT_SIZE: usize = 96;
const COUNT: u64 = 100_000;
const HEADER: usize = 24;

fn source(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn compile(compiler: &str, args: &[&str]) {
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", &source("include")])
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(output.status.success(), "{compiler} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles and loads `tests/foreign.c`.
fn foreign(dir: &Path) -> Library {
    let so = dir.join("foreign.so");
    compile("cc", &["-std=c11", "-O2", "-shared", "-fPIC", &source("tests/foreign.c"), "-o", so.to_str().unwrap()]);
    // SAFETY: our own code, without initialisers.
    unsafe { Library::new(so) }.unwrap()
}

#[test]
fn the_header_compiles_as_c11_and_cpp17() {
    compile("cc", &["-std=c11", "-fsyntax-only", "-x", "c", &source("include/berth_ring.h")]);
    compile("c++", &["-std=c++17", "-fsyntax-only", "-x", "c++", &source("include/berth_ring.h")]);
}

#[test]
fn a_c_dispatcher_serves_our_ring() {
    type Dispatch = unsafe extern "C" fn(*const abi::Ringbuffer, *const abi::DispatcherConfig, u64, u64);
    const ERROR_EVERY: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let library = foreign(dir.path());
    // SAFETY: the type is that of the function in tests/foreign.c.
    let dispatch: Symbol<'_, Dispatch> = unsafe { library.get(b"foreign_dispatch") }.unwrap();

    let geometry = Geometry::new(SLOTS, SLOT_SIZE).unwrap();
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    let mut producer = ring.producer().unwrap();
    thread::scope(|scope| {
        let ring = ring.as_abi();
        scope.spawn(move || {
            let config = abi::DispatcherConfig {
                num_slots: SLOTS,
                slot_size: SLOT_SIZE as u32,
                dispatch_mode: abi::DISPATCH_HOST_CALL.into(),
                dispatch_path: abi::PATH_HOST,
                ..abi::DispatcherConfig::default()
            };
            // SAFETY: the ring outlives the scope, and nobody took its dispatcher's role.
            unsafe { dispatch(&raw const ring, &raw const config, COUNT, ERROR_EVERY) }
        });
        let (mut sent, mut taken) = (0, 0);
        while taken < COUNT {
            if sent < COUNT && producer.can_push() {
                producer
                    .push(|slot| {
                        slot[..HEADER + 8].copy_from_slice(&message(0x4355_5152, 0x191B_6322, sent, 0));
                        HEADER + 8
                    })
                    .unwrap();
                sent += 1;
            }
            producer.collect(usize::MAX, |slot, answer| {
                assert_eq!(slot.0 as u64, taken % SLOTS as u64);
                if taken % ERROR_EVERY == 0 {
                    assert_eq!(answer, Err(TxError::Tagged(ErrorCode::new(0x100 + taken).unwrap())));
                } else {
                    assert_eq!(answer.unwrap()[..HEADER + 8], message(0x4355_5153, 0, taken, 1));
                }
                taken += 1;
            });
        }
    });
    let stats = producer.stats();
    assert_eq!((stats.pushed, stats.collected, stats.errors), (COUNT, COUNT, COUNT / ERROR_EVERY));
    assert_eq!((stats.overruns, stats.unanswered, stats.late_answers, stats.bad_flags), (0, 0, 0, 0));
}

#[test]
fn our_dispatcher_serves_a_ring_of_c() {
    type Create = unsafe extern "C" fn(*mut abi::Ringbuffer, u32, usize, usize) -> i32;
    type Destroy = unsafe extern "C" fn(*mut abi::Ringbuffer);
    type Produce = unsafe extern "C" fn(*const abi::Ringbuffer, u32, u64) -> u64;
    let dir = tempfile::tempdir().unwrap();
    let library = foreign(dir.path());
    // SAFETY: the types are those of the functions in tests/foreign.c.
    let (create, destroy, produce): (Symbol<'_, Create>, Symbol<'_, Destroy>, Symbol<'_, Produce>) = unsafe {
        (
            library.get(b"foreign_ring_create").unwrap(),
            library.get(b"foreign_ring_destroy").unwrap(),
            library.get(b"foreign_produce").unwrap(),
        )
    };
    let mut foreign = MaybeUninit::uninit();
    // Strides that Berth would not choose, and that differ.
    // SAFETY: C writes the whole struct.
    let mut foreign = unsafe {
        assert_eq!(create(foreign.as_mut_ptr(), SLOTS, SLOT_SIZE + 4, SLOT_SIZE + 8), 0);
        foreign.assume_init()
    };
    // SAFETY: the ring is valid until `destroy`, after the dispatcher is gone; `produce` keeps to the protocol.
    let mut ring = unsafe { Ring::attach(foreign, SLOTS, SLOT_SIZE) }.unwrap();
    assert_eq!(ring.as_abi(), foreign);
    let mut dispatcher = ring.dispatcher().unwrap();
    let worker = thread::spawn(move || {
        let mut served = 0;
        while served < COUNT {
            served += dispatcher.poll(usize::MAX, |rx, tx| {
                let n = u64::from_le_bytes(rx[HEADER..HEADER + 8].try_into().unwrap());
                assert_eq!(rx[..HEADER + 8], message(0x4355_5152, 0x191B_6322, n, 0));
                tx[..HEADER + 8].copy_from_slice(&message(0x4355_5153, 0, n, 1));
                Ok(HEADER + 8)
            }) as u64;
        }
        dispatcher.stats()
    });
    // SAFETY: the ring was made by `create` and is served by the worker.
    assert_eq!(unsafe { produce(&raw const foreign, SLOTS, COUNT) }, COUNT);
    let stats = worker.join().unwrap();
    assert_eq!(stats, berth_ring::DispatcherStats { dispatched: COUNT, ..Default::default() });
    drop(ring);
    // SAFETY: nothing refers to the ring any more.
    unsafe { destroy(&raw mut foreign) };
}

#[test]
fn a_foreign_ring_that_does_not_add_up_is_refused() {
    let geometry = Geometry::new(SLOTS, SLOT_SIZE).unwrap();
    let ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    let good = ring.as_abi();
    // SAFETY: never used, since each is refused.
    let refusal = |abi, slots, slot_size| unsafe { Ring::attach(abi, slots, slot_size) }.err().map(|e| e.to_string());
    let foreign = |text: &str| Some(format!("foreign ring: {text}"));
    let null = std::ptr::null_mut();
    assert_eq!(refusal(good, SLOTS, SLOT_SIZE), None);
    assert_eq!(refusal(good, 0, SLOT_SIZE), Some("a ring needs at least 1 slot".into()));
    assert_eq!(refusal(good, SLOTS, 129), foreign("a stride is shorter than a slot"));
    let no_flags = abi::Ringbuffer { rx_flags: null, rx_flags_host: null, ..good };
    assert_eq!(refusal(no_flags, SLOTS, SLOT_SIZE), foreign("flags are null"));
    let odd_flags = abi::Ringbuffer { tx_flags_host: good.tx_flags.wrapping_byte_add(4), ..good };
    assert_eq!(refusal(odd_flags, SLOTS, SLOT_SIZE), foreign("flags must be 8-aligned"));
    let no_data = abi::Ringbuffer { tx_data: null.cast(), tx_data_host: null.cast(), ..good };
    assert_eq!(refusal(no_data, SLOTS, SLOT_SIZE), foreign("slots are null"));
}

/// Message number `n` with an 8-byte payload: `n`, with `plus` added to each byte.
fn message(magic: u32, code: u32, n: u64, plus: u8) -> [u8; HEADER + 8] {
    let mut bytes = [0; HEADER + 8];
    for (at, field) in [(0, magic), (4, code), (8, 8), (12, n as u32)] {
        bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
    }
    bytes[16..24].copy_from_slice(&(!n).to_le_bytes());
    bytes[24..].copy_from_slice(&n.to_le_bytes().map(|byte| byte.wrapping_add(plus)));
    bytes
}
