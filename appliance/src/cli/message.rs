//! `berth message`: the messages that ring kernels know, and what they look like on the wire.

use std::{
    fs,
    io::{self, Read as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_kernels::{Choice, Format, Member, Registry, Scalar, Schema};
use berth_wire::memory_pack::Guid;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Map, Value};

use super::output::{hex, table, unhex};
use crate::{
    check,
    config::{self, Origin},
};

/// List, show, encode and decode the messages of ring kernels (docs/ring-kernels.md).
#[derive(Debug, Parser)]
pub struct MessageCommand {
    #[command(subcommand)]
    command: Command,
    /// A configuration with further [[message]]s. Default: only the built-in ones.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Each message with its bytes in every format, what answers it, and its fingerprint.
    List,
    /// The members of a message, with their offsets in every format.
    Show {
        /// The message.
        name: String,
    },
    /// Write a message from JSON: hex digits on standard output, or bytes into a file.
    Encode {
        /// The message.
        name: String,
        /// The members as a JSON object; from standard input without it. Nullable ones may be left out.
        json: Option<String>,
        /// The format.
        #[arg(long, value_enum, default_value = "dotcompute")]
        format: FormatWord,
        /// Write bytes into this file.
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Print a message as JSON.
    Decode {
        /// The message.
        name: String,
        #[command(flatten)]
        from: Source,
        /// The format. Default: the one that the length tells.
        #[arg(long, value_enum)]
        format: Option<FormatWord>,
    },
    /// Print a C header, usable from CUDA: a packed struct, and readers and writers for every format.
    Header {
        /// The message.
        name: String,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// The message in hex digits.
    hex: Option<String>,
    /// A file with its bytes.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatWord {
    /// A count, then packed members.
    Dotcompute,
    /// A count, then members with nullables padded as in .NET.
    Memorypack,
    /// Packed members.
    Raw,
}

impl From<FormatWord> for Format {
    fn from(word: FormatWord) -> Self {
        match word {
            FormatWord::Dotcompute => Self::DotCompute,
            FormatWord::Memorypack => Self::MemoryPack,
            FormatWord::Raw => Self::Raw,
        }
    }
}

impl MessageCommand {
    /// Runs the command. Mistakes of the configuration are printed, and the status is 2.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let registry = match self.config {
            None => Registry::default(),
            Some(file) => match config::load(&Origin { file, sets: Vec::new() }, &check::this_host()) {
                Ok(loaded) => loaded.config.messages,
                Err(mistakes) => {
                    for note in mistakes {
                        eprintln!("{note}");
                    }
                    return Ok(ExitCode::from(2));
                }
            },
        };
        match self.command {
            Command::List => print!("{}", list(&registry)),
            Command::Show { name } => print!("{}", show(&*find(&registry, &name)?)),
            Command::Header { name } => print!("{}", find(&registry, &name)?.c_header()),
            Command::Encode { name, json, format, output } => {
                let schema = find(&registry, &name)?;
                let json = match json {
                    Some(json) => json,
                    None => io::read_to_string(io::stdin().take(1 << 20)).context("standard input")?,
                };
                let raw = raw(&schema, &json)?;
                let mut bytes = vec![0; schema.len(format.into())];
                schema.write(format.into(), &raw, &mut bytes).context("the message does not fit")?;
                match output {
                    Some(file) => fs::write(&file, bytes).with_context(|| file.display().to_string())?,
                    None => println!("{}", hex(&bytes)),
                }
            }
            Command::Decode { name, from, format } => {
                let schema = find(&registry, &name)?;
                let bytes = match (from.input, from.hex) {
                    (Some(file), _) => fs::read(&file).with_context(|| file.display().to_string())?,
                    (None, digits) => unhex(&digits.unwrap_or_default()).map_err(|e| anyhow!(e))?,
                };
                let choice = format.map_or(Choice::Auto, |format| Choice::Only(format.into()));
                let mut raw = vec![0; schema.len(Format::Raw)];
                schema.read(choice, &bytes, &mut raw).with_context(|| refused(&schema, bytes.len()))?;
                println!("{}", json(&schema, &raw));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn find(registry: &Registry, name: &str) -> anyhow::Result<Arc<Schema>> {
    let known = || registry.messages().iter().map(|message| message.schema.name()).collect::<Vec<_>>().join(", ");
    let message =
        registry.find(name).with_context(|| format!("there is no message {name:?}; there are: {}", known()))?;
    Ok(message.schema.clone())
}

fn refused(schema: &Schema, len: usize) -> String {
    let lengths = Format::WORDS.map(|(word, format)| format!("{word} {}", schema.len(format)));
    let short = schema.short_len().map_or_else(String::new, |short| format!(" or {short} without a CorrelationId"));
    format!(
        "{len} bytes are no {}: its bytes are {}{short}; in dotcompute and memorypack the first is {}",
        schema.name(),
        lengths.join(", "),
        schema.members().len()
    )
}

fn list(registry: &Registry) -> String {
    let row = |message: &berth_kernels::Message| {
        let len = |format| message.schema.len(format).to_string();
        [
            message.schema.name().to_owned(),
            len(Format::DotCompute),
            len(Format::MemoryPack),
            len(Format::Raw),
            message.response.clone().unwrap_or_else(|| "-".to_owned()),
            message.schema.fingerprint(),
        ]
    };
    let rows: Vec<_> = registry.messages().iter().map(row).collect();
    table(["name", "dotcompute", "memorypack", "raw", "response", "fingerprint"], &rows)
}

fn show(schema: &Schema) -> String {
    let mut padded = 1;
    let row = |(at, member): (usize, &Member)| {
        let (front, size) = (if member.nullable { member.scalar.align() } else { 0 }, member.scalar.size());
        let row = [member.name.clone(), member.type_word(), (at + 1).to_string(), padded.to_string(), at.to_string()];
        padded += front + size;
        row
    };
    let rows: Vec<_> = schema.placed().map(row).collect();
    let members = table(["member", "type", "dotcompute", "memorypack", "raw"], &rows);
    format!("{}\nfingerprint {}\n{members}", schema.declaration(), schema.fingerprint())
}

/// The raw message that a JSON object says.
fn raw(schema: &Schema, json: &str) -> anyhow::Result<Vec<u8>> {
    let mut members: Map<String, Value> = serde_json::from_str(json).context("a JSON object is wanted")?;
    let mut raw = Vec::with_capacity(schema.len(Format::Raw));
    for member in schema.members() {
        let value = members.remove(&member.name).unwrap_or(Value::Null);
        let present = !value.is_null();
        ensure!(present || member.nullable, "{} is missing; it is a {}", member.name, member.type_word());
        raw.extend(member.nullable.then_some(u8::from(present)));
        if present {
            let wrong = || format!("{} is {value}; a {} is wanted", member.name, wanted(member.scalar));
            raw.extend(bytes(member.scalar, &value).with_context(wrong)?);
        } else {
            raw.resize(raw.len() + member.scalar.size(), 0);
        }
    }
    if let Some(name) = members.keys().next() {
        let known: Vec<_> = schema.members().iter().map(|member| member.name.as_str()).collect();
        bail!("{} has no member {name:?}; it has: {}", schema.name(), known.join(", "));
    }
    Ok(raw)
}

fn wanted(scalar: Scalar) -> String {
    match scalar {
        Scalar::Bool => "true or false".to_owned(),
        Scalar::Guid => {
            "Guid such as \"12345678-90ab-cdef-1234-567890abcdef\", or its bytes as 32 hex digits".to_owned()
        }
        Scalar::F32 | Scalar::F64 => {
            format!("number, \"inf\", \"-inf\", or the bits as in \"0x{}\"", "0".repeat(2 * scalar.size()))
        }
        _ => format!("whole number that fits {}", scalar.word()),
    }
}

/// The bytes of a value; `None` if the JSON is of no such value.
fn bytes(scalar: Scalar, value: &Value) -> Option<Vec<u8>> {
    macro_rules! whole {
        ($number:ty) => {
            match (value.as_i64(), value.as_u64()) {
                (Some(n), _) => <$number>::try_from(n).ok()?.to_le_bytes().to_vec(),
                (None, n) => <$number>::try_from(n?).ok()?.to_le_bytes().to_vec(),
            }
        };
    }
    Some(match scalar {
        Scalar::Bool => vec![value.as_bool()?.into()],
        Scalar::I8 => whole!(i8),
        Scalar::U8 => whole!(u8),
        Scalar::I16 => whole!(i16),
        Scalar::U16 => whole!(u16),
        Scalar::I32 => whole!(i32),
        Scalar::U32 => whole!(u32),
        Scalar::I64 => whole!(i64),
        Scalar::U64 => whole!(u64),
        Scalar::F32 | Scalar::F64 => float(scalar.size(), value)?,
        Scalar::Guid => guid(value.as_str()?)?.to_vec(),
    })
}

/// A number of 4 or 8 bytes. A finite one that does not fit 4 is none.
fn float(size: usize, value: &Value) -> Option<Vec<u8>> {
    let number = match value.as_str() {
        None => value.as_f64()?,
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        Some(text) => {
            let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 2 * size)?;
            let mut bytes = unhex(digits).ok()?;
            bytes.reverse();
            return Some(bytes);
        }
    };
    if size == 8 {
        return Some(number.to_le_bytes().to_vec());
    }
    let single = number as f32;
    (single.is_finite() || number.is_infinite()).then(|| single.to_le_bytes().to_vec())
}

/// A `Guid` as .NET prints it, or its bytes as they are on the wire.
fn guid(text: &str) -> Option<[u8; 16]> {
    let digits = text.replace('-', "");
    let bytes = unhex(&digits).ok()?.try_into().ok()?;
    let dashes: Vec<_> = text.match_indices('-').map(|(at, _)| at).collect();
    match dashes[..] {
        [] => Some(bytes),
        [8, 13, 18, 23] => Some(Guid(bytes).swapped().0),
        _ => None,
    }
}

/// A raw message as a JSON object, its members in their order.
fn json(schema: &Schema, raw: &[u8]) -> String {
    let member = |(at, member): (usize, &Member)| {
        let value = at + usize::from(member.nullable);
        let text = if member.nullable && raw[at] == 0 {
            "null".to_owned()
        } else {
            text(member.scalar, &raw[value..value + member.scalar.size()])
        };
        format!("  \"{}\": {text}", member.name)
    };
    let members: Vec<_> = schema.placed().map(member).collect();
    format!("{{\n{}\n}}", members.join(",\n"))
}

fn text(scalar: Scalar, bytes: &[u8]) -> String {
    let mut wide = [0; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    let whole = u64::from_le_bytes(wide);
    let shift = 64 - 8 * len as u32;
    let signed = (whole << shift).cast_signed() >> shift;
    let bits = || format!("\"0x{whole:0width$x}\"", width = 2 * len);
    match scalar {
        Scalar::Bool => (whole != 0).to_string(),
        Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64 => signed.to_string(),
        Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => whole.to_string(),
        Scalar::F32 => match f32::from_bits(whole as u32) {
            number if number.is_nan() => bits(),
            number if number.is_infinite() => format!("\"{number}\""),
            number => format!("{number:?}"),
        },
        Scalar::F64 => match f64::from_bits(whole) {
            number if number.is_nan() => bits(),
            number if number.is_infinite() => format!("\"{number}\""),
            number => format!("{number:?}"),
        },
        Scalar::Guid => {
            let id = Guid(std::array::from_fn(|i| bytes[i])).swapped();
            let digits = hex(&id.0);
            let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            format!("\"{}\"", groups.join("-"))
        }
    }
}
