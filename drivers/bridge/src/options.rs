//! The options of `create`. Servers pass on their whole command line, so what is not known is not ours.

use std::{
    ffi::{CStr, OsStr},
    fmt::Display,
    ops::RangeInclusive,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use berth_ring::PATIENCE;

use crate::failure::Failure;

/// What a bridge is made of.
#[derive(Debug)]
pub(crate) struct Options {
    /// Whether the dispatcher has the loop, rather than a thread of ours.
    pub(crate) unified: bool,
    /// Whether slots are in memory of the host that the GPU reads.
    pub(crate) pinned: bool,
    /// How long after a request was freed its answer may come.
    pub(crate) patience: Duration,
    pub(crate) source: Source,
}

/// Where requests come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A UDP port on all addresses, as the stock provider has.
    Stock { port: u16, slots: u32, slot_size: u32 },
    /// A `[[port]]` of a configuration file.
    File { file: PathBuf, name: String },
}

impl Options {
    /// Reads them; of an option that is given twice the last one counts.
    pub(crate) fn read<'a>(arguments: impl Iterator<Item = &'a CStr>) -> Result<Self, Failure> {
        let (mut unified, mut pinned, mut patience) = (false, false, PATIENCE);
        let (mut port, mut slots, mut slot_size) = (0, 8, 256);
        let (mut file, mut name) = (None, None);
        for argument in arguments.map(CStr::to_bytes) {
            let (option, value) = match argument.iter().position(|byte| *byte == b'=') {
                Some(at) => (&argument[..at], Some(&argument[at + 1..])),
                None => (argument, None),
            };
            match (option, value) {
                (b"--unified", None) => unified = true,
                (b"--pinned-rings", None) => pinned = true,
                (b"--port", Some(value)) => port = number("--port", value, 0..=u16::MAX)?,
                (b"--num-slots", Some(value)) => slots = number("--num-slots", value, 1..=65_536)?,
                (b"--slot-size", Some(value)) => slot_size = number("--slot-size", value, 24..=65_507)?,
                (b"--unanswered-ms", Some(value)) => {
                    patience = Duration::from_millis(number("--unanswered-ms", value, 0..=60_000)?);
                }
                (b"--config", Some(value)) => file = Some(PathBuf::from(OsStr::from_bytes(value))),
                (b"--port-name", Some(value)) => name = Some(String::from_utf8_lossy(value).into_owned()),
                _ => {}
            }
        }
        let source = match (file, name) {
            (Some(file), Some(name)) => Source::File { file, name },
            (None, Some(name)) => {
                return Err(Failure::option(format_args!(
                    "--port-name={name} names a port of no file; add --config=FILE"
                )));
            }
            // Without a name of a port it is a file of the server's own.
            (_, None) => Source::Stock { port, slots, slot_size },
        };
        Ok(Self { unified, pinned, patience, source })
    }
}

fn number<N: FromStr + PartialOrd + Display>(
    option: &str,
    value: &[u8],
    range: RangeInclusive<N>,
) -> Result<N, Failure> {
    let parsed = str::from_utf8(value).ok().and_then(|text| text.parse().ok()).filter(|n| range.contains(n));
    parsed.ok_or_else(|| {
        let (value, low, high) = (String::from_utf8_lossy(value), range.start(), range.end());
        Failure::option(format_args!("{option}={value} is no number from {low} to {high}"))
    })
}
