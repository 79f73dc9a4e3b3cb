//! Opening the port that the command line names.

use anyhow::Context;
use berth_host::UdpConfig;
use berth_port::Port;
use berth_udp::UdpPort;

use crate::args::{PortDriver, RpcArgs};

/// What is done with a port of whatever type.
pub(crate) trait PortUser {
    /// Uses the port on the calling thread, which is the one that opened it.
    fn run<P: Port>(self, port: P);
}

/// Ports are opened for frames of this many bytes at least: what a server's slot usually holds.
pub(crate) const USUAL_FRAME: usize = 2048;

/// Frames that IPv4 over UDP can carry, in bytes.
const LONGEST_UDP: usize = 65_507;

/// Opens the port for frames of up to `max_frame` bytes and hands it to `user`.
pub(crate) fn open(args: &RpcArgs, max_frame: usize, user: impl PortUser) -> anyhow::Result<()> {
    match args.port {
        PortDriver::Udp => {
            let config = UdpConfig { max_frame: max_frame.min(LONGEST_UDP), ..UdpConfig::new(args.bind()) };
            user.run(UdpPort::open(&config).context("--bind")?);
        }
    }
    Ok(())
}
