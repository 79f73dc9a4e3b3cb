//! QUIC endpoints that authenticate peers by their keys (profile, "QUIC").

use std::{fmt, sync::Arc};

use berth_identity::{Identity, PublicKey};
use ed25519_dalek::{
    VerifyingKey,
    pkcs8::{EncodePrivateKey as _, spki::DecodePublicKey as _},
};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, ServerConfig,
    SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage, ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};

/// The use of a QUIC connection, told by its ALPN protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// `fabricbios/0`: control, one stream per op.
    Control,
    /// `fabricbios-mem/0`: memory, with FBMT messages.
    Memory,
    /// `fabricbios-block/0`: blocks, with FBBT messages.
    Block,
}

impl Alpn {
    const ALL: [Self; 3] = [Self::Control, Self::Memory, Self::Block];

    /// The ALPN name on the wire.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Control => b"fabricbios/0",
            Self::Memory => b"fabricbios-mem/0",
            Self::Block => b"fabricbios-block/0",
        }
    }

    /// The protocol that the handshake chose; `None` if it is none of these.
    pub fn of(connection: &quinn::Connection) -> Option<Self> {
        let data = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
        let name = data.protocol?;
        Self::ALL.into_iter().find(|alpn| alpn.name() == name)
    }
}

/// The peer's key, proven by the handshake.
pub fn peer_key(connection: &quinn::Connection) -> Option<PublicKey> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    key_of(chain.first()?).ok()
}

/// Decides whether a peer with this key is accepted.
pub type Admit = Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>;

/// TLS settings of a listener for the three protocols, which accepts peers by key. Sessions are never resumed, so every
/// connection is checked anew.
pub fn server_config(key: &Identity, admit: Admit) -> Result<QuicServerConfig, TlsError> {
    let (certificate, private) = certificate(key)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(ByKey::new(admit))
        .with_single_cert(vec![certificate], private)?;
    config.alpn_protocols = Alpn::ALL.map(|alpn| alpn.name().to_vec()).into();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.try_into().map_err(|_| TlsError::NoCipherSuite)
}

/// TLS settings of a connection to a node whose key `admit` accepts.
pub fn client_config(key: &Identity, alpn: Alpn, admit: Admit) -> Result<QuicClientConfig, TlsError> {
    let (certificate, private) = certificate(key)?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(ByKey::new(admit))
        .with_client_auth_cert(vec![certificate], private)?;
    config.alpn_protocols = vec![alpn.name().to_vec()];
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    config.try_into().map_err(|_| TlsError::NoCipherSuite)
}

/// Why TLS could not be configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate could not be made.
    #[error("making a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The key could not be encoded.
    #[error("encoding the key: {0}")]
    Key(#[from] ed25519_dalek::pkcs8::Error),
    /// The text has no certificate in PEM.
    #[error("no certificate in PEM")]
    Certificates,
    /// The text has no private key in PEM.
    #[error("no private key in PEM")]
    PrivateKey,
    /// The TLS library refuses the settings.
    #[error("TLS: {0}")]
    Tls(#[from] Error),
    /// The TLS library lacks the cipher that QUIC starts with.
    #[error("the TLS library lacks TLS13_AES_128_GCM_SHA256, which QUIC needs")]
    NoCipherSuite,
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A self-signed certificate with this key.
pub(crate) fn certificate(key: &Identity) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), TlsError> {
    let document = key.signing_key().to_pkcs8_der()?;
    let private = PrivatePkcs8KeyDer::from(document.as_bytes().to_vec());
    let pair = KeyPair::try_from(&private)?;
    let certificate = CertificateParams::new(Vec::new())?.self_signed(&pair)?;
    Ok((certificate.der().clone(), private.into()))
}

/// The Ed25519 key in a certificate.
fn key_of(certificate: &CertificateDer<'_>) -> Result<PublicKey, Error> {
    let spki = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
    let key = VerifyingKey::from_public_key_der(&spki).ok();
    key.and_then(|key| key.try_into().ok()).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// Accepts either side of a connection by its key alone.
pub(crate) struct ByKey {
    admit: Admit,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for ByKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByKey")
    }
}

impl ByKey {
    pub(crate) fn new(admit: Admit) -> Arc<Self> {
        Arc::new(Self { admit, provider: provider() })
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if (self.admit)(&key_of(certificate)?) {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
        }
    }

    fn proof(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if signed.scheme != SignatureScheme::ED25519 {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        }
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }
}

/// Refuses TLS 1.2.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
}

/// Accepts a server by its certificate, byte for byte.
pub(crate) struct Pinned {
    certificates: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pinned")
    }
}

impl Pinned {
    pub(crate) fn new(certificates: Vec<CertificateDer<'static>>) -> Arc<Self> {
        Arc::new(Self { certificates, provider: provider() })
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.certificates.iter().any(|known| known == certificate) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for ByKey {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.proof(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for ByKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.proof(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
