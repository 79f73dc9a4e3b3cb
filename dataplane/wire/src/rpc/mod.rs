//! CUDA-Q Realtime RPC: headers, schemas, payloads, statuses. Everything is little-endian.
//!
//! The two header forms have the same magics and cannot be told apart on the wire, so the form is a setting of the
//! port.

pub mod bits;
pub mod decoding;
mod header;
pub mod ptp;
pub mod schema;
pub mod status;
mod value;

pub use bits::Bits;
pub use header::{HeaderError, HeaderForm, RequestHeader, ResponseHeader};
pub use ptp::PtpEncoding;
pub use schema::{HandlerSchema, Lengths, SchemaError, TypeDesc, TypeId};
pub use value::Value;

/// First word of a request, `CUQR` (section "RPC Header / Response").
pub const MAGIC_REQUEST: u32 = 0x4355_5152;

/// First word of a response, `CUQS` (section "RPC Header / Response").
pub const MAGIC_RESPONSE: u32 = 0x4355_5153;

/// The function id of a handler's name: 32-bit FNV-1a over its bytes (host API, "Constants").
pub const fn fnv1a(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811C_9DC5_u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn function_ids_are_the_published_ones() {
        let published = [
            ("rpc_increment", 0x191B_6322),
            ("mock_decode", 0x6C45_A6D6),
            ("qec_decode", 0xC4B0_E4BF),
            ("enqueue_syndromes", 0x7ED8_BE82),
            ("get_corrections", 0x882D_5BA1),
            ("reset_decoder", 0x977A_59CF),
        ];
        for (name, id) in published {
            assert_eq!(fnv1a(name), id, "{name}");
        }
    }
}
