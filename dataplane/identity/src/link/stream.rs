//! The server end on QUIC (decisions 1 to 3).

use berth_wire::fabric::{Frame, MAX_MESSAGE, MsgType, Request, Wire as _};

use super::{Drop, Message};
use crate::{NodeId, PublicKey};

/// Reads the one frame of a control stream whose TLS peer has the key `peer`. After an error, reset the stream.
///
/// The sender must be that peer. Presenter and frame signature may be left out, but must be valid if present.
pub fn accept_stream<'a>(bytes: &'a [u8], peer: &PublicKey) -> Result<Message<'a>, Drop> {
    let frame = Frame::parse(bytes, MAX_MESSAGE)?;
    if frame.header.is_part() {
        return Err(Drop::Malformed);
    }
    let message = Message::of_frame(&frame);
    if message.sender != peer.id() || message.signature.is_some() && !message.is_signed_by(peer) {
        return Err(Drop::Forged);
    }
    match message.kind {
        MsgType::Response | MsgType::PageResponse => return Err(Drop::Unexpected),
        MsgType::Announce | MsgType::Withdraw | MsgType::RevokeBroadcast if message.signature.is_none() => {
            return Err(Drop::Unsigned);
        }
        MsgType::Request => {
            let request = Request::parse(frame.payload)?;
            let signed = || request.signed_bytes(message.sender.0, message.request_id, message.nonce);
            let right = |presenter: berth_wire::fabric::Presenter| {
                NodeId(presenter.id) == peer.id() && peer.verifies(&signed(), &presenter.signature)
            };
            if !request.presenter.is_none_or(right) {
                return Err(Drop::Forged);
            }
        }
        _ => {}
    }
    Ok(message)
}
