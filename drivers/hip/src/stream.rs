//! What a connection carries: a session, or TLS with a session in it.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use berth_hip_session::Latencies;
use berth_port::{Nanos, Progress, Session};
use berth_tls::stream::{Broken, ServerConfig, ServerConnection, TlsSession};
use berth_wire::hip::request::Bind;

use crate::{Shared, core::HipSession};

/// A connection's stream.
#[expect(clippy::large_enum_variant, reason = "it lies in a box with its connection, and most have no TLS")]
pub(crate) enum Stream {
    Plain(HipSession),
    Tls(Box<TlsSession<HipSession>>, Arc<Shared>),
}

impl Stream {
    /// Under TLS; `None` if the TLS library refuses.
    pub(crate) fn tls(config: Arc<ServerConfig>, session: HipSession, shared: Arc<Shared>) -> Option<Self> {
        let greeted = |session: &mut HipSession, connection: &ServerConnection| {
            // It fails before the handshake's end alone.
            if let Ok(exporter) = connection.export_keying_material([0; 32], Bind::EXPORTER, None) {
                session.export(exporter);
            }
        };
        Some(Self::Tls(Box::new(TlsSession::new(config, session, greeted).ok()?), shared))
    }

    pub(crate) fn time(&mut self, latencies: Latencies) {
        match self {
            Self::Plain(session) => session.time(latencies),
            Self::Tls(tls, _) => tls.session_mut().time(latencies),
        }
    }
}

/// The same on either.
macro_rules! on {
    ($stream:expr, $session:ident => $call:expr) => {
        match $stream {
            Stream::Plain($session) => $call,
            Stream::Tls($session, _) => $call,
        }
    };
}

impl Session for Stream {
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        let (tls, shared) = match self {
            Self::Plain(session) => return session.advance(input, output, now),
            Self::Tls(tls, shared) => (tls, shared),
        };
        let was_broken = tls.broken().is_some();
        let progress = tls.advance(input, output, now);
        match tls.broken().filter(|_| !was_broken) {
            Some(Broken::Protocol) => shared.counts.tls.add(1),
            Some(Broken::NotLetIn) => shared.counts.stranger.add(1),
            None => {}
        }
        progress
    }

    fn is_identified(&self) -> bool {
        on!(self, session => session.is_identified())
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        on!(self, session => session.is_over(now))
    }

    fn outstanding(&self) -> usize {
        on!(self, session => session.outstanding())
    }

    fn ends_with_input(&mut self, now: Nanos) -> bool {
        on!(self, session => session.ends_with_input(now))
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        on!(self, session => session.poll_completion(cx))
    }
}
