//! The key whose policy a token depends on.

use sha2::{Digest as _, Sha256};

use crate::NodeId;

/// Id of a token that depends on the policy of `origin`: 64 random bits, and a digest of both. `CAP_REFRESH` keeps the
/// id and drops the links, so this survives refreshes, and restarts of the node.
pub fn token_id(random: u64, origin: NodeId) -> u128 {
    u128::from(random) << 64 | u128::from(digest(random, origin))
}

/// Whether the token with this id depends on the policy of `origin`. Only the issuer chooses ids, so nobody else can
/// forge that.
pub fn stands_on(token_id: u128, origin: NodeId) -> bool {
    token_id as u64 == digest((token_id >> 64) as u64, origin)
}

fn digest(random: u64, origin: NodeId) -> u64 {
    let mut digest = Sha256::new();
    digest.update(b"berth token origin\0");
    digest.update(random.to_be_bytes());
    digest.update(origin.0.to_be_bytes());
    let digest: [u8; 32] = digest.finalize().into();
    u64::from_be_bytes(digest[..8].try_into().expect("8 bytes"))
}
