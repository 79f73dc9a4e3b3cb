//! What a poll core runs, and how sessions come to it.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use berth_engine::Polled;
use berth_hip_session::{Latencies, Session};
use berth_port::{Nanos, Task};
use berth_stream::Event;
use berth_uring::{Handover, Host, UringError, UringStreams};

use crate::{Shared, gpus::Gpus, stream::Stream};

/// A session of this worker.
pub(crate) type HipSession = Session<Gpus>;

/// Room for what a session receives and sends at once, in bytes. It takes memory while it is used.
const ROOM: usize = 256 << 10;

const _: () = assert!(berth_hip_session::MESSAGE_MAX <= ROOM);

/// A poll core's end, to which identified connections are handed. [`HipCore::open`] makes a task of it.
pub struct HipCore {
    pub(crate) from: Handover<Stream>,
    pub(crate) most: usize,
}

impl fmt::Debug for HipCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HipCore({} sessions)", self.most)
    }
}

impl HipCore {
    /// What the core polls, named so in telemetry; it stays on the thread that calls this.
    ///
    /// # Errors
    /// The kernel gives no ring.
    pub fn open(self, name: &str) -> Result<Polled<impl Task + use<>>, UringError> {
        let latencies = Latencies::default();
        let timed = latencies.clone();
        let task = UringStreams::new(self.from, self.most)?.on_arrival(move |session| session.time(timed.clone()));
        let histograms = latencies.histograms();
        Ok(histograms.iter().fold(Polled::port(name, task), |task, (name, recorder)| task.histogram(name, recorder)))
    }
}

/// What makes sessions of connections.
pub(crate) struct Sessions(pub(crate) Arc<Shared>);

impl Host for Sessions {
    type Session = Stream;

    fn session(&self, _: SocketAddr, peer: IpAddr) -> Option<Stream> {
        let session = self.0.session(peer)?;
        match &self.0.settings.tls {
            Some(config) => Stream::tls(config.clone(), session, self.0.clone()),
            None => Some(Stream::Plain(session)),
        }
    }

    fn room(&self) -> usize {
        ROOM
    }

    fn now(&self) -> Nanos {
        (self.0.now)()
    }

    fn accepted(&self) {
        self.0.counts.connections.add(1);
    }

    fn ended(&self, event: Event) {
        self.0.ended(event);
    }
}
