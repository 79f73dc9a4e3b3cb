//! What keeps a worker from NVIDIA's driver or a GPU is told.

use std::{fs, path::Path, process::Command};

use berth_gpu::{Choice, Functions, refused_node};
use tempfile::TempDir;

use crate::common::{Rig, increment};

/// A library of this name and C source.
fn library(folder: &Path, source: &str) {
    let (file, library) = (folder.join("stub.c"), folder.join("libcuda.so.1"));
    fs::write(&file, source).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &file]).status().unwrap();
    assert!(made.success());
}

/// What a worker says that is to have this device, with libraries of this folder.
fn refused(device: &str, folder: &Path, variables: &[(&str, &str)], blocks: u32) -> String {
    let mut rig = Rig::start(device, folder, variables, 80, [64, blocks], 64);
    let said = rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false });
    said["refused"].as_str().unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn a_library_that_is_no_driver_or_an_old_one() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
    let said = refused("auto", folder.path(), &[], 1);
    assert!(said.starts_with("NVIDIA's driver is not there: ") && said.contains("libcuda.so.1"), "{said}");
    assert!(said.ends_with("; install it, or write device = \"soft\""), "{said}");
    let version = |version: u32| format!("int cuDriverGetVersion(int *v) {{ *v = {version}; return 0; }}\n");
    for (source, wanted) in [
        ("int other;\n", "libcuda.so.1 lacks cuDriverGetVersion: it is not NVIDIA's, or older than CUDA 2.2"),
        (&version(11_030), "libcuda.so.1 is of CUDA 11.3; CUDA 11.4 or later is needed: update NVIDIA's driver"),
        (
            &(version(12_020) + "int cuGetErrorName() { return 0; }\n"),
            "libcuda.so.1 of CUDA 12.2 lacks cuGetErrorString, which it has had since CUDA 6.0: reinstall NVIDIA's driver",
        ),
    ] {
        library(folder.path(), source);
        assert_eq!(refused("auto", folder.path(), &[], 1), wanted);
    }
}

#[test]
fn a_gpu_that_is_not_there_or_too_small() {
    let folder = berth_cuda_soft::folder().unwrap();
    let said = refused("auto", &folder, &[("CUDA_VISIBLE_DEVICES", "")], 1);
    let wanted = "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected; ";
    assert!(said.starts_with(wanted), "{said}");
    let all = "there are 0000:3b:00.0 (GPU-11000000-0000-0000-0000-000000000000), 0000:5e:00.0 \
               (GPU-22000000-0000-0000-0000-000000000000)";
    for device in ["0000:01:00.0", "GPU-33000000-0000-0000-0000-000000000000"] {
        assert_eq!(refused(device, &folder, &[], 1), format!("no GPU {device}; {all}"));
    }
    assert_eq!(
        refused("auto", &folder, &[], 64),
        "64 blocks of berth_dispatch are to run at once, and this GPU has room for 32"
    );
}

/// Blocks that never begin would answer nothing, and show no life.
#[test]
fn more_blocks_than_the_gpu_in_software_runs_at_once() {
    assert_eq!(
        refused("soft", Path::new(""), &[], 64),
        "64 blocks of berth_dispatch are to run at once, and the GPU in software has room for 32"
    );
    let mut rig = Rig::start("soft", Path::new(""), &[], 82, [64, 32], 64);
    assert_eq!(rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false }), "loaded");
    for id in 0..64 {
        rig.push(1, id, &[1]);
    }
    for id in 0..64 {
        assert_eq!(rig.answer(), Ok((id, 0, vec![2])), "every block serves its share");
    }
}

#[test]
fn the_gpu_that_is_meant() {
    let folder = berth_cuda_soft::folder().unwrap();
    for (device, address) in [
        ("auto", "0000:3b:00.0"),
        ("5E:00.0", "0000:5e:00.0"),
        ("GPU-22000000-0000-0000-0000-000000000000", "0000:5e:00.0"),
    ] {
        let mut rig = Rig::start(device, &folder, &[], 81, [4, 1], 64);
        assert_eq!(rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false }), "loaded");
        assert_eq!(rig.opened, serde_json::json!({ "kind": "cuda", "device": address, "unread": null }));
        assert_eq!(rig.call(1, &[1]), (0, vec![2]));
    }
}

#[test]
fn devices_are_written_in_several_ways() {
    let read = |text: &str| text.parse::<Choice>().map(|choice| choice.to_string()).ok();
    for (text, wanted) in [
        ("soft", "soft"),
        ("auto", "auto"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000001:af:1f.7", "0001:af:1f.7"),
        ("3b:00.0", "0000:3b:00.0"),
        ("GPU-2F000000-0000-0000-0000-000000000001", "GPU-2f000000-0000-0000-0000-000000000001"),
        ("hip:0", "hip:0"),
        ("hip:012", "hip:12"),
    ] {
        assert_eq!(read(text).as_deref(), Some(wanted));
    }
    for text in [
        "",
        "Soft",
        "gpu0",
        "3b:00",
        "0:3b:00.0.0",
        "1:2:3:4.0",
        "+3b:00.0",
        "GPU-1",
        "0000:3bb:00.0",
        "MIG-1",
        "hip:",
        "hip:+1",
        "hip:4294967296",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
}

#[test]
fn a_device_node_that_cannot_be_opened() {
    let folder = TempDir::new().unwrap();
    assert_eq!(refused_node(folder.path()), None);
    fs::write(folder.path().join("nvidiactl"), "").unwrap();
    assert_eq!(refused_node(folder.path()), None);
    // Root may open whatever it may see, but for a folder.
    let node = folder.path().join("nvidia0");
    fs::create_dir(&node).unwrap();
    assert_eq!(refused_node(folder.path()), Some(format!("{}: Is a directory (os error 21)", node.display())));
}
