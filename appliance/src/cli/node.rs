//! `berth enroll` and `berth nodes`

use std::net::SocketAddr;

use anyhow::Context as _;
use berth_client::Client;
use berth_identity::NodeId;
use berth_wire::fabric::{Certificate, EndpointKind, ResourceType, Wire as _};
use clap::Args;
use serde_json::{Value, json};

use super::{Own, block_on, output};

/// Ask a node with open enrolment to enrol this key. Keys in a node's configuration need not ask.
#[derive(Debug, Args)]
pub struct EnrollCommand {
    /// The node's address for control over UDP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5700")]
    node: SocketAddr,
    #[command(flatten)]
    own: Own,
}

impl EnrollCommand {
    /// Enrols this key over UDP, and prints the fields of its certificate.
    pub fn run(&self) -> anyhow::Result<()> {
        let certificate = block_on(async {
            let client = Client::udp(self.own.identity()?, self.node, None).await?;
            Ok(client.enroll().await?)
        })?;
        let fields = Certificate::parse(&certificate).context("the certificate")?;
        let id = |id| Value::from(NodeId(id).to_string());
        output::pairs(
            self.own.json,
            &[
                ("subject", id(fields.subject)),
                ("issuer", id(fields.issuer)),
                ("issued_at", fields.issued_at.into()),
                ("expires_at", fields.expires_at.into()),
                ("certificate", output::hex(&certificate).into()),
            ],
        );
        Ok(())
    }
}

/// List the nodes that a relay knows, or a single node's own announcement.
#[derive(Debug, Args)]
pub struct NodesCommand {
    /// A discovery relay, or a node's address for control over UDP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5700")]
    relay: SocketAddr,
    #[command(flatten)]
    own: Own,
}

impl NodesCommand {
    /// Asks for the announcements over UDP, and prints a row for each node.
    pub fn run(&self) -> anyhow::Result<()> {
        let nodes = block_on(async {
            let client = Client::udp(self.own.identity()?, self.relay, None).await?;
            Ok(client.nodes(&[]).await?)
        })?;
        if self.own.json {
            let nodes: Vec<_> = nodes
                .iter()
                .map(|node| {
                    let endpoints =
                        node.endpoints.iter().map(|(kind, addr)| json!({"kind": kind.name(), "addr": addr}));
                    let resources = node.resources.iter().map(|resource| {
                        json!({
                            "resource_id": format!("{:032x}", resource.resource_id),
                            "type": resource.resource_type,
                            "flags": resource.flags.bits(),
                            "capacity": resource.capacity,
                            "available": resource.available,
                        })
                    });
                    json!({
                        "node_id": node.id.to_string(),
                        "sequence": node.sequence,
                        "site": node.site, "row": node.row, "rack": node.rack,
                        "endpoints": endpoints.collect::<Vec<_>>(),
                        "resources": resources.collect::<Vec<_>>(),
                    })
                })
                .collect();
            println!("{}", Value::from(nodes));
            return Ok(());
        }
        let rows: Vec<_> = nodes
            .iter()
            .map(|node| {
                let place = format!("{}/{}/{}", node.site, node.row, node.rack);
                let quic = node.endpoints.iter().find(|(kind, _)| *kind == EndpointKind::Quic);
                let free = |kind: ResourceType| {
                    let all = node.resources.iter().filter(|resource| resource.resource_type == kind.code());
                    all.map(|resource| resource.available).sum::<u64>().to_string()
                };
                let quic = quic.map_or_else(String::new, |(_, addr)| addr.to_string());
                [node.id.to_string(), place, quic, free(ResourceType::Mem), free(ResourceType::Block)]
            })
            .collect();
        print!("{}", output::table(["NODE", "SITE/ROW/RACK", "QUIC", "MEMORY FREE", "BLOCKS FREE"], &rows));
        Ok(())
    }
}
