//! Composite leases: cores of the tasklets' pool and an arena of their memory (T11).

use berth_lease::{Holding, Item, Lease, LeaseId, Leases, Standing};
use berth_port::Now;
use berth_tasklet::schedule::Room;
use berth_wire::fabric::{ResourceType, Status};

use crate::{
    ending::Ending,
    host::Host,
    node::Node,
    resource::{Resource, Stock},
    tasklet::Why,
};

/// The cores of the pool. What is free of them the schedule knows.
#[derive(Debug)]
pub(crate) struct Cpu {
    pub(crate) cores: u32,
}

impl Resource for Cpu {
    fn kind(&self) -> ResourceType {
        ResourceType::Cpu
    }

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn stock(&self, _: &Leases) -> Stock {
        Stock { capacity: self.cores.into(), available: 0, fenced: false }
    }

    fn counts_as(&self) -> Option<Item> {
        Some(Item::Composites)
    }

    fn grant(&mut self, _: LeaseId, wanted: &[u8]) -> Result<Vec<u8>, Status> {
        Ok(wanted.to_vec())
    }
}

/// What a composite lease holds, as it is journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Composite {
    pub(crate) cores: u16,
    pub(crate) arena: u64,
    /// Its own resource ids.
    pub(crate) mem: u128,
    pub(crate) cpu: u128,
}

impl Composite {
    const LEN: usize = 2 + 8 + 16 + 16;

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { cores, arena, mem, cpu } = self;
        let parts: [&[u8]; 4] = [&cores.to_be_bytes(), &arena.to_be_bytes(), &mem.to_be_bytes(), &cpu.to_be_bytes()];
        parts.concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (cores, rest) = bytes.split_first_chunk()?;
        let (arena, rest) = rest.split_first_chunk()?;
        let (mem, rest) = rest.split_first_chunk()?;
        let (cpu, _) = rest.split_first_chunk()?;
        Some(Self {
            cores: u16::from_be_bytes(*cores),
            arena: u64::from_be_bytes(*arena),
            mem: u128::from_be_bytes(*mem),
            cpu: u128::from_be_bytes(*cpu),
        })
    }

    pub(crate) fn room(self) -> Room {
        Room { cores: self.cores.into(), memory: self.arena }
    }
}

impl<H: Host> Node<H> {
    /// Whether a lease is a composite one, whatever its standing.
    pub(crate) fn is_composite(&self, id: LeaseId) -> bool {
        let is_cpu = |holds| match (holds, &self.tasklets) {
            (Holding::Unit(unit), Some(tasklets)) => usize::from(unit.resource) == tasklets.resource,
            _ => false,
        };
        self.leases.get(id).is_some_and(|lease| is_cpu(lease.holds))
    }

    /// Bytes of a composite lease's arena.
    pub(crate) fn arena_of(&self, id: LeaseId) -> Option<u64> {
        let unit = self.units.get(&id).filter(|_| self.is_composite(id))?;
        Composite::from_bytes(unit).map(|composite| composite.arena)
    }

    /// Knows the resource ids of a composite lease.
    pub(crate) fn know_composite(&mut self, id: LeaseId, composite: Composite) {
        let Some(tasklets) = &mut self.tasklets else { return };
        // Those of leases that nobody remembers are not asked for any more.
        tasklets.resource_ids.retain(|_, (_, lease)| self.leases.get(*lease).is_some());
        tasklets.resource_ids.insert(composite.mem, (ResourceType::Mem, id));
        tasklets.resource_ids.insert(composite.cpu, (ResourceType::Cpu, id));
    }

    /// Gives a composite lease after a restart the cores and the arena that it had, where there are so many.
    pub(crate) fn restore_composite(&mut self, lease: &Lease, unit: &[u8]) {
        let Some(composite) = Composite::from_bytes(unit).filter(|_| self.is_composite(lease.id)) else { return };
        self.know_composite(lease.id, composite);
        if let (Standing::Live, Some(tasklets)) = (lease.standing, &mut self.tasklets) {
            tasklets.schedule.open(lease.id.0, composite.room());
        }
    }

    /// Ends what a composite lease runs, and gives back its cores and its arena.
    pub(crate) fn close_composite(&mut self, id: LeaseId, now: Now, endings: &mut Vec<Ending>) {
        let Some(tasklets) = self.tasklets.as_mut() else { return };
        for run in tasklets.schedule.close(id.0) {
            endings.extend(self.stop_run(run, Why::Ended, now));
        }
    }
}
