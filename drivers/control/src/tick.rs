//! Periodic work: leases end, the node announces itself, the journal is compacted.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_fabric::{Teardown, discovery::ANNOUNCE_TTL_SECS};
use berth_wire::fabric::MsgType;
use tokio::{
    net::UdpSocket,
    sync::mpsc::UnboundedReceiver,
    task::yield_now,
    time::{MissedTickBehavior, interval},
};

use crate::{Shared, udp::send};

/// Interval at which the node is told the time, and so the precision of leases' ends.
const TICK: Duration = Duration::from_millis(10);

/// Limit on the zeroings of free memory in one tick, 4 MiB in all. The node is released between them.
const ZEROES: usize = 16;

/// Number of ticks between checks of the journal and the link.
const SELDOM: u32 = 50;

/// Tells the node the time, until the runtime ends.
pub(crate) async fn time(shared: Arc<Shared>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 0_u32.. {
        ticks.tick().await;
        {
            let mut node = shared.node();
            let effects = node.tick(shared.clock.now());
            shared.hand_on(&mut node);
            shared.apply(effects);
        }
        for _ in 0..ZEROES {
            if !shared.node().zero_free() {
                break;
            }
            yield_now().await;
        }
        shared.beats.fetch_add(1, Relaxed);
        if count % SELDOM == 0 {
            let now = shared.clock.mono();
            shared.link().expire(now);
            shared.permits.debts().pay(TICK * SELDOM);
            shared.relay().expire(now);
            shared.keep_nonces();
            shared.compact();
            shared.watch_room();
            if let Some(failure) = shared.journal.failure() {
                shared.degrade(&failure.to_string());
            }
        }
    }
}

/// Runs the teardowns that the node asks for, until the runtime ends.
pub(crate) async fn tear_down(mut teardowns: UnboundedReceiver<Teardown>, shared: Arc<Shared>) {
    while let Some(teardown) = teardowns.recv().await {
        let shared = shared.clone();
        tokio::spawn(async move { shared.tear_down(teardown).await });
    }
}

/// Announces the node to `relays` and passes revocations on to them, until the runtime ends.
pub(crate) async fn speak(
    socket: Arc<UdpSocket>,
    relays: Vec<SocketAddr>,
    mut broadcasts: UnboundedReceiver<Vec<u8>>,
    shared: Arc<Shared>,
) {
    let mut ticks = interval(Duration::from_secs((ANNOUNCE_TTL_SECS / 3).into()));
    loop {
        let (kind, payload) = tokio::select! {
            _ = ticks.tick() => (MsgType::Announce, None),
            Some(payload) = broadcasts.recv() => (MsgType::RevokeBroadcast, Some(payload)),
        };
        if relays.is_empty() {
            continue;
        }
        let payload = payload.unwrap_or_else(|| shared.node().announcement(shared.clock.now()));
        tell(&socket, &relays, kind, payload, &shared).await;
    }
}

/// Sends a signed message to each of `relays`.
pub(crate) async fn tell(socket: &UdpSocket, relays: &[SocketAddr], kind: MsgType, payload: Vec<u8>, shared: &Shared) {
    // No payload that this node makes is over 1 MiB.
    let Ok(message) = shared.notices.sign(&shared.identity, kind, payload) else { return };
    for relay in relays {
        send(socket, &message, *relay, shared).await;
    }
}
