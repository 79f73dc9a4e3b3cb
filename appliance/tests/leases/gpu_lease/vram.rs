//! Leases in the own memory of one of NVIDIA's GPUs, by a driver in software.

use std::{
    fs::File,
    io::ErrorKind,
    os::unix::fs::FileExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Data, Via};
use berth_gpu::VramBlocks;
use berth_lease::{BlockError, BlockOp, Blocks as _, wait};
use berth_memory::Heap;
use berth_pages::DmaBufs as _;
use berth_wire::fabric::Status;

use super::{Site, Tenant, children, counters, refused, signal};
use crate::common::{Berth, fails, fails_as};

/// The process that copies from and to the GPU's memory.
fn copier(berth: &Berth) -> Option<u32> {
    children(berth, b"\0session\0").pop_first()
}

#[tokio::test]
async fn leases_in_its_own_memory_outlive_what_copies() {
    let site = Site::vram();
    let berth = site.start();
    let tenant = Tenant::new(&berth, &site.holder).await;
    let mut data = tenant.data(&site.holder, Via::Quic).await;
    // Any bytes, in parts of the staging area and beyond a chunk's.
    let other = Tenant::new(&berth, &site.other).await;
    other.client.lease_free(other.lease.lease_id).await.unwrap();
    let wide = other.client.lease_alloc(&other.token, &Alloc::gpu((2 << 20) + 5, 60)).await.unwrap();
    let mut wide = Data::open(&site.other, &wide, Via::Tcp, None).await.unwrap();
    let bytes: Vec<u8> = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect();
    for at in [0, 3, (1 << 20) + 5] {
        wide.write(at, &bytes).await.unwrap();
        assert_eq!(wide.read(at, 1 << 20).await.unwrap(), bytes, "at {at}");
    }
    assert_eq!(wide.read(3, 1).await.unwrap(), bytes[..1]);
    let resources = tenant.client.inventory().await.unwrap();
    let gpu = resources.iter().find(|of| of.resource_id == tenant.resource).unwrap();
    assert_eq!((gpu.capacity, gpu.available), (32 << 20, 26 << 20), "leases have whole chunks");
    data.write(100, b"kept").await.unwrap();
    assert_eq!(tenant.store(5).await, 5_u32.to_le_bytes());
    for (how, within) in [("-KILL", Duration::from_secs(5)), ("-STOP", Duration::from_secs(10))] {
        let (old, began) = (copier(&berth).unwrap(), Instant::now());
        signal(old, how);
        // What it had may fail; what comes later waits for the next one.
        while data.read(100, 4).await.ok() != Some(b"kept".to_vec()) {
            assert!(began.elapsed() < within, "{how}");
            data = tenant.data(&site.holder, Via::Quic).await;
        }
        assert_ne!(copier(&berth), Some(old), "{how}");
        assert_eq!(data.read(256, 4).await.unwrap(), 5_u32.to_le_bytes(), "{how}");
        assert_eq!(tenant.store(5).await, 5_u32.to_le_bytes(), "{how}");
    }
    // A lease that ends meanwhile is zeroed before anybody has its bytes.
    signal(copier(&berth).unwrap(), "-KILL");
    tenant.client.lease_free(tenant.lease.lease_id).await.unwrap();
    for _ in 0..13 {
        let next = Tenant::new(&berth, &site.other).await;
        let mut data = next.data(&site.other, Via::Quic).await;
        assert_eq!(data.read(0, 64 << 10).await.unwrap(), vec![0; 64 << 10]);
    }
    tenant.client.lease_alloc(&tenant.token, &Alloc::gpu(4096, 60)).await.unwrap();
    assert_eq!(
        refused(tenant.client.lease_alloc(&tenant.token, &Alloc::gpu(4096, 60)).await),
        Status::CapacityExceeded
    );
    assert_eq!(counters(berth), [3, 0, 1]);
}

#[tokio::test]
async fn a_driver_that_takes_longer_to_open_than_a_kernel_may_run_is_waited_for() {
    let site = Site::vram();
    let berth = Berth::start_as(&site.text(), |command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_OPENS_MS", "2000");
    });
    assert_eq!(berth.ready["gpus"][0]["memory"], "vram");
    let tenant = Tenant::new(&berth, &site.holder).await;
    assert_eq!(tenant.store(3).await, 3_u32.to_le_bytes());
    assert_eq!(counters(berth), [0; 3]);
}

