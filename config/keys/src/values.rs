//! Values that several tables hold.

use std::{collections::BTreeMap, net::SocketAddr};

use crate::{At, Table};

/// Who binds which address.
pub type Binds = BTreeMap<SocketAddr, String>;

/// The address that the schema says holds without a key.
///
/// # Panics
/// If the schema says none.
pub fn default_address(t: &Table<'_, '_>, key: &str) -> SocketAddr {
    t.default_text(key).parse().expect("an address in the schema")
}

/// The address and port in `at`.
pub fn address(t: &Table<'_, '_>, at: &At<&str>) -> Option<SocketAddr> {
    let parsed = at.value.parse().ok();
    if parsed.is_none() {
        let message =
            format_args!("\"{}\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"", at.value);
        t.sink().wrong(at, message);
    }
    parsed
}

/// Notes who binds an address, or that two do.
pub fn claim(t: &Table<'_, '_>, binds: &mut Binds, at: &At<&str>, bind: SocketAddr, owner: String) {
    if bind.port() != 0
        && let Some(other) = binds.insert(bind, owner)
    {
        t.sink().wrong(at, format_args!("{other} binds {bind} too; give each port its own address"));
    }
}
