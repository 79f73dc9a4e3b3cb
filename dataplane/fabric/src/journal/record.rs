//! The records of the journal and their encoding.
//!
//! Times are Unix nanoseconds of the node's [`Clock`](crate::Clock): they never go back.

use berth_port::Nanos;

/// A change of state that must outlive the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The node started. Memory leases granted before it get a higher generation.
    Started {
        /// Number of this start, from 1.
        epoch: u64,
        /// Time of the start.
        at: Nanos,
    },
    /// A lease was granted; or, for a known lease, its present state, such as a higher generation.
    Granted(Grant),
    /// A lease was renewed.
    Renewed {
        /// Full id of the lease.
        lease: u128,
        /// Time of the renewal.
        at: Nanos,
        /// Its new expiry.
        expires: Nanos,
    },
    /// A lease was freed, or its grace is over: its bytes may be leased again.
    Ended {
        /// Full id of the lease.
        lease: u128,
    },
    /// One lease was revoked: by itself, with its token, or because its contents were moved.
    LeaseRevoked {
        /// Full id of the lease.
        lease: u128,
        /// Time of the revocation.
        at: Nanos,
    },
    /// All leases that lived and were granted under a token were revoked.
    LeasesRevoked {
        /// `token_id` of the token.
        token: u128,
        /// Time of the revocation.
        at: Nanos,
    },
    /// A binding could not be torn down, so the lease's bytes are never leased again.
    LeaseFenced {
        /// Full id of the lease.
        lease: u128,
    },
    /// A lease is connected over a binding, or is about to be.
    Bound {
        /// Full id of the lease.
        lease: u128,
        /// Hash of the binding's kind and name.
        binding: u64,
        /// TLVs about the client, as its holder sent them in LEASE_BIND.
        client: Vec<u8>,
    },
    /// A lease is no longer connected over a binding.
    Unbound {
        /// Full id of the lease.
        lease: u128,
        /// Hash of the binding's kind and name.
        binding: u64,
    },
    /// A token was revoked.
    TokenRevoked {
        /// `token_id` of the token.
        token: u128,
        /// Time from which the revocation may be forgotten.
        until: Nanos,
    },
    /// A scheduler installed a fence.
    FenceSet {
        /// The scheduler's term.
        epoch: u64,
    },
    /// A key was enrolled at its own request.
    Enrolled {
        /// The Ed25519 public key.
        public_key: [u8; 32],
    },
    /// A key was removed: it is never served again, even if it is listed or enrolled anew.
    Unenrolled {
        /// Id of the key.
        key: u128,
    },
    /// Every token that `holder` may hold, and every lease and attachment that it holds, was revoked.
    HolderRevoked {
        /// Id of the holder's key.
        holder: u128,
        /// Time of the revocation.
        at: Nanos,
        /// Tokens issued up to this second are refused. Counted by the host's clock, not by the node's.
        issued_by: u64,
        /// Time from which the tokens may be forgotten.
        until: Nanos,
    },
    /// An operation of `sender` that must not run twice was executed; its nonces up to this one are used up.
    Seen {
        /// Id of the presenter's key.
        sender: u128,
        /// Nonce of the request.
        nonce: u64,
    },
    /// A handle to a lease was exported.
    Exported(Handle),
    /// A handle was imported.
    Imported {
        /// Id of the handle.
        handle: u128,
        /// Id of the importer's key.
        importer: u128,
        /// The attachment's key.
        key: u64,
    },
}

/// State of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Full id of the lease.
    pub lease: u128,
    /// Id of the resource that it is part of.
    pub resource: u128,
    /// Offset of its first byte in the resource.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
    /// First byte that may be accessed, counted from the lease's first; 0 without a RANGE caveat.
    pub first: u64,
    /// Id of the key that may renew and free it.
    pub holder: u128,
    /// `token_id` of the token that it was allocated under.
    pub token: u128,
    /// Data I/O that the token allowed: 1 read, 2 write.
    pub rights: u8,
    /// Generation, of 56 bits.
    pub generation: u64,
    /// Time of the grant.
    pub at: Nanos,
    /// Time at which it expires.
    pub expires: Nanos,
    /// Nanoseconds after its expiry in which it can be renewed.
    pub grace: Nanos,
    /// The unit that it holds, encoded by its resource; empty if it holds bytes.
    pub unit: Vec<u8>,
}

