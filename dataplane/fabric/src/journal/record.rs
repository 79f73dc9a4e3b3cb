//! The records of the journal and their encoding.
//!
//! All times are Unix time in nanoseconds, counted from the node's wall-clock anchor: they only rise.

use berth_port::Nanos;

/// One fact that outlives the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The node started. Memory leases granted before it have a lower generation than those served after it.
    Started {
        /// Counts the starts of this node, from 1.
        epoch: u64,
        /// When.
        at: Nanos,
    },
    /// A lease was granted; or, for a lease that is there, what holds of it now, such as a higher generation.
    Granted(Grant),
    /// A lease was renewed.
    Renewed {
        /// The lease.
        lease: u128,
        /// When.
        at: Nanos,
        /// Its new end.
        expires: Nanos,
    },
    /// A lease was freed, or its grace is over: its bytes may be leased again.
    Ended {
        /// The lease.
        lease: u128,
    },
    /// A lease was revoked, at its own or its token's revocation or by a move of its data.
    LeaseRevoked {
        /// The lease.
        lease: u128,
        /// When.
        at: Nanos,
    },
    /// Every lease that lived and was granted under a token was revoked, however many.
    LeasesRevoked {
        /// The token.
        token: u128,
        /// When.
        at: Nanos,
    },
    /// A binding could not be torn down: the lease's bytes are not leased again.
    LeaseFenced {
        /// The lease.
        lease: u128,
    },
    /// A lease is connected over a binding, or about to be.
    Bound {
        /// The lease.
        lease: u128,
        /// The binding: a hash of its kind and name.
        binding: u64,
        /// What its holder said of the client: TLVs.
        client: Vec<u8>,
    },
    /// A lease is not connected over a binding any more.
    Unbound {
        /// The lease.
        lease: u128,
        /// The binding.
        binding: u64,
    },
    /// A token is not to be accepted again.
    TokenRevoked {
        /// The token.
        token: u128,
        /// When the revocation may be forgotten.
        until: Nanos,
    },
    /// A scheduler installed a fence.
    FenceSet {
        /// The term.
        epoch: u64,
    },
    /// A presenter's key was enrolled by request.
    Enrolled {
        /// Its Ed25519 public key.
        public_key: [u8; 32],
    },
    /// A key was removed: it is not served again, whoever lists or enrols it.
    Unenrolled {
        /// Its id.
        key: u128,
    },
    /// Every token that `holder` may hold and every lease and attachment that it holds was revoked, however many.
    HolderRevoked {
        /// The id of its key.
        holder: u128,
        /// When.
        at: Nanos,
        /// Tokens that were issued by then are refused, in seconds of the host's clock.
        issued_by: u64,
        /// When the tokens may be forgotten.
        until: Nanos,
    },
    /// An op of `sender` that must not be executed again was executed; nonces up to this one are used up.
    Seen {
        /// The presenter.
        sender: u128,
        /// The nonce of its request.
        nonce: u64,
    },
    /// A handle to a lease was exported.
    Exported(Handle),
    /// A handle was imported.
    Imported {
        /// The handle.
        handle: u128,
        /// Who imported it.
        importer: u128,
        /// The attachment's key.
        key: u64,
    },
}

/// A granted lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The lease.
    pub lease: u128,
    /// The resource that its bytes are of.
    pub resource: u128,
    /// First byte within the resource.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The first byte, from the lease's own first, that its token's RANGE caveats let I/O touch.
    pub first: u64,
    /// Who may renew and free it.
    pub holder: u128,
    /// The token that it was allocated under.
    pub token: u128,
    /// What I/O may do: 1 read, 2 write.
    pub rights: u8,
    /// Its generation, 56 bits.
    pub generation: u64,
    /// When it was granted.
    pub at: Nanos,
    /// When it ends.
    pub expires: Nanos,
    /// How long after that it can be renewed, in nanoseconds.
    pub grace: Nanos,
    /// The unit that it holds, in its resource's own form, empty if it holds bytes.
    pub unit: Vec<u8>,
}

/// An exported handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// The handle's own id.
    pub handle: u128,
    /// The lease it leads to.
    pub lease: u128,
    /// Who may import it; 0 means anyone.
    pub target: u128,
    /// The kind of runtime it was made for.
    pub kind: u16,
    /// What it grants: 1 read, 2 write, 4 append.
    pub rights: u32,
    /// When it ends.
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

/// A field.
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

/// Bytes behind their length, of which 65,535 can be told.
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

/// Implements [`Field`] for structs as their fields in the order given.
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

/// Implements the codec of [`Record`]: each variant's kind byte and its fields in the order given.
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

            /// Takes the first record; `None` if the bytes do not start with a whole, known one.
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
