//! Values that several tables have.

use std::{collections::BTreeMap, net::SocketAddr};

use crate::{At, Table};

/// Every address that something binds, with the name of what does.
pub type Binds = BTreeMap<SocketAddr, String>;

/// The default of a key that is an address.
///
/// # Panics
/// If the schema has no default for it.
pub fn default_address(t: &Table<'_, '_>, key: &str) -> SocketAddr {
    t.default_text(key).parse().expect("an address in the schema")
}

/// Parses an address with a port; notes a mistake if it is none.
pub fn address(t: &Table<'_, '_>, at: &At<&str>) -> Option<SocketAddr> {
    let parsed = at.value.parse().ok();
    if parsed.is_none() {
        let message =
            format_args!("\"{}\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"", at.value);
        t.sink().wrong(at, message);
    }
    parsed
}

/// Records who binds an address; notes a mistake if someone else does. Port 0 is not recorded.
pub fn claim(t: &Table<'_, '_>, binds: &mut Binds, at: &At<&str>, bind: SocketAddr, owner: String) {
    if bind.port() != 0
        && let Some(other) = binds.insert(bind, owner)
    {
        t.sink().wrong(at, format_args!("{other} binds {bind} too; give each port its own address"));
    }
}
