//! Payloads of REQUEST and RESPONSE frames.

use super::{
    MAX_MESSAGE, SIGNATURE_LEN,
    codec::{Bytes, FabricError, Reader, Wire},
    macros::wire,
    token::MAX_TOKEN,
};

/// Prefix of the bytes that a presenter's signature covers.
pub const REQUEST_DOMAIN: &[u8] = b"fabricBIOS-req-v0\0";

/// The key that asks, and the proof. Required on UDP; left out on QUIC, where TLS has authenticated the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presenter {
    /// Id of the presenter's key, equal to the frame's sender (decision 1).
    pub id: u128,
    /// Ed25519 over [`Request::signed_bytes`].
    pub signature: [u8; SIGNATURE_LEN],
}

/// Payload of a REQUEST: one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// An [`super::Op`] code; unknown ones are answered UNSUPPORTED_OP.
    pub op: u16,
    /// The resource to act on; 0 for any.
    pub resource_id: u128,
    /// An encoded [`super::CapabilityToken`], or empty.
    pub token: Bytes<'a, MAX_TOKEN>,
    /// The operation's own fields.
    pub params: Bytes<'a, MAX_MESSAGE>,
    /// `None` on QUIC.
    pub presenter: Option<Presenter>,
}

impl Request<'_> {
    /// The bytes that a presenter's signature covers: the domain, the frame's sender, request id and nonce, and the
    /// payload up to the signature. Only the id of `presenter` is used, not its signature.
    pub fn signed_bytes(&self, sender: u128, request_id: u64, nonce: u64) -> Vec<u8> {
        let mut signed = REQUEST_DOMAIN.to_vec();
        sender.write(&mut signed);
        request_id.write(&mut signed);
        nonce.write(&mut signed);
        self.write(&mut signed);
        if self.presenter.is_some() {
            signed.truncate(signed.len() - SIGNATURE_LEN);
        }
        signed
    }
}

impl<'a> Wire<'a> for Request<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let (op, resource_id, token, params) = (from.get()?, from.get()?, from.get()?, from.get()?);
        let presenter =
            if from.remaining() == 0 { None } else { Some(Presenter { id: from.get()?, signature: from.get()? }) };
        Ok(Self { op, resource_id, token, params, presenter })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.op.write(to);
        self.resource_id.write(to);
        self.token.write(to);
        self.params.write(to);
        if let Some(Presenter { id, signature }) = self.presenter {
            id.write(to);
            signature.write(to);
        }
    }
}

wire! {
    /// Payload of a RESPONSE.
    pub struct Response<'a> {
        /// A [`super::Status`] code. Kept as a number: newer nodes may send others.
        pub status: u16,
        /// Copied from the request.
        pub op: u16,
        /// The operation's own fields; empty unless the status is OK.
        pub result: Bytes<'a, MAX_MESSAGE>,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, exact_but, hex},
        *,
    };

    fn request(presenter: Option<Presenter>) -> Request<'static> {
        Request {
            op: 0x0200,
            resource_id: 5,
            token: Bytes::of(&[0xA1, 0xA2]).unwrap(),
            params: Bytes::of(&[0xB1]).unwrap(),
            presenter,
        }
    }

    const PLAIN: &str = "0200 00000000000000000000000000000005 00000002 a1a2 00000001 b1";

    #[test]
    fn requests_and_responses_are_laid_out_as_documented() {
        exact(&request(None), PLAIN);
        let presenter = Presenter { id: 7, signature: [0x55; 64] };
        let signed = format!("{PLAIN} 00000000000000000000000000000007 {}", "55".repeat(64));
        exact_but(&request(Some(presenter)), &signed, &[hex(PLAIN).len()]);
        exact(&Response { status: 0x0009, op: 0x0100, result: Bytes::of(&[1, 2]).unwrap() }, "0009 0100 00000002 0102");
    }

    #[test]
    fn a_presenter_signs_the_frame_words_and_the_payload_up_to_the_signature() {
        let signed = request(Some(Presenter { id: 7, signature: [0x55; 64] })).signed_bytes(7, 0x11, 0x22);
        let domain = "66616272696342494f532d7265712d763000";
        let words = "00000000000000000000000000000007 0000000000000011 0000000000000022";
        assert_eq!(signed, hex(&format!("{domain} {words} {PLAIN} 00000000000000000000000000000007")));
    }
}