#[tokio::test]
async fn memory_that_processes_cannot_share_is_told() {
    let cases = [
        ("32 MiB", "forgets", "memory of the GPU does not outlive the process that allocated it"),
        ("32 MiB", "elsewhere", ", and not at 0x380000000000 as it is asked to"),
        ("1 MiB", "", "a GPU's memory is leased in chunks of 2 MiB, and 1048576 bytes are too few"),
    ];
    for (size, kind, why) in cases {
        let set = |command: &mut Command| {
            command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_DMA_BUF", kind);
        };
        let (code, refused) = fails_as(&Site::new("auto", "vram", size).text(), set);
        assert_eq!(code, Some(1), "{refused}");
        assert!(refused.contains("gpu gpu1, memory = \"vram\"") && refused.contains(why), "{kind}: {refused}");
        let site = Site::new("auto", "auto", size);
        let berth = Berth::start_as(&site.text(), set);
        assert_eq!(berth.ready["gpus"][0]["memory"], "pinned", "{kind}");
        let stopped = berth.stop();
        assert!(stopped.stderr.contains(why), "{}", stopped.stderr);
    }
    // Without a size it is most of what is free.
    let site = Site::vram();
    let berth = Site::start_with(&site.text().replace("size = \"32 MiB\"\n", ""));
    let tenant = Tenant::new(&berth, &site.holder).await;
    let resources = tenant.client.inventory().await.unwrap();
    let gpu = resources.iter().find(|of| of.resource_id == tenant.resource).unwrap();
    assert_eq!((gpu.capacity, gpu.available), (56 << 20, 54 << 20));
    assert!(berth.stop().status.success());
    for (device, memory, wanted) in [
        ("soft", "vram", "region[0].size: is missing; write size = \"256 MiB\""),
        ("auto", "pinned", "region[0].size: is missing; write size = \"256 MiB\""),
        ("auto", "heap", "region[0].memory: \"heap\" is unknown; there are: auto, pinned, vram"),
    ] {
        let (code, told) = fails(&Site::new(device, memory, "").text().replace("size = \"\"\n", ""));
        assert!(code == Some(2) && told.contains(wanted), "{told}");
    }
}

#[tokio::test]
async fn a_region_larger_than_what_is_free_is_told() {
    let small = |command: &mut Command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_ROOM_MIB", "16");
    };
    let why = "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
    let (code, told) = fails_as(&Site::vram().text(), small);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(&format!("gpu gpu1, memory = \"vram\": {why}")), "{told}");

    let site = Site::new("auto", "auto", "32 MiB");
    let berth = Berth::start_as(&site.text(), small);
    assert_eq!(berth.ready["gpus"][0]["memory"], "pinned");
    let tenant = Tenant::new(&berth, &site.holder).await;
    assert_eq!(tenant.store(3).await, 3_u32.to_le_bytes());
    let stopped = berth.stop();
    let told = format!("gpu gpu1: leases lie in memory of the host, which it reads: {why}");
    assert!(stopped.stderr.contains(&told), "{}", stopped.stderr);

    // Without a size it is most of what is free, and fits.
    let site = Site::vram();
    let berth = Berth::start_as(&site.text().replace("size = \"32 MiB\"\n", ""), small);
    let tenant = Tenant::new(&berth, &site.holder).await;
    let resources = tenant.client.inventory().await.unwrap();
    let gpu = resources.iter().find(|of| of.resource_id == tenant.resource).unwrap();
    assert_eq!((gpu.capacity, gpu.available), (14 << 20, 12 << 20));
    assert!(berth.stop().status.success());
}

/// In a process of its own, whose environment has the driver in software.
#[test]
fn dma_bufs_have_what_is_written_to_the_memory() {
    const KIND: &str = "CUDA_SOFT_DMA_BUF";
    let Ok(kind) = std::env::var(KIND) else {
        for kind in ["", "none"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["gpu_lease::vram::dma_bufs_have_what_is_written_to_the_memory", "--exact"]);
            command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env(KIND, kind);
            let out = command.output().unwrap();
            assert!(out.status.success(), "{kind}: {}", String::from_utf8_lossy(&out.stdout));
        }
        return;
    };
    let worker = Path::new(env!("CARGO_BIN_EXE_berth-gpu-worker"));
    let vram = VramBlocks::open("gpu1", worker, &"auto".parse().unwrap(), Some(8 << 20)).unwrap();
    assert_eq!((vram.len(), vram.info().granule, vram.info().volatile), (8 << 20, 2 << 20, true));
    let done = |op, at, pieces| wait(&vram, op, at, pieces, Duration::from_secs(20)).unwrap();
    let at = (4 << 20) + 1000;
    done(BlockOp::Write, at, vec![Heap::from(&b"here"[..]).into()]).unwrap();
    match vram.export(at, 4) {
        Ok((dma_buf, first)) => {
            let mut found = [0; 4];
            File::from(dma_buf).read_exact_at(&mut found, first).unwrap();
            assert_eq!((first, &found, kind.as_str()), (1000, b"here", ""));
        }
        Err(e) => {
            assert_eq!((e.kind(), kind.as_str()), (ErrorKind::Unsupported, "none"));
            assert!(e.to_string().contains("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801)"), "{e}");
        }
    }
    // Beyond its end, and what it has not.
    for (op, at, error) in [
        (BlockOp::Read, (8 << 20) - 3, BlockError::Io(22)),
        (BlockOp::Zero(u64::MAX), 1, BlockError::Io(22)),
        (BlockOp::Discard(4096), 0, BlockError::Io(95)),
    ] {
        let pieces = if op == BlockOp::Read { vec![Heap::new(4).into()] } else { Vec::new() };
        assert_eq!(done(op, at, pieces), Err(error), "{op:?}");
    }
}
