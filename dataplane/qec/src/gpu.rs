//! Decoders on a GPU: their PTX, the tables as the GPU reads them, and modules that make a decoder a function.
//!
//! [`DECODERS`] has the code, for any model. [`module`] makes a PTX module of one decoder: its tables, its memory, and a
//! function `int NAME(const void *in, void *out, u32 arg_len, u32 max_result_len, u32 *result_len)`, a `DEVICE_CALL`
//! handler that takes and answers what `qec_decode` does. [`server`] makes one of a decoding server. They are linked with
//! the dispatcher that calls them.

use std::fmt::Write as _;

use crate::{
    decoder::{Kind, Tables},
    lut::Lut,
    relay::{Arithmetic, Relay},
    sparse::MeasurementMap,
};

/// The decoders in PTX, made by clang of `kernels/decoders.cu`: functions `berth_lut`, `berth_relay_bp`, those of
/// the decoding server, and the kernel `berth_relay_bp_shots`.
pub const DECODERS: &str = include_str!("../kernels/decoders.ptx");

/// Why a decoder does not make a module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// The algorithm, or a decoder of so many observables, runs on CPUs alone.
    #[error("lut and relay_bp in fixed point run on a GPU, with up to 64 observables; other decoders do not")]
    OnCpus,
    /// The name is none that PTX takes.
    #[error("{0:?} is no name: write letters, digits and _, a letter first")]
    Name(String),
    /// There is nothing to run it.
    #[error("a decoder has at least one block")]
    NoBlocks,
}

impl Tables {
    /// Whether the decoder can run on a GPU: `lut` and `relay_bp` in fixed point with up to 64 observables can.
    pub fn runs_on_gpus(&self) -> bool {
        let kind = match &self.kind {
            Kind::Lut(_) => true,
            Kind::Relay(relay) => relay.parameters.arithmetic == Arithmetic::Fixed16,
            Kind::Mwpm(_) | Kind::Osd(_) | Kind::Windows(_) => false,
        };
        kind && self.num_observables <= 64
    }

    /// The tables as the GPU reads them, little-endian, to lie at a multiple of 8. `None` if it runs on CPUs alone.
    pub fn image(&self) -> Option<Vec<u8>> {
        let (detectors, observables) = (self.num_detectors as u32, self.num_observables as u32);
        match &self.kind {
            _ if !self.runs_on_gpus() => None,
            Kind::Mwpm(_) | Kind::Osd(_) | Kind::Windows(_) => None,
            Kind::Lut(lut) => Some(lut_image(lut, detectors, observables)),
            Kind::Relay(relay) => Some(relay_image(relay, detectors, observables)),
        }
    }

    /// Whether all threads of a block decode a shot together, on a GPU; else one thread does.
    pub fn is_parallel(&self) -> bool {
        matches!(self.kind, Kind::Relay(_))
    }

    /// How many bytes of memory each block needs that decodes, at a multiple of 2; 0 of all but relay belief propagation.
    pub fn state_bytes(&self) -> usize {
        match &self.kind {
            Kind::Relay(relay) => {
                (relay.priors.len() + relay.graph.num_edges()) * relay.parameters.relays * size_of::<i16>()
            }
            Kind::Mwpm(_) | Kind::Lut(_) | Kind::Osd(_) | Kind::Windows(_) => 0,
        }
    }
}

/// The module of one decoder, with memory for `blocks` blocks; blocks beyond answer -6.
///
/// A look-up table is for one thread, relay belief propagation for all threads of a block, at least 8.
pub fn module(name: &str, tables: &Tables, blocks: u32) -> Result<String, ModuleError> {
    let image = tables.image().ok_or(ModuleError::OnCpus)?;
    let callee = if tables.is_parallel() { "berth_relay_bp" } else { "berth_lut" };
    let memory = tables.state_bytes();
    text(name, &image, memory, blocks, &[(name.to_owned(), callee, tables.is_parallel())])
}

/// The functions of the decoding server, and whether all threads of a block call each; else one does.
pub const SERVER: [(&str, bool); 3] =
    [("enqueue_syndromes", true), ("get_corrections", false), ("reset_decoder", false)];

