//! The frame of the control plane and of discovery (profile, "Frame"; section "Fragmentation").

use super::{
    MsgType, SIGNATURE_LEN,
    codec::{FabricError, Reader, Wire},
    macros::bits,
};

/// `magic`, the first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"FBIO";
/// The only frame version; others are rejected.
pub const VERSION: u8 = 0;
/// Prefix of the bytes that a frame's signature covers.
pub const FRAME_DOMAIN: &[u8] = b"fabricBIOS-frame-v0\0";
/// Limit on the payload of one frame on UDP, in bytes.
pub const MAX_DATAGRAM_PAYLOAD: usize = 1200;
/// Limit on the payload of a message in bytes: reassembled from fragments on UDP, or one frame on QUIC.
pub const MAX_MESSAGE: usize = 1 << 20;

bits! {
    /// `flags` of a frame, at offset 6.
    pub struct FrameFlags: u16 {
        CONTINUED = 1, "a fragment that others follow";
        FINAL = 2, "the last fragment";
        FRAG_V2 = 4, "the header has fragment words; in a request: answers may be such fragments";
        SIGNED = 8, "a signature follows the payload";
    }
}

/// A fragment's place in its message; on the wire only with FRAG_V2, at offset 44.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of this fragment in the whole payload, in bytes.
    pub offset: u32,
    /// Length of the whole payload in bytes.
    pub total_len: u32,
}

/// A decoded frame header: 44 bytes on the wire, 52 with FRAG_V2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Says how to parse the payload.
    pub msg_type: MsgType,
    /// CONTINUED, FINAL and SIGNED. FRAG_V2 is not among them: `fragment` implies it.
    pub flags: FrameFlags,
    /// Id of the sender's key: the first 16 bytes of its SHA-256.
    pub sender: u128,
    /// Chosen by the requester, repeated in the answer.
    pub request_id: u64,
    /// Chosen by the requester, repeated in the answer. Rises from message to message, against replays.
    pub nonce: u64,
    /// Payload bytes of this frame, without the signature; at offset 40.
    pub payload_len: u32,
    /// Present exactly with FRAG_V2.
    pub fragment: Option<Fragment>,
}

impl FrameHeader {
    /// Size of the header in bytes: 44 or 52.
    #[allow(clippy::len_without_is_empty)] // a header is never empty
    pub const fn len(&self) -> usize {
        if self.fragment.is_some() { 52 } else { 44 }
    }

    /// Whether the message has other fragments, so that it must be reassembled.
    pub fn is_part(&self) -> bool {
        match self.fragment {
            Some(Fragment { total_len, .. }) => self.payload_len != total_len,
            None => self.flags.and(FrameFlags::CONTINUED | FrameFlags::FINAL) != FrameFlags::NONE,
        }
    }

    /// The bytes that a frame signature covers, for a message whose whole payload is `payload`: the domain, the header
    /// of the unfragmented message with SIGNED set and its fragment words zero, and the payload. They are the same for
    /// every fragment of the message.
    pub fn signed_bytes(&self, payload: &[u8]) -> Vec<u8> {
        let whole = Self {
            flags: FrameFlags::SIGNED,
            payload_len: payload.len() as u32,
            fragment: self.fragment.map(|_| Fragment { offset: 0, total_len: 0 }),
            ..*self
        };
        let mut signed = Vec::with_capacity(FRAME_DOMAIN.len() + whole.len() + payload.len());
        signed.extend_from_slice(FRAME_DOMAIN);
        whole.write(&mut signed);
        signed.extend_from_slice(payload);
        signed
    }

    /// Checks that flags and fragment words agree (section "Fragmentation", rules).
    fn check(&self) -> Result<(), FabricError> {
        let last = self.flags.contains(FrameFlags::FINAL);
        let more = self.flags.contains(FrameFlags::CONTINUED);
        if last && more {
            return Err(FabricError::Flags("CONTINUED and FINAL"));
        }
        let Some(Fragment { offset, total_len }) = self.fragment else { return Ok(()) };
        if total_len as usize > MAX_MESSAGE {
            return Err(FabricError::Limit("frag_total_len"));
        }
        match offset.checked_add(self.payload_len) {
            Some(end) if end == total_len && last => Ok(()),
            Some(end) if end < total_len && more => Ok(()),
            Some(end) if end <= total_len => Err(FabricError::Flags("FINAL is for the last fragment alone")),
            _ => Err(FabricError::Value("frag_offset + payload_len within frag_total_len")),
        }
    }
}

