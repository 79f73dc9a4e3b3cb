//! TLS 1.3 on byte streams: a session behind TLS is a session itself, so that whatever pumps bytes serves it.

use std::{
    fmt,
    io::{Read as _, Write as _},
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth_identity::{Identity, PublicKey};
use berth_port::{Nanos, Next, Progress, Session};
pub use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, Stream as TlsStream};
use rustls::{
    Error,
    client::Resumption,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    server::NoServerSessionStorage,
    version::TLS13,
};

pub use crate::quic::TlsError;
use crate::quic::{ByKey, Pinned, certificate, provider};

/// Bytes that are decrypted ahead of the session, and room for what it answers at once.
const ROOM: usize = 64 << 10;

/// Room for what is encrypted, at least.
const LEAST: usize = 4 << 10;

/// Longest plaintext of a record, which is decrypted as a whole.
const RECORD_MAX: usize = 16 << 10;

/// How long a peer may pause within a message.
const PATIENCE: Duration = Duration::from_secs(30);

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain =
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|_| TlsError::Certificates)?;
    if chain.is_empty() { Err(TlsError::Certificates) } else { Ok(chain) }
}

/// TLS settings of a listener, from PEM. Where `clients` names keys, only peers with one of these are let in. Sessions are
/// never resumed, and nothing is taken before the handshake is over.
///
/// # Errors
/// What is wrong with the certificate or the key.
pub fn server(certificate: &[u8], key: &[u8], clients: Vec<PublicKey>) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::PrivateKey)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = if clients.is_empty() {
        builder.with_no_client_auth()
    } else {
        builder.with_client_cert_verifier(ByKey::new(Arc::new(move |key| clients.contains(key))))
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// TLS settings of a client, for a server that has one of the certificates in `pem`: the very same, whatever its names and
/// dates. The client has a certificate of its own where it has a key.
///
/// # Errors
/// What is wrong with the certificates or the key.
pub fn client(pem: &[u8], key: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Pinned::new(certificates(pem)?));
    let mut config = match key {
        Some(key) => {
            let (certificate, private) = certificate(key)?;
            builder.with_client_auth_cert(vec![certificate], private)?
        }
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A connection with these settings to a server at this address.
///
/// # Errors
/// The TLS library refuses the settings.
pub fn connection(config: Arc<ClientConfig>, server: IpAddr) -> Result<ClientConnection, TlsError> {
    Ok(ClientConnection::new(config, ServerName::from(server))?)
}

/// Why a connection was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// What came is no TLS 1.3.
    Protocol,
    /// The peer has no certificate, or one of a key that is not let in.
    NotLetIn,
}

/// Called with the session and the connection once the handshake is over.
type Greeted<S> = Box<dyn FnOnce(&mut S, &ServerConnection) + Send>;

/// A session behind TLS.
pub struct TlsSession<S> {
    connection: ServerConnection,
    session: S,
    greeted: Option<Greeted<S>>,
    /// Decrypted and not consumed.
    input: Vec<u8>,
    /// Where the session writes.
    output: Vec<u8>,
    /// When the message began of which a part is in `input`.
    begun: Option<Nanos>,
    /// The peer has said that it sends nothing more.
    finished: bool,
    /// Nothing more is served: what is encrypted is sent.
    closing: bool,
    broken: Option<Broken>,
}

impl<S> fmt::Debug for TlsSession<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsSession")
    }
}

impl<S: Session> TlsSession<S> {
    /// For a connection that has just been made. `greeted` sees the session once the peer is known.
    ///
    /// # Errors
    /// The TLS library refuses the settings.
    pub fn new(
        config: Arc<ServerConfig>,
        session: S,
        greeted: impl FnOnce(&mut S, &ServerConnection) + Send + 'static,
    ) -> Result<Self, TlsError> {
        let connection = ServerConnection::new(config)?;
        let greeted: Option<Greeted<S>> = Some(Box::new(greeted));
        let (input, output) = (Vec::new(), Vec::new());
        Ok(Self {
            connection,
            session,
            greeted,
            input,
            output,
            begun: None,
            finished: false,
            closing: false,
            broken: None,
        })
    }

    /// The session.
    pub fn session_mut(&mut self) -> &mut S {
        &mut self.session
    }