/// The module of a decoding server with these decoders, by their ids: functions `NAME_enqueue_syndromes` and so on, see
/// [`SERVER`]. Each of `blocks` blocks has sessions of its own, so all requests of a client must reach one block.
///
/// It needs a `.global .u32 berth_sessions_lost`: where that is not 0, sessions begin as failed.
pub fn server(name: &str, decoders: &[(&Tables, &MeasurementMap)], blocks: u32) -> Result<String, ModuleError> {
    const DECODER: usize = 16;
    let mut image = vec![0; (8 + DECODER * decoders.len()).next_multiple_of(8)];
    image[..4].copy_from_slice(&(decoders.len() as u32).to_le_bytes());
    let mut memory = 0;
    for (index, (tables, map)) in decoders.iter().enumerate() {
        let mut add = |bytes: Vec<u8>| {
            let at = image.len() as u32;
            image.extend(bytes);
            image.resize(image.len().next_multiple_of(8), 0);
            at
        };
        let tables_at = add(tables.image().ok_or(ModuleError::OnCpus)?);
        let entry = [u32::from(tables.is_parallel()), tables_at, add(map_image(map)), memory as u32];
        image[8 + DECODER * index..][..DECODER].copy_from_slice(&entry.map(u32::to_le_bytes).concat());
        let padded = |bits: usize| bits.div_ceil(8).next_multiple_of(8);
        let strings = padded(map.num_measurements()) + padded(map.num_detectors());
        memory += 16 + strings + tables.state_bytes().next_multiple_of(8);
    }
    let callees = ["berth_enqueue_syndromes", "berth_get_corrections", "berth_reset_decoder"];
    let functions: Vec<_> = SERVER
        .iter()
        .zip(callees)
        .map(|((function, _), callee)| (format!("{name}_{function}"), callee, true))
        .collect();
    text(name, &image, memory, blocks, &functions)
}

/// A module with these bytes, `memory` bytes of each block, and functions that call others with both: of each its name, the
/// other's, and whether that takes the memory.
fn text(
    name: &str,
    image: &[u8],
    memory: usize,
    blocks: u32,
    functions: &[(String, &str, bool)],
) -> Result<String, ModuleError> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(letters) {
        return Err(ModuleError::Name(name.to_owned()));
    }
    if blocks == 0 {
        return Err(ModuleError::NoBlocks);
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)).to_string();
    let words: Vec<_> = image.chunks(4).map(word).collect();
    let memory = memory.next_multiple_of(8);
    let mut text = format!(
        ".version 6.3\n.target sm_70\n.address_size 64\n\
         .global .align 8 .b32 {name}_tables[{}] = {{{}}};\n\
         .global .align 8 .b8 {name}_memory[{}];\n",
        words.len(),
        words.join(","),
        (memory * blocks as usize).max(1),
    );
    for (function, callee, takes_memory) in functions {
        let call = ".param .b64 in, .param .b64 out, .param .b32 len, .param .b32 room, .param .b64 result_len";
        let (more, extra): (_, &[_]) = match takes_memory {
            true => (", .param .b64 tables, .param .b64 memory", &["tables", "memory"]),
            false => (", .param .b64 tables", &["tables"]),
        };
        let _ = write!(
            text,
            ".extern .func (.param .b32 status) {callee}({call}{more});\n\
             .visible .func (.param .b32 status) {function}({call})\n{{\n\
             .reg .b64 %in, %out, %result_len, %tables, %memory;\n.reg .b32 %len, %room, %status, %block;\n\
             .reg .pred %beyond;\n",
        );
        for (register, bits) in [("in", 64), ("out", 64), ("len", 32), ("room", 32), ("result_len", 64)] {
            let _ = writeln!(text, "ld.param.b{bits} %{register}, [{register}];");
        }
        let _ = write!(
            text,
            "mov.u32 %status, -6;\nmov.u32 %block, %ctaid.x;\nsetp.ge.u32 %beyond, %block, {blocks};\n\
             @%beyond bra DONE;\n\
             mov.u64 %tables, {name}_tables;\ncvta.global.u64 %tables, %tables;\n\
             mov.u64 %memory, {name}_memory;\ncvta.global.u64 %memory, %memory;\n\
             mad.wide.u32 %memory, %block, {memory}, %memory;\n{{\n\
             .param .b64 in_, out_, result_len_, tables_, memory_;\n.param .b32 len_, room_, status_;\n",
        );
        for (register, bits) in [("in", 64), ("out", 64), ("len", 32), ("room", 32), ("result_len", 64)] {
            let _ = writeln!(text, "st.param.b{bits} [{register}_], %{register};");
        }
        for register in extra {
            let _ = writeln!(text, "st.param.b64 [{register}_], %{register};");
        }
        let _ = write!(
            text,
            "call.uni (status_), {callee}, (in_, out_, len_, room_, result_len_, {}_);\nld.param.b32 %status, [status_];\n\
             }}\nDONE:\nst.param.b32 [status], %status;\nret;\n}}\n",
            extra.join("_, "),
        );
    }
    Ok(text)
}

