//! Authentication by DH-HMAC-CHAP, without I/O (NVMe base 2.0, "DH-HMAC-CHAP Protocol"): both sides of one transaction.
//!
//! ```text
//! host                                           controller
//!   negotiate: hashes, groups            ->
//!                                        <-   challenge C1, S1, g^x
//!   response to C1, C2, S2, g^y          ->
//!                                        <-   success1: response to C2
//!   success2, where there was a C2       ->
//! ```
//!
//! Either side fails by a failure message, which ends the transaction. Arithmetic in a group takes up to tens of
//! milliseconds, so a side hands it out ([`Next::Compute`]) and goes on when it gets the result.

mod controller;
mod group;
mod hash;
mod host;
mod job;
mod queue;
mod secret;
mod side;

pub use controller::Controller;
pub use group::{DhValue, Exponentiation};
pub use host::Host;
pub use job::{Job, Machine};
pub use secret::Secret;

pub use berth_wire::nvme::auth::{Group, Hash, Reason};

pub(crate) use queue::QueueAuth;

use std::sync::Arc;

use hash::{Digest, hmac};
use zeroize::Zeroizing;

/// What the two sides of an association know before.
pub struct Parameters {
    /// The host's NQN.
    pub hostnqn: Vec<u8>,
    /// The subsystem's NQN.
    pub subnqn: Vec<u8>,
    /// The host's secret, which the controller asks it to prove.
    pub host: Secret,
    /// The controller's secret, where the host may ask it to prove that; a host that has it asks.
    pub controller: Option<Secret>,
    /// The hashes that this side takes, the best first; up to 30.
    pub hashes: Vec<Hash>,
    /// The groups that this side takes, the best first; up to 30.
    pub groups: Vec<Group>,
}

/// DH-HMAC-CHAP for the host of a subsystem.
pub(crate) struct Chap {
    parameters: Arc<Parameters>,
    machine: Arc<dyn Machine>,
}

impl Chap {
    /// One secret serves both directions: whoever uses it transforms it with its own NQN, so the keys differ.
    pub(crate) fn new(host: &str, subsystem: &str, secret: Secret, machine: Arc<dyn Machine>) -> Self {
        let parameters = Parameters {
            hostnqn: host.into(),
            subnqn: subsystem.into(),
            controller: Some(secret.clone()),
            host: secret,
            hashes: Hash::ALL.into(),
            groups: GROUPS.into(),
        };
        Self { parameters: Arc::new(parameters), machine }
    }
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chap")
    }
}

/// The groups that a subsystem takes, the best first: secrets are random, so the shortest is as good as any.
const GROUPS: [Group; 6] =
    [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192, Group::None];

/// The next step of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The peer's message.
    Receive,
    /// Its own message is due: `send`.
    Send,
    /// The result of what `work` gave out.
    Compute,
    /// Nothing: the peer is who it says, and knows the same of this side where it asked.
    Done,
    /// Nothing: the peer is not, or said that this side is not. The failure has been sent or received.
    Failed(Reason),
}

/// Unpredictable bytes for a transaction: [`Random::LEN`] from the kernel's generator, for this one alone.
pub struct Random(Zeroizing<[u8; Self::LEN]>);

impl Random {
    /// Bytes of a challenge, a secret exponent and a sequence number, each as long as it may be.
    pub const LEN: usize = Hash::LEN_MAX + group::EXPONENT_LEN + 4;

    /// Of bytes that nobody else has seen, or will.
    pub fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The challenge of this side.
    fn challenge(&self, hash: Hash) -> &[u8] {
        &self.0[..hash.len()]
    }

    /// Its secret exponent.
    fn exponent(&self) -> Zeroizing<[u8; group::EXPONENT_LEN]> {
        let mut exponent = Zeroizing::new([0; group::EXPONENT_LEN]);
        exponent.copy_from_slice(&self.0[Hash::LEN_MAX..][..group::EXPONENT_LEN]);
        exponent
    }

    /// Its sequence number, which is not 0.
    fn sequence(&self) -> u32 {
        let (_, bytes) = self.0.split_last_chunk().unwrap_or((&[], &[0; 4]));
        u32::from_le_bytes(*bytes).max(1)
    }
}

/// What both sides know of a transaction once the challenge is there.
struct Agreed {
    hash: Hash,
    t_id: u16,
    /// The DH secret; none without a group.
    shared: Option<DhValue>,
}

/// The secure channel that follows: none.
const SC_C: u8 = 0;

impl Agreed {
    /// The host's response to a challenge of the controller.
    fn host_response(&self, parameters: &Parameters, challenge: &[u8], sequence: u32) -> Digest {
        let key = parameters.host.transformed(&parameters.hostnqn);
        self.response(&key, challenge, sequence, b"HostHost", [&parameters.hostnqn, &parameters.subnqn])
    }

    /// The controller's response to a challenge of the host, by the controller's secret.
    fn controller_response(&self, parameters: &Parameters, secret: &Secret, challenge: &[u8], sequence: u32) -> Digest {
        let key = secret.transformed(&parameters.subnqn);
        self.response(&key, challenge, sequence, b"Controller", [&parameters.subnqn, &parameters.hostnqn])
    }

    fn response(&self, key: &[u8], challenge: &[u8], sequence: u32, role: &[u8], [own, peer]: [&[u8]; 2]) -> Digest {
        let augmented = self.shared.as_ref().map(|shared| {
            let key = hash::digest(self.hash, shared.bytes());
            hmac(self.hash, &key, &[challenge])
        });
        let challenge = augmented.as_deref().unwrap_or(challenge);
        let (sequence, t_id) = (sequence.to_le_bytes(), self.t_id.to_le_bytes());
        hmac(self.hash, key, &[challenge, &sequence, &t_id, &[SC_C], role, own, &[0], peer])
    }
}
