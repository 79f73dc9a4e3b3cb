//! Messages from fragments (section "Fragmentation").

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::fabric::{Frame, FrameFlags, MAX_MESSAGE};

use super::{Drop, Drops, Message};

/// How long a message may stay incomplete.
pub const FRAGMENT_LIFE: Duration = Duration::from_secs(2);
/// The most incomplete messages from one IP address.
pub const MAX_REASSEMBLIES_PER_SOURCE: usize = 64;
/// The most memory of all incomplete messages, in bytes, with what it costs to keep account of them.
pub const MAX_REASSEMBLY_BYTES: usize = 64 << 20;

/// What one more incomplete message costs beyond its pieces, in bytes.
const PART_COST: usize = 512;
/// What one more piece costs beyond its bytes.
const PIECE_COST: usize = 80;

/// Messages of which some fragments are still missing.
///
/// At a limit the oldest gives way: whoever floods must send everything again within the milliseconds that an honest
/// message takes, where keeping the oldest would let a few datagrams every two seconds shut everyone else out.
#[derive(Debug, Default)]
pub struct Reassembly {
    parts: HashMap<Key, Part>,
    /// Oldest first, as every part lives equally long.
    by_age: BTreeMap<u64, Key>,
    by_source: HashMap<IpAddr, BTreeSet<u64>>,
    bytes: usize,
    next_serial: u64,
}

/// The address stands in the key beside the spec's (sender, request id), so that no one spoils another's message
/// without forging addresses too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    source: SocketAddr,
    sender: u128,
    request_id: u64,
}

#[derive(Debug)]
struct Part {
    serial: u64,
    since: Nanos,
    /// The message with what all fragments must agree on; its payload is still empty.
    head: Message<'static>,
    total_len: Option<u32>,
    /// By offset; without `FRAG_V2`, in order of arrival.
    pieces: BTreeMap<u32, Box<[u8]>>,
    len: usize,
}

impl Reassembly {
    /// Adds one fragment, and returns the message that it completes. What is dropped is counted in `drops`.
    pub fn add(
        &mut self,
        source: SocketAddr,
        frame: &Frame<'_>,
        now: Nanos,
        drops: &mut Drops,
    ) -> Option<Message<'static>> {
        self.expire(now, drops);
        let key = Key { source, sender: frame.header.sender, request_id: frame.header.request_id };
        let last = frame.header.flags.contains(FrameFlags::FINAL);
        // An empty piece adds nothing, and a last one without any before it belongs to a message that is lost.
        let v2 = frame.header.fragment.is_some();
        if v2 && frame.payload.is_empty() || !v2 && last && !self.parts.contains_key(&key) {
            drops.add(Drop::Malformed, 1);
            return None;
        }
        let part = match self.parts.get_mut(&key) {
            Some(part) => part,
            None => self.begin(key, frame, now, drops),
        };
        let before = part.cost();
        let added = part.add(frame);
        let complete = added.is_ok() && part.is_complete(last);
        self.bytes += part.cost() - before;
        if added.is_err() {
            drops.add(Drop::Conflicting, 1);
            self.remove(key);
            return None;
        }
        if complete {
            return self.remove(key).map(Part::join);
        }
        while self.bytes > MAX_REASSEMBLY_BYTES {
            self.evict_oldest(drops);
        }
        None
    }

    /// Drops what has been incomplete for [`FRAGMENT_LIFE`].
    pub fn expire(&mut self, now: Nanos, drops: &mut Drops) {
        while let Some((_, key)) = self.by_age.first_key_value() {
            let key = *key;
            if self.parts.get(&key).is_some_and(|part| part.since + FRAGMENT_LIFE > now) {
                break;
            }
            drops.add(Drop::TimedOut, 1);
            self.remove(key);
        }
    }

    /// How many messages are incomplete.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether no message is incomplete.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The memory that incomplete messages take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn begin(&mut self, key: Key, frame: &Frame<'_>, now: Nanos, drops: &mut Drops) -> &mut Part {
        let of_source = self.by_source.entry(key.source.ip().to_canonical()).or_default();
        let serial = self.next_serial;
        self.next_serial += 1;
        of_source.insert(serial);
        if of_source.len() > MAX_REASSEMBLIES_PER_SOURCE {
            let oldest = of_source.first().and_then(|serial| self.by_age.get(serial)).copied();
            drops.add(Drop::Evicted, 1);
            oldest.map(|oldest| self.remove(oldest));
        }
        self.by_age.insert(serial, key);
        self.bytes += PART_COST;
        let head = Message { payload: Vec::new().into(), ..Message::of_frame(frame) };
        self.parts.entry(key).or_insert(Part {
            serial,
            since: now,
            head,
            total_len: frame.header.fragment.map(|fragment| fragment.total_len),
            pieces: BTreeMap::new(),
            len: 0,
        })
    }

    fn evict_oldest(&mut self, drops: &mut Drops) {
        if let Some(key) = self.by_age.first_key_value().map(|(_, key)| *key) {
            drops.add(Drop::Evicted, 1);
            self.remove(key);
        }
    }

    fn remove(&mut self, key: Key) -> Option<Part> {
        let part = self.parts.remove(&key)?;
        self.by_age.remove(&part.serial);
        let ip = key.source.ip().to_canonical();
        if let Some(of_source) = self.by_source.get_mut(&ip) {
            of_source.remove(&part.serial);
            if of_source.is_empty() {
                self.by_source.remove(&ip);
            }
        }
        self.bytes -= part.cost();
        Some(part)
    }
}

impl Part {
    fn cost(&self) -> usize {
        PART_COST + self.len + self.pieces.len() * PIECE_COST
    }

    /// Adds a piece; an error says that the fragments do not belong together.
    fn add(&mut self, frame: &Frame<'_>) -> Result<(), ()> {
        let head = &self.head;
        let agrees = head.kind == frame.header.msg_type
            && head.nonce == frame.header.nonce
            && head.signature.as_ref() == frame.signature
            && self.total_len == frame.header.fragment.map(|fragment| fragment.total_len);
        if !agrees || self.len + frame.payload.len() > MAX_MESSAGE {
            return Err(());
        }
        if frame.payload.is_empty() {
            return Ok(());
        }
        let offset = frame.header.fragment.map_or(self.len as u32, |fragment| fragment.offset);
        let end = offset + frame.payload.len() as u32;
        if let Some((at, before)) = self.pieces.range(..=offset).next_back() {
            if *at == offset && **before == *frame.payload {
                return Ok(()); // the same fragment again
            }
            if at + before.len() as u32 > offset {
                return Err(());
            }
        }
        if self.pieces.range(offset..).next().is_some_and(|(at, _)| *at < end) {
            return Err(());
        }
        self.pieces.insert(offset, frame.payload.into());
        self.len += frame.payload.len();
        Ok(())
    }

    /// Whether nothing is missing, now that a fragment was added that says whether it is the last.
    fn is_complete(&self, last: bool) -> bool {
        self.total_len.map_or(last, |total| self.len == total as usize)
    }

    fn join(self) -> Message<'static> {
        let mut payload = Vec::with_capacity(self.len);
        self.pieces.values().for_each(|piece| payload.extend_from_slice(piece));
        Message { payload: payload.into(), ..self.head }
    }
}
