//! The rendezvous's side of a port: takes peers, hands them to the queues, takes them back, and watches the device.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_port::{Family, Sender, families::PEERS};
use berth_rendezvous::{Acceptor, Answer, Form, Offer, PeerId, Status};

use crate::{
    Event,
    port::{
        PortConfig,
        device::{Device, Queues, Refusal},
        peer::Peer,
        shared::Frames,
    },
    random_psn,
};

/// Interval at which a lost device is looked for.
const RETURN: Duration = Duration::from_millis(250);

/// A command to a queue.
pub(super) enum Order {
    /// Serve this peer.
    Take(Box<Peer>),
    /// Return this peer as [`Report::Peer`].
    Drop(PeerId),
    /// The device is gone: return everything, and [`Report::Down`] at the end.
    Down,
    /// The device is back; these are its completion queues.
    Up(Queues),
}

/// What a queue returns, to be destroyed where time does not matter.
pub(super) enum Report {
    /// A peer that was taken from it, or that failed.
    Peer(Box<Peer>),
    /// Its completion queues; nothing of the device is left with it.
    Down(Option<Queues>),
}

/// The way to one queue of the port.
pub(super) struct Lane {
    pub(super) core: Sender<Order, Report>,
    /// `None` while the device is gone.
    pub(super) queues: Option<Queues>,
    /// The peer at each place.
    pub(super) places: Vec<Option<PeerId>>,
    /// Where their requests are received, if others are to read them.
    pub(super) frames: Option<Frames>,
}

const DEVICE_EVENTS: Family =
    Family::counter("device_events", "an RDMA device that was lost, that returned, or whose completion queue overran");

berth_port::counters! {
    /// Events outside of the poll cores.
    pub(super) struct Tally of Count {
        lost = device_losses: DEVICE_EVENTS { event: "lost" },
        returned = device_returns: DEVICE_EVENTS { event: "returned" },
        overruns = cq_overruns: DEVICE_EVENTS { event: "cq_overrun" },
        refused = offers_refused: PEERS { event: "refused" },
    }
}

pub(super) struct Link {
    config: PortConfig,
    device: Option<Device>,
    /// The queues were told that the device is gone, and have not returned everything yet.
    going: bool,
    lanes: Vec<Lane>,
    /// Queue and place of each peer.
    peers: HashMap<PeerId, (usize, usize)>,
    generation: u16,
    tally: Arc<Tally>,
    looked: Instant,
}

impl Link {
    pub(super) fn new(config: PortConfig, device: Device, lanes: Vec<Lane>, tally: Arc<Tally>) -> Self {
        let (peers, looked) = (HashMap::new(), Instant::now());
        Self { config, device: Some(device), going: false, lanes, peers, generation: 0, tally, looked }
    }

    /// Destroys what the queues return.
    fn collect(&mut self, end: &mut dyn FnMut(PeerId)) {
        for lane in &mut self.lanes {
            for report in lane.core.returned() {
                match report {
                    Report::Peer(peer) => {
                        let id = peer.id;
                        drop(peer);
                        if let Some((_, place)) = self.peers.remove(&id) {
                            lane.places[place] = None;
                        }
                        end(id);
                    }
                    Report::Down(queues) => {
                        drop(queues);
                        lane.queues = None;
                    }
                }
            }
        }
        if self.going && self.lanes.iter().all(|lane| lane.queues.is_none()) {
            // The last that held the device: a kernel that waits for its users goes on with removing it.
            self.device = None;
            self.going = false;
            self.looked = Instant::now();
        }
    }

    /// Checks whether the device works, and takes it from the queues if it does not.
    fn mind(&mut self) {
        let Some(device) = self.device.as_ref().filter(|_| !self.going) else { return };
        let mut failed = !device.is_there();
        while let Some(event) = device.context.event() {
            match event {
                Event::DeviceFatal => failed = true,
                Event::CqError => {
                    self.tally.overruns.add(1);
                    failed = true;
                }
                _ => {}
            }
        }
        if failed {
            self.tally.lost.add(1);
            self.going = true;
            self.tell(|_| Order::Down);
        }
    }

    /// Looks for a lost device.
    fn look(&mut self) {
        if self.device.is_some() || self.looked.elapsed() < RETURN {
            return;
        }
        self.looked = Instant::now();
        let Ok(device) = Device::open(&self.config) else { return };
        let queues = |_| device.queues(self.config.peers, self.config.shape());
        let Ok(queues) = (0..self.lanes.len()).map(queues).collect::<Result<Vec<_>, _>>() else { return };
        for (lane, queues) in self.lanes.iter_mut().zip(&queues) {
            lane.queues = Some(queues.clone());
        }
        self.tell(|lane| Order::Up(queues[lane].clone()));
        self.device = Some(device);
        self.tally.returned.add(1);
    }

    fn tell(&mut self, order: impl Fn(usize) -> Order) {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            give(lane, order(index));
        }
    }
}

/// Each place has at most one command to serve and one to return under way, and the device one, so the mailbox has
/// room.
fn give(lane: &mut Lane, order: Order) {
    assert!(lane.core.send(order).is_ok(), "the mailbox holds every order there can be");
}

impl Acceptor for Link {
    fn offer(&mut self, peer: PeerId, _: SocketAddr, offer: &Offer<'_>, answer: &mut Answer) -> Result<(), Status> {
        let device = self.device.as_ref().filter(|_| !self.going).ok_or(Status::ResourceBusy)?;
        let free = |lane: &Lane| lane.places.iter().filter(|place| place.is_none()).count();
        let lanes = self.lanes.iter().enumerate().max_by_key(|(_, lane)| free(lane));
        let (index, lane) = lanes.filter(|(_, lane)| free(lane) > 0).ok_or(Status::CapacityExceeded)?;
        let place = lane.places.iter().position(Option::is_none).ok_or(Status::CapacityExceeded)?;
        let queues = lane.queues.as_ref().ok_or(Status::ResourceBusy)?;
        let psn = if self.config.form == Form::HostApi { 0 } else { random_psn() };
        self.generation = self.generation.wrapping_add(1);
        let taken =
            device.accept((peer, place, self.generation), offer, (queues, lane.frames.as_ref()), &self.config, psn);
        let (made, side) = taken.map_err(|refusal| {
            self.tally.refused.add(1);
            match refusal {
                Refusal::Status(status) => status,
                Refusal::Device(e) if e.errno() == Some(libc::ENOMEM) => Status::CapacityExceeded,
                // An address that there is no way to, most of all.
                Refusal::Device(_) => Status::InvalidParams,
            }
        })?;
        let lane = &mut self.lanes[index];
        lane.places[place] = Some(peer);
        self.peers.insert(peer, (index, place));
        give(lane, Order::Take(Box::new(made)));
        answer.push_rdma(&side);
        Ok(())
    }

    fn gone(&mut self, peer: PeerId) {
        if let Some((lane, _)) = self.peers.get(&peer) {
            give(&mut self.lanes[*lane], Order::Drop(peer));
        }
    }

    fn tick(&mut self, end: &mut dyn FnMut(PeerId)) {
        self.collect(end);
        self.mind();
        self.look();
    }
}
