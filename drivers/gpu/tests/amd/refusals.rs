//! What keeps a worker from AMD's runtime or a GPU is told.

use std::fs;

use super::{Place, library};

#[test]
fn a_library_that_is_not_there_or_is_none() {
    let place = Place::new("hip:0", &[]);
    let said = place.refused();
    assert!(said.starts_with("AMD's HIP runtime libamdhip64.so is not there: "), "{said}");
    assert!(said.ends_with("; install ROCm 5.0 or later, or write device = \"soft\""), "{said}");
    fs::write(place.folder.path().join("libamdhip64.so.6"), "").unwrap();
    let said = place.refused();
    assert!(said.contains("libamdhip64.so.6: file too short"), "{said}");
}

#[test]
fn a_function_that_is_lacking() {
    let place = Place::new("hip:0", &[]);
    library(place.folder.path(), &["-DLACKS"]);
    assert_eq!(place.refused(), "libamdhip64.so lacks hipMemcpy2D, which it has had since ROCm 5.0: reinstall ROCm");
}

#[test]
fn a_gpu_that_is_not_there() {
    let place = Place::new("hip:0", &[("HIP_TEST_DEVICES", "0")]);
    library(place.folder.path(), &[]);
    let said = place.refused();
    let wanted = "hipInit: hipErrorNoDevice (100): no ROCm-capable device is detected; /dev/kfd: ";
    assert!(said.starts_with(wanted), "{said}");
    let place = Place::new("hip:2", &[]);
    library(place.folder.path(), &[]);
    assert_eq!(place.refused(), "no GPU hip:2; the runtime has 2, from hip:0 on");
}
