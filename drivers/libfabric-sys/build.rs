//! Generates the bindings and compiles the shims of libfabric's inline functions, which call through its vtables.

use std::{env, path::PathBuf};

/// Everything that berth-ofi calls.
const FUNCTIONS: &[&str] = &[
    "fi_allocinfo",
    "fi_freeinfo",
    "fi_getinfo",
    "fi_strerror",
    "fi_fabric",
    "fi_domain",
    "fi_endpoint",
    "fi_av_open",
    "fi_av_insert",
    "fi_av_remove",
    "fi_cq_open",
    "fi_cq_readfrom",
    "fi_cq_readerr",
    "fi_ep_bind",
    "fi_enable",
    "fi_getname",
    "fi_close",
    "fi_mr_reg",
    "fi_mr_desc",
    "fi_recv",
    "fi_cancel",
    "fi_send",
    "fi_inject",
];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    for name in ["PKG_CONFIG_PATH", "LIBCLANG_PATH", "BINDGEN_EXTRA_CLANG_ARGS", "CFLAGS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let library = pkg_config::Config::new()
        .atleast_version("1.17")
        .probe("libfabric")
        .unwrap_or_else(|e| panic!("berth-ofi needs libfabric 1.17 or newer (Debian: libfabric-dev pkg-config): {e}"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let shims = out.join("shims.c");

    let mut bindings = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(library.include_paths.iter().map(|path| format!("-I{}", path.display())))
        .wrap_static_fns(true)
        .wrap_static_fns_path(&shims)
        .allowlist_var("FI_.*")
        .allowlist_type("fi_(context2|cq_msg_entry|cq_err_entry|info|cq_attr|av_attr)")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true);
    for function in FUNCTIONS {
        bindings = bindings.allowlist_function(function);
    }
    bindings
        .generate()
        .expect("bindgen could not read libfabric's headers; it wants libclang 14 or newer")
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR is writable");

    let mut shim = cc::Build::new();
    shim.file(&shims).include(".").includes(&library.include_paths).opt_level(3).warnings(false);
    shim.compile("berth_libfabric_shims");
}