/// `struct map`.
fn map_image(map: &MeasurementMap) -> Vec<u8> {
    let mut words = vec![map.num_measurements() as u32, map.num_detectors() as u32, 1, 0];
    if let Some(matrix) = map.matrix() {
        words[2] = 0;
        words.extend(matrix.rows().scan(0, |end, row| {
            *end += row.len() as u32;
            Some(*end)
        }));
        words.extend(matrix.rows().flatten());
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// The hash of `berth_lut`.
fn hash(words: &[u32]) -> u32 {
    words.iter().fold(0x811C_9DC5_u32, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9E37_79B1);
        hash ^ hash >> 15
    })
}

/// `struct lut`: a table that is at least half empty, and the records.
fn lut_image(lut: &Lut, detectors: u32, observables: u32) -> Vec<u8> {
    let words = detectors.div_ceil(32) as usize;
    let mut slots = vec![0_u32; (2 * lut.len()).next_power_of_two().max(2)];
    let mask = slots.len() - 1;
    let mut records = Vec::with_capacity(lut.len() * (words + 2));
    for (index, (syndrome, flips)) in lut.records().enumerate() {
        let first = records.len();
        records.extend(syndrome.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]).take(words));
        let mut at = hash(&records[first..]) as usize & mask;
        while slots[at] != 0 {
            at = (at + 1) & mask;
        }
        slots[at] = index as u32 + 1;
        records.extend([flips[0] as u32, (flips[0] >> 32) as u32]);
    }
    let header = [detectors, observables, words as u32, mask as u32];
    [&header[..], &slots, &records].concat().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// `struct relay_bp`.
fn relay_image(relay: &Relay, detectors: u32, observables: u32) -> Vec<u8> {
    const HEADER: usize = 72;
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let relays = relay.parameters.relays;
    let parts: [Vec<u8>; 8] = [
        bytes(&relay.graph.detector_starts),
        bytes(&relay.graph.edge_errors),
        bytes(&relay.graph.error_starts),
        bytes(&relay.graph.error_edges),
        relay.priors.iter().flat_map(|prior| prior.to_le_bytes()).collect(),
        relay.strengths.iter().flat_map(|row| &row[..relays]).flat_map(|strength| strength.to_le_bytes()).collect(),
        (0..relay.priors.len()).flat_map(|error| relay.graph.flips(error)[0].to_le_bytes()).collect(),
        relay.graph.certain_events.iter().flat_map(|word| word.to_le_bytes()).collect(),
    ];
    let (errors, edges) = (relay.priors.len(), relay.graph.num_edges());
    let parameters = [errors, edges, relays, relay.parameters.legs, relay.parameters.iterations];
    let mut header = vec![detectors, observables];
    header.extend(parameters.map(|number| number as u32));
    let mut body = Vec::new();
    for part in parts {
        header.push((HEADER + body.len()) as u32);
        body.extend(part);
        body.resize(body.len().next_multiple_of(8), 0);
    }
    header.push(0);
    [bytes(&header), relay.graph.certain_flips[0].to_le_bytes().to_vec(), body].concat()
}
