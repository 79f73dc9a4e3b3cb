//! Handles that let other runtimes use a lease, and copying between leases (section "Lease Export/Import/Relocate").

use super::{
    codec::{Bytes, FabricError, Reader, Text, Wire},
    macros::{bits, codes, wire},
};

/// Limit on the reason of a failed relocation, in bytes.
pub const MAX_REASON: usize = 256;

codes! {
    /// `target_runtime_kind`: the runtime that a handle is for.
    pub enum TargetRuntime: u16 {
        GpuWorker = 0, "GPU_WORKER", "a worker of GPU kernels";
        Tasklet = 1, "TASKLET", "a WASM tasklet";
        NativeService = 2, "NATIVE_SERVICE", "a process";
        Accelerator = 3, "ACCELERATOR", "another device";
    }

    /// What a relocation leaves of its source.
    pub enum RelocateMode: u8 {
        Copy = 0, "Copy", "both leases stay";
        Move = 1, "Move", "the source is revoked afterwards";
        CowSeed = 2, "CowSeed", "the destination refers to the source and is copied when written";
    }
}

bits! {
    /// What an exported handle permits ("Rights bitmask").
    pub struct Rights: u32 {
        READ = 1, "read";
        WRITE = 2, "write";
        APPEND = 4, "append; counts as write";
    }
}

/// How the bytes behind a handle are reached ("BindingType registry").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// Type 1: a window of a PCIe function.
    PcieBar {
        /// Bus address of the window.
        bar_base: u64,
        /// Size of the window in bytes.
        bar_len: u64,
    },
    /// Type 2: memory registered for RDMA.
    RdmaRkey {
        /// Remote key of the region.
        rkey: u32,
        /// Virtual address of the region's first byte.
        remote_addr: u64,
    },
    /// Type 3: a Linux dma-buf.
    LinuxDmabuf {
        /// File descriptor of the dma-buf.
        fd: u32,
        /// First byte within the dma-buf.
        offset: u64,
        /// Size in bytes.
        len: u64,
    },
    /// Type 4: memory of a GPU.
    VramOffset {
        /// First byte within the GPU's memory.
        vram_offset: u64,
        /// Size in bytes.
        len: u64,
    },
    /// Type 5: the lease itself, read and written over its dataplane.
    FabricPage {
        /// Full id of the lease (decision 16).
        page_id: u128,
        /// First byte within the lease.
        offset: u64,
        /// Size in bytes.
        len: u64,
    },
}

impl<'a> Wire<'a> for Binding {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let binding_type: u8 = from.get()?;
        let desc: Bytes<'a, 32> = from.get()?;
        let mut desc = Reader::new(desc.get());
        let binding = match binding_type {
            1 => Self::PcieBar { bar_base: desc.get()?, bar_len: desc.get()? },
            2 => Self::RdmaRkey { rkey: desc.get()?, remote_addr: desc.get()? },
            3 => Self::LinuxDmabuf { fd: desc.get()?, offset: desc.get()?, len: desc.get()? },
            4 => Self::VramOffset { vram_offset: desc.get()?, len: desc.get()? },
            5 => Self::FabricPage { page_id: desc.get()?, offset: desc.get()?, len: desc.get()? },
            _ => return Err(FabricError::Value("binding_type")),
        };
        desc.finish()?;
        Ok(binding)
    }

    fn write(&self, to: &mut Vec<u8>) {
        let head = |to: &mut Vec<u8>, binding_type: u8, len: u32| {
            binding_type.write(to);
            len.write(to);
        };
        match *self {
            Self::PcieBar { bar_base: first, bar_len: len } => {
                head(to, 1, 16);
                first.write(to);
                len.write(to);
            }
            Self::RdmaRkey { rkey, remote_addr } => {
                head(to, 2, 12);
                rkey.write(to);
                remote_addr.write(to);
            }
            Self::LinuxDmabuf { fd, offset, len } => {
                head(to, 3, 20);
                fd.write(to);
                offset.write(to);
                len.write(to);
            }
            Self::VramOffset { vram_offset: first, len } => {
                head(to, 4, 16);
                first.write(to);
                len.write(to);
            }
            Self::FabricPage { page_id, offset, len } => {
                head(to, 5, 32);
                page_id.write(to);
                offset.write(to);
                len.write(to);
            }
        }
    }
}

