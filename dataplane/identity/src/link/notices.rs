//! Unsolicited messages: ANNOUNCE, WITHDRAW and `REVOKE_BROADCAST`.

use std::sync::atomic::{AtomicU64, Ordering};

use berth_wire::fabric::{FabricError, MAX_DATAGRAM_PAYLOAD, MAX_MESSAGE, MsgType};

use super::Message;
use crate::Identity;

/// Signs a node's own messages, with rising nonces. A node has exactly one.
#[derive(Debug)]
pub struct Notices {
    next_nonce: AtomicU64,
}

impl Notices {
    /// `first_nonce` is the time in microseconds since the Unix epoch.
    pub fn new(first_nonce: u64) -> Self {
        Self { next_nonce: AtomicU64::new(first_nonce) }
    }

    /// Signs a message, for [`Message::frames`]; the same one may go to several peers. [`FabricError::Limit`] if the
    /// payload exceeds 1 MiB.
    pub fn sign(&self, node: &Identity, kind: MsgType, payload: Vec<u8>) -> Result<Message<'static>, FabricError> {
        if payload.len() > MAX_MESSAGE {
            return Err(FabricError::Limit("payload"));
        }
        let nonce = self.next_nonce.fetch_add(1, Ordering::Relaxed);
        // Fragments are told apart by sender and request id.
        let message = Message {
            kind,
            sender: node.id(),
            request_id: nonce,
            nonce,
            v2: payload.len() > MAX_DATAGRAM_PAYLOAD,
            payload: payload.into(),
            signature: None,
        };
        Ok(message.signed(node))
    }
}
