//! Tables for people, JSON for programs.

use std::{
    io::{self, Write as _},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use serde_json::{Value, json};

/// Aligns columns under their headings.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].len()).chain([heads[column].len()]).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let cells: Vec<_> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let rows = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(heads)).chain(rows).collect()
}

/// Prints names with values, as lines or as one JSON object.
pub(super) fn pairs(json: bool, pairs: &[(&str, Value)]) {
    if json {
        let object: serde_json::Map<_, _> = pairs.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        println!("{}", Value::Object(object));
        return;
    }
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in pairs {
        match value {
            Value::String(text) => println!("{name:<width$}  {text}"),
            Value::Array(values) => {
                let words: Vec<_> =
                    values.iter().map(|value| value.as_str().map_or(value.to_string(), Into::into)).collect();
                println!("{name:<width$}  {}", words.join(" "));
            }
            other => println!("{name:<width$}  {other}"),
        }
    }
}

/// Prints bytes that were read from `offset` on: raw, or as one JSON object with hex digits.
pub(super) fn bytes(json: bool, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
    if json {
        println!("{}", json!({ "offset": offset, "data": hex(bytes) }));
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("writing to standard output")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes from hex digits, two for each; white space around them is dropped.
pub(super) fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.trim();
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(format!("{text:?} is not a row of hex digits, two for each byte"));
    }
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|e| e.to_string());
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Time left until a Unix time in seconds, such as `59 s`, or `over`.
pub(super) fn left(expires_at: u64) -> String {
    match expires_at.checked_sub(now_ms() / 1000) {
        Some(left) => format!("{left} s"),
        None => "over".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let rows = [["a".to_string(), "long one".to_string()], ["bcd".to_string(), String::new()]];
        assert_eq!(table(["x", "y"], &rows), "x    y\na    long one\nbcd\n");
    }

    #[test]
    fn hex_goes_both_ways() {
        assert_eq!(hex(&[0, 0xA5]), "00a5");
        assert_eq!(unhex("00A5\n"), Ok(vec![0, 0xA5]));
        assert!(unhex("0").is_err() && unhex("0g").is_err() && unhex("é0").is_err());
    }
}
