//! Code objects by clang, and such that lie.

use std::{path::Path, process::Command};

use berth_amdgpu::{CodeObject, Error, Isa, find};
use proptest::prelude::*;
use serde::Serialize;

/// Made of the code objects of `session.hip` by clang's own tool, of Debian's clang-tools-14, with an empty entry for the host:
///
/// ```sh
/// A=hipv4-amdgcn-amd-amdhsa-
/// clang-offload-bundler-14 -type=o -targets=host-x86_64-unknown-linux,$A-gfx906,$A-gfx90a:sramecc+:xnack-,$A-gfx1030 \
///     -inputs=/dev/null,gfx906.co,gfx90a:sramecc+:xnack-.co,gfx1030.co -outputs=session.bundle
/// ```
const BUNDLE: &[u8] = include_bytes!("kernels/session.bundle");
const MANY: &[u8] = include_bytes!("kernels/many.co");

/// The targets of the bundle, in order.
const TARGETS: [&str; 3] = ["gfx906", "gfx90a:sramecc+:xnack-", "gfx1030"];

fn isa(text: &str) -> Isa<'_> {
    Isa::parse(text).unwrap()
}

fn of(gpu: &str) -> CodeObject<'static> {
    find(BUNDLE, &isa(gpu)).unwrap()
}

/// What clang makes of a source for a target.
fn compiled(source: &str, target: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    let made = Command::new("clang-14")
        .args(["-x", "hip", "-nogpuinc", "-nogpulib", "--cuda-device-only", "--no-gpu-bundle-output", "-O2"])
        .arg(format!("--offload-arch={target}"))
        .args(["-o", "-"])
        .arg(folder.join(source))
        .current_dir(folder)
        .output()
        .expect("clang-14, which `cargo xtask setup` installs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    made.stdout
}

#[test]
fn the_objects_are_what_clang_makes_of_the_sources() {
    for target in TARGETS {
        assert!(of(target).elf == compiled("session.hip", target), "{target}");
    }
    assert!(MANY == compiled("many.hip", "gfx906"));
}

#[test]
fn kernels_tell_their_parameters_without_hidden_ones() {
    let pointers = [(0, 8), (8, 8), (16, 8)];
    let wanted = [
        ("vadd", [&pointers[..], &[(24, 4)]].concat()),
        ("matmul", [&pointers[..], &[(24, 4)]].concat()),
        ("reduce", vec![(0, 8), (8, 8), (16, 4)]),
        ("store", vec![(0, 8)]),
        ("trap", vec![(0, 8)]),
        ("forever", vec![(0, 8)]),
        ("slow", vec![(0, 8)]),
        ("empty", vec![]),
        ("mixed", vec![(0, 1), (8, 24), (32, 2), (40, 8)]),
    ];
    for target in TARGETS {
        let found = of(target).kernels;
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.parameters.clone())).collect();
        assert_eq!(found, wanted, "{target}");
        assert!(of(target).elf.windows(7).any(|bytes| bytes == b"hidden_"), "{target}");
        // The same file without a bundle.
        assert_eq!(find(of(target).elf, &isa(target)).unwrap(), of(target));
    }
    assert_eq!(find(MANY, &isa("gfx906")), Err(Error::Refused("a kernel of more than 64 parameters")));
}

#[test]
fn an_entry_is_chosen_by_processor_and_features() {
    let elf = TARGETS.map(|target| of(target).elf);
    for (gpu, wanted) in [
        ("gfx906:sramecc+:xnack-", Some(0)),
        ("gfx906:sramecc-:xnack+", Some(0)),
        ("gfx90a:sramecc+:xnack-", Some(1)),
        ("gfx90a:xnack-:sramecc+", Some(1)),
        ("gfx90a:sramecc+:xnack+", None),
        ("gfx90a:sramecc-:xnack-", None),
        ("gfx90a", None),
        ("gfx1030", Some(2)),
        ("gfx103", None),
        ("gfx942:sramecc+:xnack-", None),
    ] {
        match (find(BUNDLE, &isa(gpu)), wanted) {
            (Ok(found), Some(at)) => assert!(found.elf == elf[at], "{gpu}"),
            (Err(e), None) => assert_eq!(e, Error::Foreign("no entry of the bundle is for this GPU"), "{gpu}"),
            (found, _) => panic!("{gpu}: {:?}", found.map(|found| found.kernels)),
        }
    }
    let alone = find(elf[0], &isa("gfx1030"));
    assert_eq!(alone, Err(Error::Foreign("a code object for another GPU")));
    for text in ["", "gfx906:", "gfx906:xnack", "gfx906:xnack+:xnack-", "gfx906:other+", "sm_90"] {
        assert_eq!(Isa::parse(text), None, "{text}");
    }
}

