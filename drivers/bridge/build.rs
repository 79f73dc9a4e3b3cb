//! Tells the linker that the library stays once it is loaded: it has threads, and its loaders never close it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
