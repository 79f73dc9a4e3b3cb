//! What `{name}` stands for in commands and configurations.

use std::collections::BTreeMap;

/// What is filled in.
#[derive(Debug, Clone, Default)]
pub(super) struct Vars(BTreeMap<String, String>);

/// A name that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{{{0}}} is unknown; there are {{cpu}}, {{server_cpu}}, {{run}}, {{identity}}, {{key}}, {{rdma_device}}, \
     {{port.NAME}}, {{endpoint.NAME}} and {{ready}}"
)]
pub(super) struct Unknown(String);

impl Vars {
    /// Has `{name}` stand for `value` from now on.
    pub(super) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// Fills in every name. Braces around anything but a name stay: TOML has tables in them.
    pub(super) fn fill(&self, text: &str) -> Result<String, Unknown> {
        fill(text, |name| self.0.get(name).cloned())
    }

    /// A command, cut at spaces before anything is filled in, so that a folder's name may have some.
    pub(super) fn words(&self, command: &str) -> Result<Vec<String>, Unknown> {
        command.split_whitespace().map(|word| self.fill(word)).collect()
    }
}

/// Fills in values that have the right shape, to check what is around them.
pub(super) fn dummy(text: &str) -> Result<String, Unknown> {
    fill(text, |name| {
        let value = match name {
            "cpu" | "server_cpu" => "0",
            "key" => "00",
            "run" | "identity" | "rdma_device" | "ready" => "x",
            _ if name.starts_with("port.") || name.starts_with("endpoint.") => "127.0.0.1:1",
            _ => return None,
        };
        Some(value.to_owned())
    })
}

fn fill(text: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, Unknown> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    };
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        filled.push_str(before);
        match from[1..].split_once('}') {
            Some((name, after)) if is_name(name) => {
                filled.push_str(&value(name).ok_or_else(|| Unknown(name.to_owned()))?);
                rest = after;
            }
            _ => {
                filled.push('{');
                rest = &from[1..];
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in_and_tables_stay() {
        let mut vars = Vars::default();
        vars.set("run", "/a b");
        vars.set("port.udp", "127.0.0.1:9");
        assert_eq!(vars.words("x {run}/s --peer {port.udp}").unwrap(), ["x", "/a b/s", "--peer", "127.0.0.1:9"]);
        assert_eq!(vars.fill("rdma = { port = 1 } {}").unwrap(), "rdma = { port = 1 } {}");
        assert_eq!(vars.fill("{cpu}"), Err(Unknown("cpu".into())));
        assert_eq!(dummy("{port.x} {cpu}").unwrap(), "127.0.0.1:1 0");
    }
}