impl<'a> Wire<'a> for FrameHeader {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        if *from.array::<4>()? != MAGIC {
            return Err(FabricError::Magic);
        }
        if from.get::<u8>()? != VERSION {
            return Err(FabricError::Version);
        }
        let msg_type = from.get()?;
        let flags: FrameFlags = from.get()?;
        let (sender, request_id, nonce, payload_len) = (from.get()?, from.get()?, from.get()?, from.get()?);
        let fragment = if flags.contains(FrameFlags::FRAG_V2) {
            Some(Fragment { offset: from.get()?, total_len: from.get()? })
        } else {
            None
        };
        let flags = flags.without(FrameFlags::FRAG_V2);
        Ok(Self { msg_type, flags, sender, request_id, nonce, payload_len, fragment })
    }

    fn write(&self, to: &mut Vec<u8>) {
        let v2 = if self.fragment.is_some() { FrameFlags::FRAG_V2 } else { FrameFlags::NONE };
        MAGIC.write(to);
        VERSION.write(to);
        self.msg_type.write(to);
        (self.flags | v2).write(to);
        self.sender.write(to);
        self.request_id.write(to);
        self.nonce.write(to);
        self.payload_len.write(to);
        if let Some(Fragment { offset, total_len }) = self.fragment {
            offset.write(to);
            total_len.write(to);
        }
    }
}

/// A frame as it is in a datagram or on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its `payload_len` is the length of `payload`.
    pub header: FrameHeader,
    /// The payload, or one fragment of it.
    pub payload: &'a [u8],
    /// Ed25519 over [`FrameHeader::signed_bytes`]; present if `header.flags` has SIGNED.
    pub signature: Option<&'a [u8; SIGNATURE_LEN]>,
}

impl<'a> Frame<'a> {
    /// Reads a frame that fills `bytes`. `max_payload` is [`MAX_DATAGRAM_PAYLOAD`] on UDP and [`MAX_MESSAGE`] on QUIC.
    /// Magic, version, flags, fragment words and lengths are checked; the signature is not.
    pub fn parse(bytes: &'a [u8], max_payload: usize) -> Result<Self, FabricError> {
        let mut from = Reader::new(bytes);
        let header: FrameHeader = from.get()?;
        if header.payload_len as usize > max_payload {
            return Err(FabricError::Limit("payload_len"));
        }
        header.check()?;
        let payload = from.take(header.payload_len as usize)?;
        let signed = header.flags.contains(FrameFlags::SIGNED);
        let signature = if signed { Some(from.array()?) } else { None };
        from.finish()?;
        Ok(Self { header, payload, signature })
    }

