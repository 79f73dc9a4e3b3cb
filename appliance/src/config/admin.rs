//! `[admin]`: where the appliance tells how it is.

use std::{net::SocketAddr, path::Path};

use berth_keys::{Binds, Table, address, claim, default_address};

use super::{Host, contents, resolve};

/// `[admin]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where the page, `/metrics` and `/status` are served over HTTP.
    pub listen: SocketAddr,
    /// The bearer token of requests, 16 printable ASCII characters or more; `None` on a loopback address alone.
    pub token: Option<String>,
}

pub(super) fn read(mut t: Table<'_, '_>, folder: &Path, host: &Host, binds: &mut Binds) -> Option<Admin> {
    let listen = t.text("listen");
    let default = default_address(&t, "listen");
    let address = listen.as_ref().map_or(Some(default), |at| address(&t, at));
    if let (Some(at), Some(address)) = (&listen, address) {
        claim(&t, binds, at, address, "the admin address".into());
    }
    let file = t.text("token_file").and_then(|at| resolve(&t, at, folder, host.is_file));
    let token = file.as_ref().and_then(|at| {
        if (host.is_public)(&at.value) {
            let path = at.value.display();
            t.sink().wrong(at, format_args!("{path} is open to everybody on this host: run `chmod o= {path}`"));
            return None;
        }
        let token = contents(&t, at, host)?.trim().to_owned();
        if token.len() < 16 || !token.bytes().all(|b| b.is_ascii_graphic()) {
            t.sink().wrong(at, "holds no token; write at least 16 printable ASCII characters into it, no spaces");
            return None;
        }
        Some(token)
    });
    if file.is_none()
        && let (Some(at), Some(address)) = (&listen, address)
        && !address.ip().is_loopback()
    {
        let message = format_args!("{address} is reached from other hosts; add token_file, or listen on 127.0.0.1");
        t.sink().wrong(at, message);
    }
    t.finish();
    Some(Admin { listen: address?, token })
}