wire! {
    /// Params of LEASE_EXPORT_HANDLE: 34 bytes.
    pub struct LeaseExport {
        /// Low 64 bits of the lease id.
        pub lease_id: u64,
        /// The runtime that will import the handle.
        pub target_runtime_kind: TargetRuntime,
        /// Id of the key that may import it; 0 lets anyone.
        pub target_identity: u128,
        /// Within the lease's own READ and WRITE; APPEND counts as WRITE (decision 16).
        pub rights: Rights,
        /// Seconds for which the handle can be imported.
        pub ttl_secs: u32,
    }

    /// Result of LEASE_EXPORT_HANDLE.
    pub struct LeaseExported {
        /// Random number that names the handle for LEASE_IMPORT_HANDLE.
        pub export_handle: u128,
        /// When the handle ends, in seconds since the Unix epoch.
        pub expires_at: u64,
        /// How the importer reaches the bytes.
        pub binding: Binding,
    }

    /// Params of LEASE_IMPORT_HANDLE.
    pub struct LeaseImport {
        /// From the result of LEASE_EXPORT_HANDLE.
        pub export_handle: u128,
    }

    /// Result of LEASE_IMPORT_HANDLE.
    pub struct LeaseImported {
        /// Chosen by the node, one for each import.
        pub local_attach_id: u64,
        /// Those given at export.
        pub rights: Rights,
        /// When the attachment ends, in seconds since the Unix epoch: with the handle, or sooner with the lease.
        pub expires_at: u64,
    }

    /// Params of LEASE_RELOCATE: 18 bytes, or 26 with `preserve_until_ms`.
    pub struct LeaseRelocate {
        /// Low 64 bits of the source's lease id.
        pub src_lease_id: u64,
        /// Low 64 bits of the destination's lease id.
        pub dst_lease_id: u64,
        /// What becomes of the source.
        pub mode: RelocateMode,
        /// Keeps the source until this time, in milliseconds since the Unix epoch.
        pub preserve_until_ms: Option<u64>,
    }
}

/// `status` of LEASE_RELOCATE's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relocation<'a> {
    /// 0: every byte was copied.
    Complete,
    /// 1: still copying; v0 nodes never send it (decision 16).
    InProgress,
    /// 2: the copy failed.
    Failed {
        /// For people, in UTF-8.
        reason: Text<'a, MAX_REASON>,
    },
}

impl<'a> Wire<'a> for Relocation<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        match from.get::<u8>()? {
            0 => Ok(Self::Complete),
            1 => Ok(Self::InProgress),
            2 => Ok(Self::Failed { reason: from.get()? }),
            _ => Err(FabricError::Value("relocation status")),
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Complete => to.push(0),
            Self::InProgress => to.push(1),
            Self::Failed { reason } => {
                to.push(2);
                reason.write(to);
            }
        }
    }
}

wire! {
    /// Result of LEASE_RELOCATE.
    pub struct LeaseRelocated<'a> {
        /// Bytes copied.
        pub bytes_transferred: u64,
        /// How the relocation ended.
        pub outcome: Relocation<'a>,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    #[test]
    fn exports_and_imports_are_laid_out_as_documented() {
        let export = LeaseExport {
            lease_id: 1,
            target_runtime_kind: TargetRuntime::NativeService,
            target_identity: 2,
            rights: Rights::READ | Rights::APPEND,
            ttl_secs: 3,
        };
        let bytes = "0000000000000001 0002 00000000000000000000000000000002 00000005 00000003";
        assert_eq!(hex(bytes).len(), 34);
        exact(&export, bytes);
        let binding = Binding::FabricPage { page_id: 6, offset: 0, len: 0x1000 };
        exact(
            &LeaseExported { export_handle: 4, expires_at: 5, binding },
            "00000000000000000000000000000004 0000000000000005
             05 00000020 00000000000000000000000000000006 0000000000000000 0000000000001000",
        );
        exact(&LeaseImport { export_handle: 4 }, "00000000000000000000000000000004");
        let imported = LeaseImported { local_attach_id: 1, rights: Rights::READ, expires_at: 5 };
        exact(&imported, "0000000000000001 00000001 0000000000000005");
        assert_eq!(imported.to_vec().len(), 20);
    }

    #[test]
    fn every_binding_has_its_descriptor() {
        let (one, two) = ("0000000000000001", "0000000000000002");
        exact(&Binding::PcieBar { bar_base: 1, bar_len: 2 }, &format!("01 00000010 {one} {two}"));
        exact(&Binding::RdmaRkey { rkey: 7, remote_addr: 2 }, &format!("02 0000000c 00000007 {two}"));
        exact(&Binding::LinuxDmabuf { fd: 7, offset: 1, len: 2 }, &format!("03 00000014 00000007 {one} {two}"));
        exact(&Binding::VramOffset { vram_offset: 1, len: 2 }, &format!("04 00000010 {one} {two}"));
        assert_eq!(Binding::parse(&hex("06 00000000")), Err(FabricError::Value("binding_type")));
        let long = format!("01 00000011 {one} {two} 00");
        assert_eq!(Binding::parse(&hex(&long)), Err(FabricError::Surplus));
    }

    #[test]
    fn relocations_are_laid_out_as_documented() {
        let plain =
            LeaseRelocate { src_lease_id: 1, dst_lease_id: 2, mode: RelocateMode::Move, preserve_until_ms: None };
        exact(&plain, "0000000000000001 0000000000000002 01 00");
        assert_eq!(plain.to_vec().len(), 18);
        let kept = LeaseRelocate { preserve_until_ms: Some(3), ..plain };
        exact(&kept, "0000000000000001 0000000000000002 01 01 0000000000000003");
        assert_eq!(kept.to_vec().len(), 26);
        let mode = LeaseRelocate::parse(&hex("0000000000000001 0000000000000002 03 00"));
        assert_eq!(mode, Err(FabricError::Value("RelocateMode")));
        exact(&LeaseRelocated { bytes_transferred: 9, outcome: Relocation::Complete }, "0000000000000009 00");
        let outcome = Relocation::Failed { reason: Text::of("full").unwrap() };
        exact(&LeaseRelocated { bytes_transferred: 0, outcome }, "0000000000000000 02 00000004 66756c6c");
    }
}
