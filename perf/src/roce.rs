//! A client of software-RoCE and verbs ports on a card without RDMA: an endpoint of our own over DPDK.

use anyhow::Context as _;
use berth_dpdk::{Eal, PortConfig};
use berth_roce::{Config, Endpoint, Slots, endpoint, path_mtu};
use berth_roce_peers::{Agreed, connect};
use berth_wire::roce::{P_KEY_DEFAULT, UDP_PORT};

use crate::{
    args::{LoadArgs, Style},
    ports::{LINK, Opening, PortUser, hand_over},
};

/// IP packets of this length hold the requests of most cases, and every Ethernet carries them.
const USUAL_MTU: u16 = 1500;
/// What IPv6, UDP and the transport headers add to a payload at most, in bytes.
const HEADERS: usize = 84;

/// Opens the device, connects to the port behind the rendezvous, and hands the connection over.
pub(crate) fn open(opening: &Opening<'_>, eal: Eal, mut port: PortConfig, user: impl PortUser) -> anyhow::Result<()> {
    let args = opening.args;
    let slots = slots(args);
    let rendezvous = args.rendezvous.context("--port roce needs --rendezvous")?;
    (port.mtu, port.udp_port) = (mtu(opening.longest)?, UDP_PORT);
    let address = port.addresses.first().context("--port roce needs --address")?.0;
    // Answers are sent, so our own slots are never written to; the least there may be.
    let own = Slots { count: 1, stride: 128, base: 0, ..slots };
    let config = Config { p_key: P_KEY_DEFAULT, slots: own, path_mtu: path_mtu(usize::from(port.mtu)), peers: 1 };
    let (endpoint, mut registrar) = endpoint(config)?;
    let mut endpoint: Option<Endpoint> = Some(endpoint);
    let endpoint = || endpoint.take().expect("one queue");
    let port = berth_dpdk::open_speaking(eal, &port, endpoint)?.pop().context("a device has a queue")?;
    port.wait_link(LINK)?;
    let unit = match args.style {
        Style::Plain => 1,
        Style::Hsb => HSB_WINDOW,
    };
    let agreed = Agreed { slots, unit };
    let connection = connect(&mut registrar, address, rendezvous, args.rendezvous_form.form(), &agreed)?;
    let stride = connection.remote.window.map_or(0, |window| window.slots.stride);
    anyhow::ensure!(
        opening.longest.next_multiple_of(unit) <= stride,
        "requests of up to {} bytes, and the port's slots have {stride}; choose a smaller --payload",
        opening.longest
    );
    hand_over(opening, port, connection.peer, user);
    // Until here: its end is the port's sign to forget us.
    drop(connection);
    Ok(())
}

/// What the Holoscan Sensor Bridge's player fills its windows up to a multiple of, in bytes.
const HSB_WINDOW: usize = 64;

/// The port's slots, where the rendezvous does not tell.
fn slots(args: &LoadArgs) -> Slots {
    let (count, stride) = (args.slots as usize, args.stride as usize);
    Slots { count, stride, base: args.base, form: args.immediate.form() }
}

fn mtu(longest: usize) -> anyhow::Result<u16> {
    if longest <= path_mtu(usize::from(USUAL_MTU)) {
        return Ok(USUAL_MTU);
    }
    let payload = longest.next_power_of_two();
    anyhow::ensure!(payload <= 4096, "requests are one packet each, of at most 4096 bytes; choose a smaller --payload");
    Ok((payload + HEADERS) as u16)
}
