//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs look for this name, whatever the file is called that they were linked with.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libberth_hip.so");
    // Its timer's thread runs until the process ends, so its code stays.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