    /// Why TLS ended the connection, where it did.
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    fn fail(&mut self, why: Broken) {
        (self.closing, self.broken) = (true, Some(why));
    }

    /// Decrypts what was received, as far as there is room. Returns the bytes taken.
    fn decrypt(&mut self, received: &[u8]) -> usize {
        let mut rest = received;
        while !self.closing && self.input.len() + RECORD_MAX <= ROOM {
            // Nothing at all would be the end of the stream.
            let reads = !rest.is_empty() && self.connection.wants_read();
            let taken = if reads { self.connection.read_tls(&mut rest).unwrap_or(0) } else { 0 };
            let state = match self.connection.process_new_packets() {
                Ok(state) => state,
                // An alert says why.
                Err(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => {
                    self.fail(Broken::NotLetIn);
                    break;
                }
                Err(_) => {
                    self.fail(Broken::Protocol);
                    break;
                }
            };
            self.finished = state.peer_has_closed();
            let at = self.input.len();
            self.input.resize(at + state.plaintext_bytes_to_read().min(ROOM - at), 0);
            // As many are there.
            let read = self.connection.reader().read(&mut self.input[at..]).unwrap_or(0);
            self.input.truncate(at + read);
            if taken == 0 && read == 0 {
                break;
            }
        }
        received.len() - rest.len()
    }

    /// Encrypts into `room` as much as fits; returns how much that was.
    fn encrypted(&mut self, room: &mut [u8]) -> usize {
        let mut left = room;
        let whole = left.len();
        while self.connection.wants_write() && !left.is_empty() {
            match self.connection.write_tls(&mut left) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        whole - left.len()
    }
}

impl<S: Session> Session for TlsSession<S> {
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        let (mut consumed, mut written) = (0, 0);
        loop {
            let before = (consumed, written);
            consumed += self.decrypt(&input[consumed..]);
            if !self.connection.is_handshaking()
                && let Some(greeted) = self.greeted.take()
            {
                greeted(&mut self.session, &self.connection);
            }
            written += self.encrypted(&mut output[written..]);
            if self.connection.wants_write() {
                return Progress { consumed, written, next: Next::Output(LEAST) };
            }
            if self.closing {
                return Progress { consumed, written, next: Next::Close };
            }
            if self.greeted.is_some() {
                // What is to be sent comes before what is to be read.
                if consumed < input.len() && (consumed, written) != before {
                    continue;
                }
                return Progress { consumed, written, next: Next::Input(input.len() - consumed + 1) };
            }
            if self.output.is_empty() {
                self.output.resize(ROOM, 0);
            }
            let progress = self.session.advance(&self.input, &mut self.output, now);
            self.input.drain(..progress.consumed);
            self.begun = match self.begun.filter(|_| progress.consumed == 0) {
                _ if self.input.is_empty() => None,
                begun => begun.or(Some(now)),
            };
            let sent = self.connection.writer().write_all(&self.output[..progress.written]);
            let goes_on = progress.consumed + progress.written > 0;
            match progress.next {
                _ if sent.is_err() => self.fail(Broken::Protocol),
                Next::Close => {
                    self.connection.send_close_notify();
                    self.closing = true;
                }
                _ if goes_on => {}
                Next::Output(wanted) if wanted > self.output.len() => self.output.resize(wanted, 0),
                // It has the room.
                Next::Output(_) => self.closing = true,
                Next::Input(_) if self.finished && self.session.outstanding() == 0 => {
                    self.connection.send_close_notify();
                    self.closing = true;
                }
                Next::Input(_) => {
                    return Progress { consumed, written, next: Next::Input(input.len() - consumed + 1) };
                }
                Next::Completion => return Progress { consumed, written, next: Next::Completion },
            }
        }
    }

    fn is_identified(&self) -> bool {
        self.session.is_identified()
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        let is_late = self.begun.is_some_and(|begun| now > begun + PATIENCE) && self.session.outstanding() == 0;
        is_late || self.session.is_over(now)
    }

    fn outstanding(&self) -> usize {
        self.session.outstanding()
    }

    fn ends_with_input(&mut self, now: Nanos) -> bool {
        self.session.ends_with_input(now)
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.session.poll_completion(cx)
    }
}
