//! A late answer goes back by the way of its request.

mod common;

use std::net::SocketAddr;

use berth_memory::Heap;
use berth_port::{Clock as _, Frame, Peer, Port, PostError, ReplyTo, Service, Verdict};
use berth_ring::{Geometry, Ring};
use berth_rpc::{RpcService, Undispatchable, Worker};
use berth_wire::rpc::HeaderForm;
use common::{QUIET, RING, SLOT, TestHandlers, VirtualClock, config, events, peer, request, table};

const FORM: HeaderForm = HeaderForm::V24;
const PEERS: u16 = 512;

/// A port that knows ways but no peers.
#[derive(Default)]
struct Ways(Vec<ReplyTo>);

impl Port for Ways {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, _: H) -> usize {
        0
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, _: F) -> Result<(), PostError> {
        Err(PostError::Unreachable)
    }

    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, to: ReplyTo, fill: F) -> Result<(), PostError> {
        fill(&mut [0; SLOT]);
        self.0.push(to);
        Ok(())
    }

    fn tx(&mut self) {}

    fn max_frame(&self) -> usize {
        SLOT
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 0))
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn no_peer_of_a_ring_is_unroutable() {
    let (clock, mut port) = (VirtualClock::default(), Ways::default());
    let geometry = Geometry::new(u32::from(PEERS), SLOT).unwrap();
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    let (producer, dispatcher) = (ring.producer().unwrap(), ring.dispatcher().unwrap());
    let handlers = || TestHandlers(clock.clone());
    let config = config(FORM, Undispatchable::Reply);
    let mut service = RpcService::new(config, table(RING), handlers(), Some(producer), clock.clone(), QUIET).unwrap();
    let mut worker = Worker::new(FORM, table(RING), handlers(), dispatcher, clock.clone()).unwrap();
    let now = clock.now();
    for from in 0..PEERS {
        let mut message = request(FORM, "increment", u32::from(from), &[1]);
        let len = message.len();
        message.resize(SLOT, 0);
        let mut frame = Frame::new(&mut message, len, len, peer(from)).routed(u128::from(from) + 1);
        assert_eq!(service.handle(&mut frame, now), Verdict::Drop);
    }
    while service.outstanding() > 0 {
        worker.poll(now);
        service.poll(&mut port, now);
    }
    let back: Vec<_> = port.0.iter().map(|to| (to.peer(), to.route())).collect();
    assert_eq!(back, (0..PEERS).map(|from| (peer(from), u128::from(from) + 1)).collect::<Vec<_>>());
    assert_eq!(events(&service), [("answered", u64::from(PEERS))].into());
}