#[test]
fn names_of_entries_have_more_than_one_form() {
    let elf = of("gfx906").elf;
    for (id, is_found) in [
        ("hip-amdgcn-amd-amdhsa--gfx906", true),
        ("hip-amdgcn-amd-amdhsa-gfx906", true),
        ("hipv4-amdgcn-amd-amdhsa-unknown-gfx906", true),
        ("hipv4-amdgcn-amd-amdhsa--gfx9060", false),
        ("openmp-amdgcn-amd-amdhsa--gfx906", false),
        ("hipv4-spirv64-amd-amdhsa--gfx906", false),
        ("host-x86_64-unknown-linux--", false),
        ("", false),
    ] {
        let found = find(&bundle(&[(id.as_bytes(), elf)]), &isa("gfx906")).map(|found| found.elf.len());
        let wanted = Err(Error::Foreign("no entry of the bundle is for this GPU"));
        assert_eq!(found, if is_found { Ok(elf.len()) } else { wanted }, "{id}");
    }
}

/// A bundle of these entries: name and contents.
fn bundle(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut at = 32 + entries.iter().map(|(id, _)| 24 + id.len()).sum::<usize>();
    let mut bytes = [b"__CLANG_OFFLOAD_BUNDLE__", &(entries.len() as u64).to_le_bytes()[..]].concat();
    for (id, contents) in entries {
        bytes.extend([at, contents.len(), id.len()].map(|number| (number as u64).to_le_bytes()).concat());
        bytes.extend(*id);
        at += contents.len();
    }
    for (_, contents) in entries {
        bytes.extend(*contents);
    }
    bytes
}

/// An ELF file with one segment of notes, and a note of this owner, type and contents.
fn elf(owner: &[u8], kind: u32, contents: &[u8]) -> Vec<u8> {
    let mut file = b"\x7FELF\x02\x01\x01".to_vec();
    file.resize(64 + 56, 0);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    let padded = |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len()]].concat();
    let note = [owner.len() as u32, contents.len() as u32, kind].map(u32::to_le_bytes).concat();
    let note = [note, padded(owner), padded(contents)].concat();
    put(18, &224_u16.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &1_u16.to_le_bytes());
    put(64, &4_u32.to_le_bytes());
    put(72, &120_u64.to_le_bytes());
    put(96, &(note.len() as u64).to_le_bytes());
    file.extend(note);
    file
}

#[derive(Serialize)]
struct Metadata {
    #[serde(rename = "amdhsa.kernels")]
    kernels: Vec<Kernel>,
}

#[derive(Serialize, Clone)]
struct Kernel {
    #[serde(rename = ".name")]
    name: &'static str,
    #[serde(rename = ".kernarg_segment_size")]
    segment: u32,
    #[serde(rename = ".args")]
    arguments: Vec<Argument>,
}

#[derive(Serialize, Clone)]
struct Argument {
    #[serde(rename = ".offset")]
    offset: u32,
    #[serde(rename = ".size")]
    size: u32,
    #[serde(rename = ".value_kind")]
    kind: &'static str,
}

fn described(segment: u32, offset: u32, size: u32, kernels: usize) -> Vec<u8> {
    let arguments = vec![Argument { offset, size, kind: "by_value" }];
    let kernel = Kernel { name: "k", segment, arguments };
    rmp_serde::to_vec_named(&Metadata { kernels: vec![kernel; kernels] }).unwrap()
}

