//! Opens ports of an RDMA device.

use std::sync::Arc;

use berth_pages::Pages;
use berth_port::Tables;
use berth_verbs::{PortConfig, VerbsPort};

use super::Verbs;
use crate::{Client, Connect, Facts, Open, OpenQueue, Opening, PortUser, QueueUser};

/// A queue of an open device.
#[derive(Debug)]
pub struct Queue(Box<VerbsPort>);

impl Open for Verbs {
    type Queue = Queue;
    const COUNTERS: &'static [Tables] = &[berth_verbs::COUNTERS, berth_rendezvous::COUNTERS];

    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
        let config = PortConfig {
            device: self.device.clone(),
            port: self.port,
            gid_index: self.gid_index,
            rendezvous: self.rendezvous.bind,
            form: self.rendezvous.form,
            immediate: self.immediate,
            slots: self.slots,
            max_frame: opening.max_frame,
            peers: self.peers,
            kept: opening.kept,
        };
        let ports = berth_verbs::open(&config, opening.queues)?;
        Ok((ports.into_iter().map(|port| Queue(Box::new(port))).collect(), Facts::new()))
    }
}

impl OpenQueue for Queue {
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
        user.port(*self.0)
    }

    fn frames(&self) -> Option<Result<Arc<Pages>, String>> {
        Some(self.0.frames().map_err(str::to_owned))
    }
}

impl Connect for Verbs {
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()> {
        let config = PortConfig {
            device: client.device()?,
            port: 1,
            gid_index: client.gid_index,
            rendezvous: client.rendezvous()?,
            form: client.form,
            immediate: client.slots.form,
            slots: client.slots.count as u32,
            max_frame: client.max_frame.min(client.slots.stride),
            peers: 1,
            kept: 0,
        };
        let (port, peer) = VerbsPort::connect(&config, client.requests)?;
        user.run(port, peer);
        Ok(())
    }
}
