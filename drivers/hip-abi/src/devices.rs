//! Devices, and errors of the thread's calls.

use berth_wire::hip::{Code, response as r};

use zerocopy::little_endian::I32;

use crate::{
    args::{Address, Out},
    library::{DEVICE, answer, objects, on, on_device},
};

#[unsafe(no_mangle)]
extern "C" fn hipInit(flags: u32) -> i32 {
    answer(|| if flags == 0 { on(|_| Ok(())) } else { Err(Code::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
extern "C" fn hipDriverGetVersion(version: Out<i32>) -> i32 {
    answer(|| {
        let slot = version.slot()?;
        slot.set(on(berth_hip::Session::versions)?.1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipRuntimeGetVersion(version: Out<i32>) -> i32 {
    answer(|| {
        let slot = version.slot()?;
        slot.set(on(berth_hip::Session::versions)?.0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGetDeviceCount(count: Out<i32>) -> i32 {
    answer(|| {
        let slot = count.slot()?;
        let devices = on_device(0, |session| Ok(session.devices()));
        slot.set(*devices.as_ref().unwrap_or(&0));
        devices.map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(device: i32) -> i32 {
    answer(|| {
        on_device(device, |_| Ok(()))?;
        DEVICE.set(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGetDevice(device: Out<i32>) -> i32 {
    answer(|| {
        device.slot()?.set(DEVICE.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGet(device: Out<i32>, ordinal: i32) -> i32 {
    answer(|| {
        let slot = device.slot()?;
        on_device(ordinal, |_| Ok(()))?;
        slot.set(ordinal);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetName(name: Address, len: i32, device: i32) -> i32 {
    answer(|| {
        let len = usize::try_from(len).ok().filter(|len| *len > 0 && !name.is_null()).ok_or(Code::INVALID_VALUE)?;
        let properties = on(|session| session.properties(device))?;
        let len = len.min(properties.name.len());
        let room = name.bytes_mut(len);
        room.copy_from_slice(&properties.name[..len]);
        room[len - 1] = 0;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceTotalMem(bytes: Out<usize>, device: i32) -> i32 {
    answer(|| {
        let slot = bytes.slot()?;
        slot.set(on(|session| session.properties(device))?.total_global_mem.get() as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) -> i32 {
    answer(|| {
        let (major, minor) = (major.slot()?, minor.slot()?);
        let properties = on(|session| session.properties(device))?;
        major.set(properties.major.get());
        minor.set(properties.minor.get());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) -> i32 {
    answer(|| {
        let slot = value.slot()?;
        slot.set(on(|session| session.attribute(device, attribute))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGetDevicePropertiesR0600(properties: Out<Properties>, device: i32) -> i32 {
    answer(|| {
        let slot = properties.slot()?;
        slot.set(Properties::of(&on(|session| session.properties(device))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceSynchronize() -> i32 {
    answer(|| on(berth_hip::Session::synchronize))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceReset() -> i32 {
    answer(|| {
        on(berth_hip::Session::reset)?;
        objects(crate::library::Objects::clear);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetLimit(value: Out<usize>, limit: i32) -> i32 {
    answer(|| {
        let slot = value.slot()?;
        slot.set(on(|session| session.limit(limit))? as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceSetLimit(limit: i32, value: usize) -> i32 {
    answer(|| on(|session| session.set_limit(limit, value as u64)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) -> i32 {
    answer(|| {
        let slot = can.slot()?;
        slot.set(i32::from(on(|session| session.can_access_peer(device, peer))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceEnablePeerAccess(peer: i32, flags: u32) -> i32 {
    answer(|| if flags == 0 { on(|session| session.enable_peer_access(peer)) } else { Err(Code::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceDisablePeerAccess(peer: i32) -> i32 {
    answer(|| on(|session| session.disable_peer_access(peer)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> i32 {
    answer(|| {
        for slot in [least.wanted(), greatest.wanted()].into_iter().flatten() {
            slot.set(0);
        }
        Ok(())
    })
}

/// `hipDeviceProp_tR0600`; what a worker does not tell is 0.
#[repr(C)]
struct Properties {
    name: [u8; 256],
    uuid: [u64; 2],
    luid: [u8; 8],
    luid_mask: u32,
    total_global_mem: u64,
    shared_mem_per_block: u64,
    regs_per_block: i32,
    warp_size: i32,
    mem_pitch: u64,
    max_threads_per_block: i32,
    max_threads_dim: [i32; 3],
    max_grid_size: [i32; 3],
    clock_rate: i32,
    total_const_mem: u64,
    major: i32,
    minor: i32,
    texture_alignment: u64,
    texture_pitch_alignment: u64,
    device_overlap: i32,
    multi_processor_count: i32,
    kernel_exec_timeout_enabled: i32,
    integrated: i32,
    can_map_host_memory: i32,
    compute_mode: i32,
    /// Most sizes of textures and surfaces.
    textures: [i32; 40],
    surface_alignment: u64,
    concurrent_kernels: i32,
    ecc_enabled: i32,
    pci_bus_id: i32,
    pci_device_id: i32,
    pci_domain_id: i32,
    tcc_driver: i32,
    async_engine_count: i32,
    unified_addressing: i32,
    memory_clock_rate: i32,
    memory_bus_width: i32,
    l2_cache_size: i32,
    persisting_l2_cache_max_size: i32,
    max_threads_per_multi_processor: i32,
    /// Priorities of streams, L1 of globals, of locals.
    supported: [i32; 3],
    shared_mem_per_multiprocessor: u64,
    /// From its registers to cooperative launches on several devices.
    multiprocessor: [i32; 12],
    shared_mem_per_block_optin: u64,
    /// From page tables of the host to the window of access policies.
    access: [i32; 4],
    reserved_shared_mem_per_block: u64,
    /// From registration of host memory to unified function pointers, then what is reserved.
    reserved: [i32; 13 + 63 + 32],
    gcn_arch_name: [u8; 256],
    max_shared_memory_per_multi_processor: u64,
    clock_instruction_rate: i32,
    arch: u32,
    flush: [u64; 2],
    /// Cooperative launches on several devices, a large BAR, the revision.
    last: [i32; 6],
}

const _: () = assert!(size_of::<Properties>() == 1472);

impl Properties {
    fn of(said: &r::DeviceProperties) -> Self {
        Self {
            name: said.name,
            uuid: [0; 2],
            luid: [0; 8],
            luid_mask: 0,
            total_global_mem: said.total_global_mem.get(),
            shared_mem_per_block: said.shared_mem_per_block.get(),
            regs_per_block: said.regs_per_block.get(),
            warp_size: said.warp_size.get(),
            mem_pitch: i32::MAX as u64,
            max_threads_per_block: said.max_threads_per_block.get(),
            max_threads_dim: said.max_threads_dim.map(I32::get),
            max_grid_size: said.max_grid_size.map(I32::get),
            clock_rate: said.clock_rate.get(),
            total_const_mem: 0,
            major: said.major.get(),
            minor: said.minor.get(),
            texture_alignment: 0,
            texture_pitch_alignment: 0,
            device_overlap: 0,
            multi_processor_count: said.multi_processor_count.get(),
            kernel_exec_timeout_enabled: 0,
            integrated: said.integrated.get(),
            can_map_host_memory: 0,
            compute_mode: said.compute_mode.get(),
            textures: [0; 40],
            surface_alignment: 0,
            concurrent_kernels: said.concurrent_kernels.get(),
            ecc_enabled: 0,
            pci_bus_id: said.pci_bus_id.get(),
            pci_device_id: said.pci_device_id.get(),
            pci_domain_id: said.pci_domain_id.get(),
            tcc_driver: 0,
            async_engine_count: 0,
            unified_addressing: 1,
            memory_clock_rate: said.memory_clock_rate.get(),
            memory_bus_width: said.memory_bus_width.get(),
            l2_cache_size: said.l2_cache_size.get(),
            persisting_l2_cache_max_size: 0,
            max_threads_per_multi_processor: said.max_threads_per_multi_processor.get(),
            supported: [0; 3],
            shared_mem_per_multiprocessor: said.shared_mem_per_block.get(),
            multiprocessor: [0; 12],
            shared_mem_per_block_optin: 0,
            access: [0; 4],
            reserved_shared_mem_per_block: 0,
            reserved: [0; 13 + 63 + 32],
            gcn_arch_name: said.gcn_arch_name,
            max_shared_memory_per_multi_processor: said.shared_mem_per_block.get(),
            clock_instruction_rate: 0,
            arch: 0,
            flush: [0; 2],
            last: [0; 6],
        }
    }
}
