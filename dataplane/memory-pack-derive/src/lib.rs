//! `#[derive(MemoryPack)]`. What it takes, and the bytes that follow from it, are in the documentation of
//! `berth_wire::memory_pack`.
#![forbid(unsafe_code)]

mod expand;
mod parse;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements `berth_wire::memory_pack::MemoryPack`, and with some attributes other traits of that module.
#[proc_macro_derive(MemoryPack, attributes(memory_pack))]
pub fn memory_pack(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    parse::parse(&input).map_or_else(Error::into_compile_error, |parsed| expand::expand(&parsed)).into()
}