/// State of an exported handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Id of the handle.
    pub handle: u128,
    /// Full id of the exported lease.
    pub lease: u128,
    /// Id of the key that may import it; 0 for anyone.
    pub target: u128,
    /// `target_runtime_kind`, the runtime that it was made for.
    pub kind: u16,
    /// Rights bits: 1 read, 2 write, 4 append.
    pub rights: u32,
    /// Time at which it expires.
    pub expires: Nanos,
}

mod kind {
    pub(super) const STARTED: u8 = 1;
    pub(super) const GRANTED: u8 = 2;
    pub(super) const RENEWED: u8 = 3;
    pub(super) const ENDED: u8 = 4;
    pub(super) const LEASE_REVOKED: u8 = 5;
    pub(super) const LEASE_FENCED: u8 = 6;
    pub(super) const TOKEN_REVOKED: u8 = 7;
    pub(super) const FENCE_SET: u8 = 8;
    pub(super) const ENROLLED: u8 = 9;
    pub(super) const SEEN: u8 = 10;
    pub(super) const EXPORTED: u8 = 11;
    pub(super) const IMPORTED: u8 = 12;
    pub(super) const UNENROLLED: u8 = 13;
    pub(super) const HOLDER_REVOKED: u8 = 14;
    pub(super) const LEASES_REVOKED: u8 = 15;
    pub(super) const BOUND: u8 = 16;
    pub(super) const UNBOUND: u8 = 17;
}

/// A type that a record's field may have.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Field for $int {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_be_bytes(*bytes))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, u128);

impl Field for Nanos {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        u64::take(from).map(Nanos)
    }
}

impl Field for [u8; 32] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = from.split_first_chunk()?;
        *from = rest;
        Some(*bytes)
    }
}

/// A u16 length and the bytes; at most 65,535.
impl Field for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        u16::try_from(self.len()).expect("what is journaled is short").put(out);
        out.extend_from_slice(self);
    }
    fn take(from: &mut &[u8]) -> Option<Self> {
        let len = u16::take(from)?.into();
        let (bytes, rest) = from.split_at_checked(len)?;
        *from = rest;
        Some(bytes.to_vec())
    }
}

/// Implements [`Field`] for structs, field by field in the given order.
macro_rules! structs {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Field::take(from)?),* })
            }
        }
    )*};
}
structs! {
    Grant { lease, resource, base, len, first, holder, token, rights, generation, at, expires, grace, unit }
    Handle { handle, lease, target, kind, rights, expires }
}

/// Implements the codec of [`Record`]: for each variant its kind byte, then its fields in the given order.
macro_rules! records {
    (
        fields { $($variant:ident = $kind:ident { $($field:ident),* })* }
        structs { $($tuple:ident = $tuple_kind:ident)* }
    ) => {
        impl Record {
            pub(super) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        kind::$kind.put(out);
                        $($field.put(out);)*
                    })*
                    $(Self::$tuple(inner) => {
                        kind::$tuple_kind.put(out);
                        inner.put(out);
                    })*
                }
            }

            /// Takes the first record; `None` if the bytes do not start with a whole record of a known kind.
            pub(super) fn decode(from: &mut &[u8]) -> Option<Self> {
                Some(match u8::take(from)? {
                    $(kind::$kind => Self::$variant { $($field: Field::take(from)?),* },)*
                    $(kind::$tuple_kind => Self::$tuple(Field::take(from)?),)*
                    _ => return None,
                })
            }
        }
    };
}
records! {
    fields {
        Started = STARTED { epoch, at }
        Renewed = RENEWED { lease, at, expires }
        Ended = ENDED { lease }
        LeaseRevoked = LEASE_REVOKED { lease, at }
        LeasesRevoked = LEASES_REVOKED { token, at }
        LeaseFenced = LEASE_FENCED { lease }
        Bound = BOUND { lease, binding, client }
        Unbound = UNBOUND { lease, binding }
        TokenRevoked = TOKEN_REVOKED { token, until }
        FenceSet = FENCE_SET { epoch }
        Enrolled = ENROLLED { public_key }
        Seen = SEEN { sender, nonce }
        Imported = IMPORTED { handle, importer, key }
        Unenrolled = UNENROLLED { key }
        HolderRevoked = HOLDER_REVOKED { holder, at, issued_by, until }
    }
    structs {
        Granted = GRANTED
        Exported = EXPORTED
    }
}
