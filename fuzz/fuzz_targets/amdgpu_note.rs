//! Code objects of AMD's GPUs: a bundle or an ELF file, and metadata in a file that is sound. What is found lies within it.
#![no_main]

use berth_amdgpu::{Isa, PARAMETERS_MAX, find};
use libfuzzer_sys::fuzz_target;

/// An ELF file with one segment, of one note of metadata.
fn with_note(metadata: &[u8]) -> Vec<u8> {
    let note = [&7_u32.to_le_bytes()[..], &(metadata.len() as u32).to_le_bytes(), &32_u32.to_le_bytes(), b"AMDGPU\0\0"];
    let len = note.concat().len() + metadata.len();
    let mut file = b"\x7FELF\x02\x01\x01".to_vec();
    file.resize(120, 0);
    // The machine; where the segments are, their size and number; the kind of the first, its offset and size.
    file[18] = 224;
    file[32] = 64;
    file[54] = 56;
    file[56] = 1;
    file[64] = 4;
    file[72] = 120;
    file[96..104].copy_from_slice(&(len as u64).to_le_bytes());
    [&file, &note.concat()[..], metadata].concat()
}

fuzz_target!(|bytes: &[u8]| {
    let gpu = Isa::parse("gfx90a:sramecc+:xnack-").unwrap();
    for file in [bytes, &with_note(bytes)] {
        let Ok(found) = find(file, &gpu) else { continue };
        assert!(
            file.as_ptr_range().start <= found.elf.as_ptr() && found.elf.as_ptr_range().end <= file.as_ptr_range().end
        );
        for kernel in found.kernels {
            assert!(kernel.parameters.len() <= PARAMETERS_MAX && kernel.name.len() <= file.len());
            assert!(kernel.parameters.iter().all(|(offset, size)| offset.checked_add(*size).is_some()));
        }
    }
});
