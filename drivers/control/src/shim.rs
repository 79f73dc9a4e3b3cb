//! FBMU and FBBU over UDP.

use std::{net::SocketAddr, sync::Arc};

use berth_lease_io::{Answer, Failure, Gate, Shim, answer};
use berth_stream::Shares;
use berth_wire::fabric::data::shim::{Header, MAX_DATA};
use tokio::net::UdpSocket;

use crate::Shared;

/// Longest UDP datagram in bytes.
const MAX_DATAGRAM: usize = 65_507;

/// Limits on accesses under way, to blocks or to memory behind an engine: in all, and from one address.
const MAX_FLIGHTS: (usize, usize) = (256, 64);

/// Answers datagrams until the runtime ends.
pub(crate) async fn serve(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut gate = Gate::new(&shared.table, &shared.regions);
    let flights = Shares::new(MAX_FLIGHTS.0, MAX_FLIGHTS.1);
    let mut buf = vec![0; MAX_DATAGRAM];
    loop {
        // An error is that of a datagram sent before.
        let Ok((len, peer)) = socket.recv_from(&mut buf).await else { continue };
        let now = shared.clock.mono();
        let answered = answer::<Shim>(&mut gate, &mut buf, len, true, now);
        shared.data.take(gate.counts());
        match answered {
            Answer::Now(len) => send(&socket, &buf[..len], peer, &shared).await,
            Answer::Never => {}
            Answer::Later(later) => {
                let Some(flight) = flights.try_enter(peer.ip()) else {
                    let answered = later.finish::<Shim>(&mut gate, Err(Failure::Busy), &mut buf);
                    shared.data.take(gate.counts());
                    if let Some(len) = answered {
                        send(&socket, &buf[..len], peer, &shared).await;
                    }
                    continue;
                };
                let (socket, shared) = (socket.clone(), shared.clone());
                // As long as the answer may become.
                let mut message = vec![0; Header::LEN + MAX_DATA];
                message[..len].copy_from_slice(&buf[..len]);
                tokio::spawn(async move {
                    let mut gate = Gate::new(&shared.table, &shared.regions);
                    let ended = match later.start(&gate, &message, shared.clock.mono()) {
                        Ok(access) => access.await,
                        Err(failure) => Err(failure),
                    };
                    let answered = later.finish::<Shim>(&mut gate, ended, &mut message);
                    shared.data.take(gate.counts());
                    if let Some(len) = answered {
                        send(&socket, &message[..len], peer, &shared).await;
                    }
                    drop(flight);
                });
            }
        }
    }
}

async fn send(socket: &UdpSocket, datagram: &[u8], peer: SocketAddr, shared: &Shared) {
    if socket.send_to(datagram, peer).await.is_err() {
        shared.counters.sends_failed.add(1);
    }
}
