//! Cubins and fat binaries of NVIDIA's tools, made-up ones, and broken ones.

use berth_ptx::{
    Module, Program,
    binary::{Entry, Kernel, entries, kernels},
};
use proptest::prelude::*;

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("binary/", $name))
    };
}

/// What the text says.
fn of_text(text: &[u8]) -> Vec<Kernel> {
    let module = Module::parse(std::str::from_utf8(text).unwrap()).unwrap();
    let program = Program::link(&[module]).unwrap();
    let kernel = |name: &str| {
        let parameters = program.parameters(name).unwrap();
        let parameters = parameters.iter().map(|one| (one.offset as u32, one.bytes as u32)).collect();
        Kernel { name: name.to_owned(), parameters }
    };
    sorted(program.kernels().into_iter().map(kernel).collect())
}

fn sorted(mut kernels: Vec<Kernel>) -> Vec<Kernel> {
    kernels.sort_by(|one, other| one.name.cmp(&other.name));
    kernels
}

#[test]
fn cubins_tell_what_their_texts_do() {
    let put = of_text(file!("put.ptx"));
    assert_eq!(put[1].parameters, [(0, 8), (8, 1), (16, 16), (32, 4)]);
    assert_eq!(sorted(kernels(file!("put.cubin")).unwrap()), put);
    assert_eq!(sorted(kernels(file!("put-13.cubin")).unwrap()), put);
    assert_eq!(kernels(file!("large.cubin")).unwrap()[0].parameters, [(0, 20000), (20000, 4)]);
}

#[test]
fn fat_binaries_have_what_was_put_in() {
    let cubin = file!("put.cubin");
    for (fat, is_compressed) in [(&file!("put.fatbin")[..], false), (&file!("put-compressed.fatbin")[..], true)] {
        // What is behind it does not count.
        let fat = [fat, b"more"].concat();
        let [Entry::Cubin(first), second] = entries(&fat).unwrap()[..] else { panic!("two entries") };
        assert_eq!(first, cubin);
        match second {
            // The tool leaves comments out.
            Entry::Ptx(text) if !is_compressed => {
                let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                assert_eq!(of_text(&text[..end]), of_text(file!("put.ptx")));
            }
            Entry::Other if is_compressed => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(entries(cubin), None);
    assert_eq!(kernels(file!("put.fatbin")), None);
}

/// A record of `.nv.info` about a parameter, in either form.
fn record(ordinal: usize, (offset, size): (u32, u32), is_large: bool) -> Vec<u8> {
    let (attribute, word) = if is_large { (0x45, size) } else { (0x17, size << 18 | 0x1_F000) };
    let head = [4, attribute, 12, 0, 0, 0, 0, 0];
    [&head[..], &(ordinal as u16).to_le_bytes(), &(offset as u16).to_le_bytes(), &word.to_le_bytes()].concat()
}

/// A cubin with these kernels, and nothing that runs.
fn cubin(all: &[Kernel], is_large: bool) -> Vec<u8> {
    let (mut names, mut symbols) = (vec![0], vec![0; 24]);
    let mut sections: Vec<(String, u32, u32, Vec<u8>)> = vec![(String::new(), 0, 0, Vec::new())];
    for kernel in all {
        // Its name, a function for all to see, that is a kernel; and a function that is none.
        for (name, other) in [(kernel.name.clone(), 0x10), (format!("{}.device", kernel.name), 0)] {
            symbols.extend((names.len() as u32).to_le_bytes());
            symbols.extend([0x12, other]);
            symbols.extend([0; 18]);
            names.extend([name.as_bytes(), &[0]].concat());
        }
        // The last one first, as `ptxas` has them, between others.
        let records = kernel.parameters.iter().enumerate().rev();
        let records: Vec<_> = records.map(|(at, one)| record(at, *one, is_large)).collect();
        let info = [&[3, 0x1B, 255, 0][..], &records.concat(), &[4, 0x1C, 4, 0, 9, 9, 9, 9]].concat();
        sections.push((format!(".nv.info.{}", kernel.name), 0x7000_0000, 0, info));
    }
    let strings = sections.len() as u32;
    sections.push((".strtab".into(), 3, 0, names));
    sections.push((".symtab".into(), 2, strings, symbols));
    let (mut texts, mut body, mut headers) = (vec![0], Vec::new(), Vec::new());
    let own = (".shstrtab".to_owned(), 3, 0, Vec::new());
    let count = sections.len() as u16 + 1;
    for (at, (name, kind, link, bytes)) in sections.into_iter().chain([own]).enumerate() {
        let text = texts.len() as u32;
        texts.extend([name.as_bytes(), &[0]].concat());
        let bytes = if at + 1 == usize::from(count) { texts.clone() } else { bytes };
        let mut header = vec![0; 64];
        header[..4].copy_from_slice(&text.to_le_bytes());
        header[4..8].copy_from_slice(&u32::to_le_bytes(kind));
        header[24..32].copy_from_slice(&(64 + body.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[40..44].copy_from_slice(&u32::to_le_bytes(link));
        headers.extend(header);
        body.extend(bytes);
    }
    let mut file = vec![0; 64];
    file[..5].copy_from_slice(b"\x7fELF\x02");
    file[18] = 190;
    file[40..48].copy_from_slice(&(64 + body.len() as u64).to_le_bytes());
    file[58] = 64;
    file[60..62].copy_from_slice(&count.to_le_bytes());
    file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    [file, body, headers].concat()
}

fn kernel() -> impl Strategy<Value = Kernel> {
    let parameters = prop::collection::vec((0..0x1_0000_u32, 0..0x4000_u32), 0..70);
    ("[a-zA-Z_][a-zA-Z0-9_$]{0,40}", parameters).prop_map(|(name, parameters)| Kernel { name, parameters })
}

proptest! {
    #[test]
    fn every_kernel_is_told(mut all in prop::collection::vec(kernel(), 0..8), is_large: bool) {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        prop_assert_eq!(kernels(&cubin(&all, is_large)), Some(all));
    }

    #[test]
    fn what_is_broken_is_refused_or_read(
        which in 0..4_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end: prop::sample::Index,
    ) {
        let files = [&file!("put.cubin")[..], file!("put-13.cubin"), file!("put.fatbin"), file!("put-compressed.fatbin")];
        let mut image = files[which].to_vec();
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        image.truncate(image.len() - end.index(image.len()) / 4);
        let most = image.len();
        for kernel in kernels(&image).unwrap_or_default() {
            prop_assert!(kernel.name.len() < most && kernel.parameters.len() < most / 12);
        }
        let all: usize = entries(&image).unwrap_or_default().iter().map(|entry| match entry {
            Entry::Ptx(bytes) | Entry::Cubin(bytes) => bytes.len(),
            Entry::Other => 0,
        }).sum();
        prop_assert!(all <= most);
    }
}
