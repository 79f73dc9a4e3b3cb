//! Devices: properties, attributes, limits, access between them.

use berth_wire::hip::{Code, Op, request as q, response as r};

use super::{int, long, view};
use crate::{
    device::{Device, Properties},
    session::{Flow, Session, done, put},
};

/// What limits are at first: stack, printf buffer, heap, in bytes.
pub(crate) const LIMITS: [u64; 3] = [1024, 1 << 20, 8 << 20];

impl<D: Device> Session<D> {
    /// The index of a device.
    pub(super) fn device_index(&self, id: i32) -> Result<usize, Code> {
        let index = usize::try_from(id).map_err(|_| Code::INVALID_DEVICE)?;
        if index < self.device.properties().len() { Ok(index) } else { Err(Code::INVALID_DEVICE) }
    }

    pub(super) fn device_op(&mut self, op: Op, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        match op {
            Op::GetDeviceCount => return Ok(int(room, self.device.properties().len() as i32)),
            Op::GetDevice => return Ok(int(room, self.current as i32)),
            Op::SetDevice => self.current = self.device_index(view::<q::Device>(payload)?.device_id.get())?,
            Op::GetDeviceProperties => {
                let id = view::<q::Device>(payload).map_or(0, |request| request.device_id.get());
                let properties = &self.device.properties()[self.device_index(id)?];
                return Ok(put(room, &answer(properties)));
            }
            Op::DeviceGetAttribute => {
                let request = view::<q::Attribute>(payload)?;
                let properties = &self.device.properties()[self.device_index(request.device_id.get())?];
                let value = attribute(properties, request.attribute.get()).ok_or(Code::INVALID_VALUE)?;
                return Ok(int(room, value));
            }
            Op::DeviceGetLimit => {
                let limit = *self.limit(view::<q::Limit>(payload)?.limit.get())?;
                return Ok(long(room, limit));
            }
            Op::DeviceSetLimit => {
                let request = view::<q::Limit>(payload)?;
                *self.limit(request.limit.get())? = request.value.get();
            }
            Op::DeviceCanAccessPeer => {
                let request = view::<q::Peers>(payload)?;
                let device = self.device_index(request.device_id.get())?;
                let peer = self.device_index(request.peer_device_id.get())?;
                return Ok(int(room, i32::from(self.device.reaches(device, peer))));
            }
            Op::DeviceEnablePeerAccess | Op::DeviceDisablePeerAccess => {
                self.peer_access(op == Op::DeviceEnablePeerAccess, *view(payload)?)?;
            }
            _ => self.reset(),
        }
        Ok(done(room))
    }

    fn limit(&mut self, limit: i32) -> Result<&mut u64, Code> {
        let limit = usize::try_from(limit).ok().and_then(|limit| self.limits.get_mut(limit));
        limit.ok_or(Code::UNSUPPORTED_LIMIT)
    }

    fn peer_access(&mut self, enable: bool, request: q::PeerAccess) -> Result<(), Code> {
        let peer = self.device_index(request.peer_device_id.get())?;
        let pair = (self.current, peer);
        let known = self.peers.iter().position(|one| *one == pair);
        match (enable, known) {
            _ if peer == self.current => Err(Code::INVALID_DEVICE),
            (true, _) if !self.device.reaches(self.current, peer) => Err(Code::PEER_UNSUPPORTED),
            (true, _) if request.flags != 0 => Err(Code::INVALID_VALUE),
            (true, None) => {
                self.peers.push(pair);
                Ok(())
            }
            (true, Some(_)) => Err(Code::PEER_ENABLED),
            (false, None) => Err(Code::PEER_NOT_ENABLED),
            (false, Some(at)) => {
                self.peers.swap_remove(at);
                Ok(())
            }
        }
    }

    /// Frees all that the session has. A deferred error stays to be told.
    pub(crate) fn reset(&mut self) {
        self.objects.clear();
        self.device.reset();
        self.peers.clear();
        self.limits = LIMITS;
        self.recorded = (0, 0);
    }
}

fn answer(properties: &Properties) -> r::DeviceProperties {
    let of = |values: [u32; 3]| values.map(|value| (value as i32).into());
    r::DeviceProperties {
        name: r::text(&properties.name),
        total_global_mem: properties.memory.into(),
        shared_mem_per_block: u64::from(properties.shared_memory).into(),
        regs_per_block: 65536.into(),
        warp_size: (properties.warp as i32).into(),
        max_threads_per_block: (properties.block_threads as i32).into(),
        max_threads_dim: of(properties.block),
        max_grid_size: of(properties.grid),
        major: (properties.version[0] as i32).into(),
        minor: (properties.version[1] as i32).into(),
        multi_processor_count: (properties.processors as i32).into(),
        max_threads_per_multi_processor: (properties.resident[1] as i32).into(),
        gcn_arch_name: r::text(&properties.arch),
        ..r::DeviceProperties::zeroed()
    }
}

/// An attribute by its number in `hipDeviceAttribute_t`.
fn attribute(properties: &Properties, attribute: i32) -> Option<i32> {
    let value = match attribute {
        // Compute capability: major, minor.
        23 => properties.version[0],
        61 => properties.version[1],
        25 => properties.resident[0],
        26..=28 => properties.block[attribute as usize - 26],
        29..=31 => properties.grid[attribute as usize - 29],
        // Threads of a block, of a multiprocessor; multiprocessors; registers of a block.
        56 => properties.block_threads,
        57 => properties.resident[1],
        63 => properties.processors,
        71 => 65536,
        74 => properties.shared_memory,
        87 => properties.warp,
        // ECC, mapped host memory, compute mode, concurrent kernels, cooperative launch, integrated, managed memory,
        // kernel time limit, PCI bus, device and domain.
        0 | 3 | 6 | 8 | 10 | 16 | 24 | 67..=69 => 0,
        18 | 85 => 1,
        _ => return None,
    };
    Some(value as i32)
}
