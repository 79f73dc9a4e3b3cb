//! Leases of memory and of blocks.

use crate::{BLOCK_LEN, Error};

#[link(wasm_import_module = "fabricbios_fbmu_v0")]
unsafe extern "C" {
    fn fbmu_read_lease(high: u64, low: u64, offset: u64, len: usize, out: *mut u8) -> i32;
    fn fbmu_write_lease(high: u64, low: u64, offset: u64, from: *const u8, len: usize) -> i32;
    fn fbmu_alloc(min: u64, secs: u32, out: *mut [u64; 4]) -> i32;
    fn fbmu_query(high: u64, low: u64, out: *mut [u64; 3]) -> i32;
    fn fbmu_renew(high: u64, low: u64, secs: u32, out: *mut u64) -> i32;
    fn fbmu_free(high: u64, low: u64) -> i32;
}

#[link(wasm_import_module = "fabricbios_fbbu_v0")]
unsafe extern "C" {
    fn fbbu_read_block_lease(high: u64, low: u64, block: u64, out: *mut u8) -> i32;
    fn fbbu_write_block_lease(high: u64, low: u64, block: u64, from: *const u8) -> i32;
    fn fbbu_alloc(min: u64, secs: u32, out: *mut [u64; 5]) -> i32;
    fn fbbu_query(high: u64, low: u64, out: *mut [u64; 3]) -> i32;
    fn fbbu_renew(high: u64, low: u64, secs: u32, out: *mut u64) -> i32;
    fn fbbu_free(high: u64, low: u64) -> i32;
}

/// Bytes of one access; leases take at least so many.
const PIECE: usize = 4096;

/// What an alloc gave.
#[derive(Debug, Clone, Copy)]
pub struct Granted {
    /// When it ends, as the node counts.
    pub expires_at: u64,
    /// Bytes, or blocks.
    pub size: u64,
}

/// How a lease stands.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// The lease status of the wire protocol.
    pub status: u32,
    /// When it ends, as the node counts.
    pub expires_at: u64,
    /// Bytes, or blocks.
    pub size: u64,
}

macro_rules! lease {
    ($(#[$doc:meta])* $name:ident, $alloc:ident, $query:ident, $renew:ident, $free:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            /// Its id: a `cap_token`, or what an alloc gave.
            pub id: u128,
        }

        impl $name {
            fn words(self) -> (u64, u64) {
                ((self.id >> 64) as u64, self.id as u64)
            }

            /// Takes a new lease, which outlives the run.
            ///
            /// # Errors
            /// What the node says.
            pub fn alloc(min: u64, secs: u32) -> Result<(Self, Granted), Error> {
                let mut out = Default::default();
                // SAFETY: the node writes as many bytes as `out` has.
                ok(unsafe { $alloc(min, secs, &raw mut out) })?;
                let [high, low, expires_at, size, ..] = out;
                Ok((Self { id: u128::from(high) << 64 | u128::from(low) }, Granted { expires_at, size }))
            }

            /// How it stands.
            ///
            /// # Errors
            /// What the node says.
            pub fn query(self) -> Result<Standing, Error> {
                let (high, low) = self.words();
                let mut out = [0; 3];
                // SAFETY: the node writes as many bytes as `out` has.
                ok(unsafe { $query(high, low, &raw mut out) })?;
                Ok(Standing { status: out[0] as u32, expires_at: out[1], size: out[2] })
            }

            /// Makes it last so many seconds from now, and says until when.
            ///
            /// # Errors
            /// What the node says.
            pub fn renew(self, secs: u32) -> Result<u64, Error> {
                let (high, low) = self.words();
                let mut out = 0;
                // SAFETY: the node writes as many bytes as `out` has.
                ok(unsafe { $renew(high, low, secs, &raw mut out) })?;
                Ok(out)
            }

            /// Ends it.
            ///
            /// # Errors
            /// What the node says.
            pub fn free(self) -> Result<(), Error> {
                let (high, low) = self.words();
                // SAFETY: nothing of memory is passed.
                ok(unsafe { $free(high, low) })
            }
        }
    };
}

lease! {
    /// A lease of memory.
    Memory, fbmu_alloc, fbmu_query, fbmu_renew, fbmu_free
}

lease! {
    /// A lease of blocks.
    Blocks, fbbu_alloc, fbbu_query, fbbu_renew, fbbu_free
}

impl Memory {
    /// Copies bytes out of it.
    ///
    /// # Errors
    /// What the node says; part of them may have been copied.
    pub fn read(self, mut offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let (high, low) = self.words();
        for piece in out.chunks_mut(PIECE) {
            // SAFETY: the bytes are the piece's.
            ok(unsafe { fbmu_read_lease(high, low, offset, piece.len(), piece.as_mut_ptr()) })?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// What the node says; part of them may have been copied.
    pub fn write(self, mut offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (high, low) = self.words();
        for piece in bytes.chunks(PIECE) {
            // SAFETY: the bytes are the piece's.
            ok(unsafe { fbmu_write_lease(high, low, offset, piece.as_ptr(), piece.len()) })?;
            offset += piece.len() as u64;
        }
        Ok(())
    }
}

impl Blocks {
    /// Copies a block out of it.
    ///
    /// # Errors
    /// What the node says.
    pub fn read(self, block: u64, out: &mut [u8; BLOCK_LEN]) -> Result<(), Error> {
        let (high, low) = self.words();
        // SAFETY: the bytes are those of `out`.
        ok(unsafe { fbbu_read_block_lease(high, low, block, out.as_mut_ptr()) })
    }

    /// Copies a block into it.
    ///
    /// # Errors
    /// What the node says.
    pub fn write(self, block: u64, bytes: &[u8; BLOCK_LEN]) -> Result<(), Error> {
        let (high, low) = self.words();
        // SAFETY: the bytes are those of `bytes`.
        ok(unsafe { fbbu_write_block_lease(high, low, block, bytes.as_ptr()) })
    }
}

fn ok(code: i32) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(Error(code)) }
}
