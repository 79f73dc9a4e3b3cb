//! Generates the bindings and compiles the shims of DPDK's inline functions, both with DPDK's own compiler flags.

use std::{env, path::PathBuf};

/// Everything that berth-dpdk calls. An allowlist keeps the build short and free of types that Rust cannot lay out.
const FUNCTIONS: &[&str] = &[
    "rte_eal_init",
    "rte_strerror",
    "berth_rte_errno",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_lcore_id",
    "rte_dev_probe",
    "rte_dev_remove",
    "rte_dev_bus",
    "rte_bus_name",
    "rte_dev_dma_map",
    "rte_dev_dma_unmap",
    "rte_eal_iova_mode",
    "rte_extmem_register",
    "rte_extmem_unregister",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_info_get",
    "rte_eth_dev_socket_id",
    "rte_eth_dev_configure",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_rx_queue_setup",
    "rte_eth_tx_queue_setup",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_dev_close",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_disable",
    "rte_eth_allmulticast_enable",
    "rte_eth_link_get_nowait",
    "rte_eth_stats_get",
    "rte_eth_rx_burst",
    "rte_eth_tx_burst",
    "rte_eth_from_rings",
    "rte_ring_create",
    "rte_ring_free",
    "rte_ring_dequeue",
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_pool_create_extbuf",
    "rte_pktmbuf_alloc",
    "rte_pktmbuf_free_bulk",
    "rte_mempool_free",
];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    for name in ["PKG_CONFIG_PATH", "LIBCLANG_PATH", "BINDGEN_EXTRA_CLANG_ARGS", "CFLAGS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let flags = cflags();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let shims = out.join("shims.c");

    let mut bindings = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(&flags)
        .wrap_static_fns(true)
        .wrap_static_fns_path(&shims)
        .opaque_type("rte_(arp|l2tpv2|gtp|ether|flow|vxlan|ipv4|ipv6).*")
        .allowlist_type("rte_eth_(stats|link|conf|dev_info)")
        .allowlist_var("RTE_(MAX_ETHPORTS|PKTMBUF_HEADROOM|MEMPOOL_CACHE_MAX_SIZE|ETH_LINK_UP)")
        .allowlist_var("(BERTH|RING_F)_.*")
        .allowlist_recursively(true)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true);
    for function in FUNCTIONS {
        bindings = bindings.allowlist_function(function);
    }
    bindings
        .generate()
        .expect("bindgen could not read DPDK's headers; it wants libclang 14 or newer")
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR is writable");

    let mut shim = cc::Build::new();
    shim.file(&shims).include(".").opt_level(3).warnings(false);
    for flag in &flags {
        shim.flag(flag);
    }
    shim.compile("berth_dpdk_shims");

    // Only what the bindings call. Drivers are plug-ins: EAL loads them from its own folder when it is linked shared,
    // which is how one binary serves every device. net_ring alone has an API of its own.
    for library in ["eal", "ethdev", "mbuf", "mempool", "ring", "net_ring"] {
        println!("cargo:rustc-link-lib=dylib=rte_{library}");
    }
}

/// `pkg-config --cflags`, whole: `-include rte_config.h` and `-march` change inline code and layouts.
///
/// The pkg-config crate gives only paths and defines back, so it checks the version and the tool is asked again.
fn cflags() -> Vec<String> {
    let library = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|e| panic!("berth-dpdk needs DPDK 22.11 or newer (Debian: libdpdk-dev pkg-config): {e}"));
    for path in library.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    let tool = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output =
        std::process::Command::new(tool).args(["--cflags", "libdpdk"]).output().expect("pkg-config just answered");
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}
