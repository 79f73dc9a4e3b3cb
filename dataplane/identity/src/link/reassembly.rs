//! Reassembly of fragmented messages (section "Fragmentation").

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::fabric::{Frame, FrameFlags, MAX_MESSAGE};

use super::{Drop, Drops, Message};

/// Limit on the time for which a message may stay incomplete.
pub const FRAGMENT_LIFE: Duration = Duration::from_secs(2);
/// Limit on the incomplete messages from one IP address.
pub const MAX_REASSEMBLIES_PER_SOURCE: usize = 64;
/// Limit on the memory of all incomplete messages in bytes, bookkeeping included.
pub const MAX_REASSEMBLY_BYTES: usize = 64 << 20;

/// Memory of an incomplete message beyond its pieces, in bytes.
const PART_COST: usize = 512;
/// Memory of a piece beyond its data, in bytes.
const PIECE_COST: usize = 80;

/// Messages of which some fragments are still missing.
///
/// At a limit, the oldest is dropped. A flood must then resend everything within the milliseconds that an honest
/// message takes. If the oldest were kept instead, a few datagrams every two seconds could shut everyone else out.
#[derive(Debug, Default)]
pub struct Reassembly {
    parts: HashMap<Key, Part>,
    /// Oldest first, as all live equally long.
    by_age: BTreeMap<u64, Key>,
    by_source: HashMap<IpAddr, BTreeSet<u64>>,
    bytes: usize,
    next_serial: u64,
}

/// Has the address in addition to the wire document's (sender, request id), so that nobody can spoil another's message
/// without forging addresses, too.
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
    /// The fields that all fragments must agree on; its payload is empty.
    head: Message<'static>,
    total_len: Option<u32>,
    /// By offset, or, without `FRAG_V2`, by order of arrival.
    pieces: BTreeMap<u32, Box<[u8]>>,
    len: usize,
}

impl Reassembly {
    /// Adds a fragment; returns the message that it completes. What is dropped is counted in `drops`.
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

    /// Drops messages that have been incomplete for [`FRAGMENT_LIFE`].
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

    /// Number of incomplete messages.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether no message is incomplete.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Memory of the incomplete messages, in bytes.
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

    /// Adds a piece; an error if the fragments do not belong together.
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

    /// Whether nothing is missing. `last` says whether the fragment just added is the last one.
    fn is_complete(&self, last: bool) -> bool {
        self.total_len.map_or(last, |total| self.len == total as usize)
    }

    fn join(self) -> Message<'static> {
        let mut payload = Vec::with_capacity(self.len);
        self.pieces.values().for_each(|piece| payload.extend_from_slice(piece));
        Message { payload: payload.into(), ..self.head }
    }
}