#[test]
fn files_that_lie_are_refused() {
    let gpu = isa("gfx906");
    let said = |note: &[u8]| find(&elf(b"AMDGPU\0", 32, note), &gpu).map(|found| found.kernels[0].parameters.clone());
    assert_eq!(said(&described(16, 8, 8, 1)), Ok(vec![(8, 8)]));
    let outside = Err(Error::Broken("a parameter that is not within its kernel's arguments"));
    assert_eq!(said(&described(16, 8, 9, 1)), outside);
    assert_eq!(said(&described(u32::MAX, u32::MAX, 1, 1)), outside);
    assert_eq!(said(&described(16, 8, 8, 4097)), Err(Error::Refused("more than 4096 kernels")));
    let damaged = Err(Error::Broken("metadata that are damaged"));
    // A list, a text and a map of 4 Gi elements, lists in lists, and nothing.
    let name = [&[0x81, 0xAE][..], b"amdhsa.kernels"].concat();
    for end in [&[0xDD, 0xFF, 0xFF, 0xFF, 0xFF][..], &[0xDB, 0xFF, 0xFF, 0xFF, 0xFF], &[0xDF, 0xFF, 0xFF, 0xFF, 0xFF]] {
        assert_eq!(said(&[&name, end].concat()), damaged);
    }
    assert_eq!(said(&[&[0x81, 0xA1, b'x'][..], &vec![0x91; 1 << 20]].concat()), damaged);
    assert_eq!(said(&[]), damaged);
    let none = Err(Error::Refused("no metadata: a code object of version 3 or later is needed"));
    assert_eq!(find(&elf(b"AMDGPU\0", 10, &described(16, 8, 8, 1)), &gpu), none);
    assert_eq!(find(&elf(b"GNU\0", 32, &described(16, 8, 8, 1)), &gpu), none);
    let broken = Err(Error::Broken("an ELF file that is cut off or damaged"));
    let sound = elf(b"AMDGPU\0", 32, &described(16, 8, 8, 1));
    // Offset and number of segments, of sections; length of the notes, of the owner, of what is said.
    for (at, bytes) in [
        (32, &[0xFF; 8][..]),
        (40, &[0xFF; 8]),
        (56, &[0xFF; 2]),
        (96, &[0xFF; 8]),
        (120, &[0xFF; 4]),
        (124, &[0xFF; 4]),
    ] {
        let mut file = sound.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(find(&file, &gpu), broken, "{at}");
    }
    let mut sections = sound.clone();
    sections[58..62].copy_from_slice(&[64, 0, 1, 0]);
    sections[40..48].copy_from_slice(&(sound.len() as u64 - 63).to_le_bytes());
    assert_eq!(find(&sections, &gpu), broken);
    let mut other = sound.clone();
    other[18] = 62;
    assert_eq!(find(&other, &gpu), Err(Error::Foreign("an ELF file for other processors")));
    assert_eq!(find(b"text", &gpu), Err(Error::Broken("neither a bundle nor an ELF file")));
    assert!(matches!(find(b"CCOB\x02\0\0\0", &gpu), Err(Error::Refused(_))));
    let mut short = bundle(&[(b"hip-amdgcn-amd-amdhsa--gfx906", &sound)]);
    short.pop();
    assert_eq!(find(&short, &gpu), Err(Error::Broken("an entry of a bundle is not within it")));
    let table = [b"__CLANG_OFFLOAD_BUNDLE__", &u64::MAX.to_le_bytes()[..], &[0xFF; 64]].concat();
    assert_eq!(find(&table, &gpu), Err(Error::Broken("the table of a bundle is cut off")));
}

#[test]
fn an_object_that_is_cut_anywhere_is_refused() {
    let elf = of("gfx906").elf;
    for end in 0..elf.len() {
        assert!(find(&elf[..end], &isa("gfx906")).is_err(), "{end}");
    }
    for end in 0..BUNDLE.len() - of("gfx1030").elf.len() {
        assert!(find(&BUNDLE[..end], &isa("gfx1030")).is_err(), "{end}");
    }
}

proptest! {
    #[test]
    fn what_is_found_is_within_bounds_whatever_is_changed(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        in_note in any::<bool>(),
    ) {
        let mut file = of("gfx90a:sramecc+:xnack-").elf.to_vec();
        // The header, the segments and the metadata, or all of it.
        let reach = if in_note { 4096.min(file.len()) } else { file.len() };
        for (at, value) in changes {
            file[at.index(reach)] = value;
        }
        if let Ok(found) = find(&file, &isa("gfx90a:sramecc+:xnack-")) {
            prop_assert_eq!(found.elf.len(), file.len());
            for kernel in found.kernels {
                prop_assert!(kernel.parameters.len() <= 64);
                prop_assert!(kernel.parameters.iter().all(|(at, size)| at.checked_add(*size).is_some()));
            }
        }
    }
}