    /// Appends the header as it is, the payload, and the signature if there is one.
    pub fn write(&self, to: &mut Vec<u8>) {
        self.header.write(to);
        to.extend_from_slice(self.payload);
        if let Some(signature) = self.signature {
            to.extend_from_slice(signature);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::testing::hex, *};

    const PING: FrameHeader = FrameHeader {
        msg_type: MsgType::Request,
        flags: FrameFlags::NONE,
        sender: 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10,
        request_id: 0x1122,
        nonce: 0x3344,
        payload_len: 3,
        fragment: None,
    };

    #[test]
    fn plain_frames_are_laid_out_as_documented() {
        let bytes = hex("4642494f 00 04 0000 0102030405060708090a0b0c0d0e0f10
                         0000000000001122 0000000000003344 00000003  aabbcc");
        let frame = Frame { header: PING, payload: &[0xAA, 0xBB, 0xCC], signature: None };
        assert_eq!(frame.header.len(), 44);
        assert_eq!(Frame::parse(&bytes, 3), Ok(frame));
        assert_eq!(Frame::parse(&bytes, 2), Err(FabricError::Limit("payload_len")));
        let mut written = Vec::new();
        frame.write(&mut written);
        assert_eq!(written, bytes);
        for (at, value, error) in [
            (0, 0x47, FabricError::Magic),
            (4, 1, FabricError::Version),
            (5, 9, FabricError::Value("MsgType")),
            (7, 0x10, FabricError::Flags("FrameFlags")),
            (7, 3, FabricError::Flags("CONTINUED and FINAL")),
            (43, 2, FabricError::Surplus),
            (43, 4, FabricError::Truncated),
        ] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert_eq!(Frame::parse(&wrong, MAX_DATAGRAM_PAYLOAD), Err(error), "byte {at}");
        }
    }

    #[test]
    fn a_signed_fragment_carries_the_signature_of_the_whole() {
        let bytes = hex("4642494f 00 04 000d 0102030405060708090a0b0c0d0e0f10
                         0000000000001122 0000000000003344 00000003 00000002 00000009 aabbcc");
        let bytes = [&bytes[..], &[0x77; 64]].concat();
        let header = FrameHeader {
            flags: FrameFlags::CONTINUED | FrameFlags::SIGNED,
            fragment: Some(Fragment { offset: 2, total_len: 9 }),
            ..PING
        };
        let frame = Frame::parse(&bytes, MAX_DATAGRAM_PAYLOAD).unwrap();
        assert_eq!(frame, Frame { header, payload: &[0xAA, 0xBB, 0xCC], signature: Some(&[0x77; 64]) });
        assert!(frame.header.is_part());
        assert_eq!(
            header.signed_bytes(b"123456789"),
            hex("66616272696342494f532d6672616d652d763000
                 4642494f 00 04 000c 0102030405060708090a0b0c0d0e0f10
                 0000000000001122 0000000000003344 00000009 00000000 00000000 313233343536373839")
        );
        assert_eq!(
            PING.signed_bytes(b"1"),
            hex("66616272696342494f532d6672616d652d763000
                 4642494f 00 04 0008 0102030405060708090a0b0c0d0e0f10
                 0000000000001122 0000000000003344 00000001 31")
        );
    }

    #[test]
    fn fragment_words_and_flags_belong_together() {
        let parse = |flags: FrameFlags, offset, total_len| {
            let header = FrameHeader { flags, fragment: Some(Fragment { offset, total_len }), ..PING };
            let mut bytes = Vec::new();
            Frame { header, payload: &[1, 2, 3], signature: None }.write(&mut bytes);
            Frame::parse(&bytes, 3).map(|frame| frame.header.is_part())
        };
        assert_eq!(parse(FrameFlags::FINAL, 0, 3), Ok(false));
        assert_eq!(parse(FrameFlags::FINAL, 4, 7), Ok(true));
        assert_eq!(parse(FrameFlags::CONTINUED, 0, 7), Ok(true));
        let wrong = Err(FabricError::Flags("FINAL is for the last fragment alone"));
        assert_eq!(parse(FrameFlags::NONE, 0, 3), wrong);
        assert_eq!(parse(FrameFlags::CONTINUED, 0, 3), wrong);
        assert_eq!(parse(FrameFlags::FINAL, 0, 7), wrong);
        let beyond = Err(FabricError::Value("frag_offset + payload_len within frag_total_len"));
        assert_eq!(parse(FrameFlags::FINAL, 5, 7), beyond);
        assert_eq!(parse(FrameFlags::FINAL, u32::MAX, 2), beyond);
        assert_eq!(parse(FrameFlags::CONTINUED, 0, 1 + (1 << 20)), Err(FabricError::Limit("frag_total_len")));
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            msg_type in prop::sample::select(MsgType::ALL), sender: u128, request_id: u64, nonce: u64,
            payload in prop::collection::vec(any::<u8>(), 0..1200), before in 0_u32..2000, after in 0_u32..2000,
            v2: bool, sign: Option<u8>,
        ) {
            let payload_len = payload.len() as u32;
            let end = if after == 0 { FrameFlags::FINAL } else { FrameFlags::CONTINUED };
            let flags = if v2 { end } else { FrameFlags::NONE }
                | if sign.is_some() { FrameFlags::SIGNED } else { FrameFlags::NONE };
            let fragment = v2.then_some(Fragment { offset: before, total_len: before + payload_len + after });
            let header = FrameHeader { msg_type, flags, sender, request_id, nonce, payload_len, fragment };
            let signature = sign.map(|byte| [byte; SIGNATURE_LEN]);
            let frame = Frame { header, payload: &payload, signature: signature.as_ref() };
            let mut bytes = Vec::new();
            frame.write(&mut bytes);
            prop_assert_eq!(Frame::parse(&bytes, MAX_DATAGRAM_PAYLOAD), Ok(frame));
            let cut = bytes.len() / 2;
            prop_assert!(Frame::parse(&bytes[..cut], MAX_DATAGRAM_PAYLOAD).is_err());
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Frame::parse(&bytes, MAX_MESSAGE);
            let _ = Frame::parse(&[&b"FBIO\0"[..], &bytes].concat(), MAX_MESSAGE);
        }
    }
}
