//! Cubins and fat binaries of a hostile client: what they tell lies in them, and takes no more memory than they do.
#![no_main]

use berth_ptx::binary::{Entry, entries, kernels};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|image: &[u8]| {
    check(image);
    let mut bytes = 0;
    for entry in entries(image).unwrap_or_default() {
        match entry {
            Entry::Cubin(cubin) => {
                bytes += cubin.len();
                check(cubin);
            }
            Entry::Ptx(text) => bytes += text.len(),
            Entry::Other => {}
        }
    }
    assert!(bytes <= image.len());
});

fn check(cubin: &[u8]) {
    let all = kernels(cubin).unwrap_or_default();
    // A record of a parameter has 16 bytes, and no two kernels have the same ones.
    let parameters: usize = all.iter().map(|kernel| kernel.parameters.len()).sum();
    assert!(parameters * 16 <= cubin.len());
    assert!(all.iter().all(|kernel| kernel.name.len() < cubin.len()));
}
