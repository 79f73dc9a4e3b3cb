//! `berth lease`

use std::{
    fs,
    io::{self, Read as _},
    net::Ipv6Addr,
    path::PathBuf,
};

use anyhow::{Context as _, bail, ensure};
use berth_client::{Alloc, Data, Grant, NvmeBinding, RdmaPeer, Via};
use berth_wire::{
    fabric::{BindKind, EndpointKind, GpuExclusivity, IntentTlv, NvmeTransport, PciAddress, Perms, ResourceType, Tlv},
    net::MacAddr,
};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::{Reach, WithToken, block_on, folder, handle, id, output, page};
use crate::config::{parse_bytes, station};

/// Lease memory, blocks, GPUs and virtual functions of a node; read and write bytes.
#[derive(Debug, Args)]
pub struct LeaseCommand {
    #[command(subcommand)]
    command: Lease,
}

#[derive(Debug, Subcommand)]
enum Lease {
    /// Lease memory, blocks, memory of a GPU or a virtual function. Prints the lease, and stores it for `read` and `write`.
    Alloc {
        /// Size in bytes, such as 4096 or "64 MiB", of memory or blocks.
        #[arg(long, value_parser = parse_bytes)]
        size: Option<u64>,
        /// What to lease.
        #[arg(long, value_enum, default_value = "memory")]
        r#type: Type,
        /// How far the lease has its GPU for itself.
        #[arg(long, value_enum)]
        exclusivity: Option<Exclusivity>,
        /// How long the lease is active, in seconds.
        #[arg(long, default_value_t = 600)]
        duration: u32,
        /// How long after that it can still be renewed, in seconds.
        #[arg(long, default_value_t = 60)]
        grace: u32,
        /// The id of the only resource to lease from, as the node's inventory has it; 0 for any.
        #[arg(long, value_parser = id, default_value = "0")]
        resource: u128,
        #[command(flatten)]
        with: WithToken,
    },
    /// Extend a lease.
    Renew {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        /// When the lease shall end, in seconds from now.
        #[arg(long, default_value_t = 600)]
        duration: u32,
        #[command(flatten)]
        with: WithToken,
    },
    /// Return a lease before it ends.
    Free {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        #[command(flatten)]
        node: Reach,
    },
    /// Print a lease's state, and when it ends.
    Query {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        #[command(flatten)]
        node: Reach,
    },
    /// Print every active lease of the node.
    List {
        #[command(flatten)]
        node: Reach,
    },
    /// Read bytes to standard output; with --json as hex digits.
    Read {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        /// The first byte to read, counted from the lease's first.
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// How many bytes to read. Default: up to the lease's end.
        #[arg(long)]
        len: Option<u64>,
        /// The protocol that reaches the bytes.
        #[arg(long, value_enum, default_value = "quic")]
        via: Path,
        #[command(flatten)]
        node: Reach,
    },
    /// Write standard input, or a given text.
    Write {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        /// The text to write. Default: standard input.
        data: Option<String>,
        /// The first byte to write, counted from the lease's first.
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// The protocol that reaches the bytes.
        #[arg(long, value_enum, default_value = "quic")]
        via: Path,
        #[command(flatten)]
        node: Reach,
    },
    #[command(flatten)]
    Handle(handle::Handles),
    /// Page operations, over the control plane.
    #[command(subcommand)]
    Page(page::Pages),
    /// Connect a lease over another transport. Prints what the client needs to use it.
    Bind {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        /// The transport to connect over.
        #[arg(long, value_enum)]
        kind: Transport,
        /// RDMA: the number of the client's queue pair, of type RC, which is to be connected.
        #[arg(long, value_name = "N", requires = "gid", requires = "psn")]
        qp_num: Option<u32>,
        /// RDMA: the GID of the client's port, from /sys/class/infiniband/*/ports/*/gids/*.
        #[arg(long, requires = "qp_num")]
        gid: Option<Ipv6Addr>,
        /// RDMA: the first packet sequence number that the client sends.
        #[arg(long, value_name = "N", requires = "qp_num")]
        psn: Option<u32>,
        /// RDMA: the path MTU in bytes.
        #[arg(long, value_name = "BYTES", default_value_t = 1024)]
        mtu: u16,
        /// NVMe: the qualified name of the host that may connect, from /etc/nvme/hostnqn.
        #[arg(long, value_name = "NQN", conflicts_with = "qp_num", conflicts_with = "tlv")]
        host_nqn: Option<String>,
        /// NVMe: what the host connects over. Default: as the node chooses.
        #[arg(long, value_enum, requires = "host_nqn")]
        transport: Option<NvmeOver>,
        /// SR-IOV: the function's Ethernet address, where its pool leaves that to holders.
        #[arg(long, value_name = "MAC", value_parser = station, conflicts_with = "qp_num", conflicts_with = "tlv")]
        mac: Option<MacAddr>,
        /// SR-IOV: the function's VLAN, likewise.
        #[arg(long, value_name = "N", conflicts_with = "qp_num", conflicts_with = "tlv")]
        vlan: Option<u16>,
        /// A further TLV about the client, as TAG=VALUE in hex digits; may be repeated. Makes it print the answer's
        /// TLVs, too.
        #[arg(long, value_name = "TAG=VALUE", conflicts_with = "qp_num")]
        tlv: Vec<String>,
        #[command(flatten)]
        with: WithToken,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Path {
    Quic,
    Tcp,
    Udp,
    TwoSided,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Type {
    Memory,
    Block,
    /// Memory of a GPU, for kernels that `berth gpu submit` runs.
    Gpu,
    /// A virtual function of a network card.
    Net,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Exclusivity {
    /// Kernels of others may run at the same time.
    Shared,
    /// None do while one of the lease runs.
    Session,
    /// Nobody else has a lease of the GPU.
    Device,
}

impl Exclusivity {
    fn of_wire(self) -> GpuExclusivity {
        match self {
            Self::Shared => GpuExclusivity::Shared,
            Self::Session => GpuExclusivity::SessionExclusive,
            Self::Device => GpuExclusivity::DeviceExclusive,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Transport {
    Rdma,
    #[value(alias = "nvme-of")]
    Nvme,
    #[value(alias = "sr-iov")]
    Sriov,
    Ofi,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NvmeOver {
    Tcp,
    Rdma,
    Loop,
}

impl NvmeOver {
    fn of_wire(self) -> NvmeTransport {
        match self {
            Self::Tcp => NvmeTransport::Tcp,
            Self::Rdma => NvmeTransport::Rdma,
            Self::Loop => NvmeTransport::Loop,
        }
    }
}

impl LeaseCommand {
    /// Runs the command.
    pub fn run(&self) -> anyhow::Result<()> {
        block_on(self.command.run())
    }
}

impl Lease {
    async fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Alloc { size, r#type, exclusivity, duration, grace, resource, with } => {
                let of_bytes = !matches!(r#type, Type::Net);
                ensure!(of_bytes == size.is_some(), "--size says how much memory or blocks, and a function has none");
                let (client, token) = with.connect(Perms::READ | Perms::WRITE | Perms::ALLOC, *resource).await?;
                let mut intents = Vec::new();
                if let Some(class) = exclusivity {
                    IntentTlv::GpuExclusivity(class.of_wire()).write(&mut intents);
                }
                let alloc = Alloc {
                    resource: *resource,
                    kind: match r#type {
                        Type::Memory => ResourceType::Mem,
                        Type::Block => ResourceType::Block,
                        Type::Gpu => ResourceType::Gpu,
                        Type::Net => ResourceType::Net,
                    },
                    bytes: size.unwrap_or(0),
                    duration_secs: *duration,
                    grace_secs: *grace,
                    intents,
                };
                let grant = client.lease_alloc(&token, &alloc).await?;
                client.close().await;
                remember(&grant)?;
                show(&grant, with.node.own.json);
            }
            Self::Renew { lease, duration, with } => {
                let (client, token) = with.connect(Perms::ALLOC, 0).await?;
                let expires_at = client.lease_renew(&token, *lease, *duration).await?;
                client.close().await;
                let lease = Value::from(format!("{lease:032x}"));
                output::pairs(with.node.own.json, &[("lease_id", lease), ("expires_at", expires_at.into())]);
            }
            Self::Free { lease, node } => {
                let client = node.connect().await?;
                client.lease_free(*lease).await?;
                client.close().await;
                // Another user may have allocated it.
                let _ = fs::remove_file(record(*lease)?);
                output::pairs(node.own.json, &[("freed", format!("{lease:032x}").into())]);
            }
            Self::Query { lease, node } => {
                let client = node.connect().await?;
                let state = client.lease_query(*lease).await?;
                client.close().await;
                output::pairs(
                    node.own.json,
                    &[
                        ("lease_id", format!("{lease:032x}").into()),
                        ("status", state.status.name().into()),
                        ("meaning", state.status.meaning().into()),
                        ("expires_at", state.expires_at.into()),
                    ],
                );
            }
            Self::List { node } => list(node).await?,
            Self::Read { lease, offset, len, via, node } => {
                let mut data = open(node, &recall(*lease)?, *via).await?;
                let len = len.unwrap_or_else(|| data.len().saturating_sub(*offset));
                output::bytes(node.own.json, *offset, &data.read(*offset, len).await?)?;
            }
            Self::Write { lease, data, offset, via, node } => {
                let (grant, bytes) = (recall(*lease)?, input(data.as_deref())?);
                open(node, &grant, *via).await?.write(*offset, &bytes).await?;
                output::pairs(node.own.json, &[("offset", (*offset).into()), ("written", bytes.len().into())]);
            }
            Self::Handle(handles) => handles.run().await?,
            Self::Page(pages) => pages.run().await?,
            Self::Bind { lease, kind: Transport::Rdma, qp_num: Some(qp_num), gid, psn, mtu, with, .. } => {
                let (gid, psn) = gid.map(|gid| gid.octets()).zip(*psn).context("--gid and --psn are missing")?;
                let (client, token) = with.connect(Perms::ALLOC, 0).await?;
                let peer = RdmaPeer { qp_num: *qp_num, gid, psn, mtu: *mtu };
                let bound = client.bind_rdma(&token, *lease, peer).await?;
                client.close().await;
                output::pairs(
                    with.node.own.json,
                    &[
                        ("rkey", bound.rkey.into()),
                        ("remote_addr", bound.remote_addr.into()),
                        ("qp_num", bound.qp_num.into()),
                        ("gid", Ipv6Addr::from(bound.gid).to_string().into()),
                        ("port", bound.port.into()),
                        ("psn", bound.psn.into()),
                    ],
                );
            }
            Self::Bind { lease, kind: Transport::Nvme, host_nqn: Some(host_nqn), transport, with, .. } => {
                let (client, token) = with.connect(Perms::ALLOC, 0).await?;
                let over = transport.map(NvmeOver::of_wire);
                let bound = client.bind_nvme(&token, *lease, host_nqn, over).await?;
                client.close().await;
                let NvmeBinding { nqn, transport, address, port, secret } = bound;
                let at = if address.is_empty() { String::new() } else { format!(" -a {address} -s {port}") };
                let transport = transport.name();
                let mut connect = format!("nvme connect -t {transport}{at} -n {nqn} -q {host_nqn}");
                let mut pairs = vec![
                    ("nqn", nqn.into()),
                    ("transport", transport.into()),
                    ("address", address.into()),
                    ("port", port.into()),
                ];
                if let Some(secret) = secret {
                    connect = format!("{connect} --dhchap-secret {secret}");
                    pairs.push(("dhchap_secret", secret.into()));
                }
                pairs.push(("connect", connect.into()));
                output::pairs(with.node.own.json, &pairs);
            }
            Self::Bind {
                lease, kind: Transport::Sriov, mac, vlan, tlv, host_nqn: None, qp_num: None, with, ..
            } if tlv.is_empty() => {
                let (client, token) = with.connect(Perms::ALLOC, 0).await?;
                let bound = client.bind_sriov(&token, *lease, mac.map(|mac| mac.0), *vlan).await?;
                client.close().await;
                output::pairs(
                    with.node.own.json,
                    &[
                        ("function", pci(bound.function).into()),
                        ("index", bound.index.into()),
                        ("pf", pci(bound.pf).into()),
                        ("open", "by VFIO on the node's host; DPDK takes a network card's as its device".into()),
                    ],
                );
            }
            Self::Bind { lease, kind, qp_num, host_nqn, mac, vlan, tlv, with, .. } => {
                ensure!(mac.is_none() && vlan.is_none(), "--mac and --vlan describe a client of --kind sriov");
                ensure!(qp_num.is_none(), "--qp-num, --gid, --psn and --mtu describe a client of --kind rdma");
                ensure!(host_nqn.is_none(), "--host-nqn describes a client of --kind nvme");
                let peer = tlvs(tlv)?;
                let kind = match kind {
                    Transport::Rdma => BindKind::Rdma,
                    Transport::Nvme => BindKind::NvmeOf,
                    Transport::Sriov => BindKind::SrIov,
                    Transport::Ofi => BindKind::Ofi,
                };
                let (client, token) = with.connect(Perms::ALLOC, 0).await?;
                let bound = client.lease_bind(&token, *lease, kind, &peer).await?;
                client.close().await;
                output::pairs(with.node.own.json, &[("bindings", output::hex(&bound).into())]);
            }
        }
        Ok(())
    }
}

/// As the kernel and DPDK write it.
fn pci(PciAddress { domain, bus, devfn }: PciAddress) -> String {
    format!("{domain:04x}:{bus:02x}:{:02x}.{}", devfn >> 3, devfn & 7)
}

async fn open(node: &Reach, grant: &Grant, via: Path) -> anyhow::Result<Data> {
    let via = match via {
        Path::Quic => Via::Quic,
        Path::Tcp => Via::Tcp,
        Path::Udp => Via::Shim,
        Path::TwoSided => Via::TwoSided,
    };
    Ok(Data::open(&*node.own.identity()?, grant, via, node.node_key).await?)
}

async fn list(node: &Reach) -> anyhow::Result<()> {
    let client = node.connect().await?;
    let leases = client.lease_list().await?;
    client.close().await;
    let id = |id: u128| format!("{id:032x}");
    if node.own.json {
        let leases = leases.iter().map(|lease| {
            json!({
                "lease_id": id(lease.lease_id),
                "resource_id": id(lease.resource_id),
                "holder": id(lease.holder),
                "expires_at": lease.expires_at,
                "alloc_bytes": lease.alloc_bytes,
            })
        });
        println!("{}", leases.collect::<Value>());
        return Ok(());
    }
    let rows: Vec<_> = leases
        .iter()
        .map(|lease| {
            [id(lease.lease_id), lease.alloc_bytes.to_string(), output::left(lease.expires_at), id(lease.holder)]
        })
        .collect();
    print!("{}", output::table(["LEASE", "BYTES", "LEFT", "HOLDER"], &rows));
    Ok(())
}

fn show(grant: &Grant, json: bool) {
    let endpoint = |(kind, addr): &(EndpointKind, _)| Value::from(format!("{}={addr}", kind.name()));
    output::pairs(
        json,
        &[
            ("lease_id", format!("{:032x}", grant.lease_id).into()),
            ("expires_at", grant.expires_at.into()),
            ("bytes", grant.len.into()),
            ("max_io", grant.max_io.into()),
            ("generation", grant.generation.into()),
            ("endpoints", grant.endpoints.iter().map(endpoint).collect()),
        ],
    );
}

/// TLVs from `TAG=VALUE`, both in hex digits.
fn tlvs(given: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::new();
    for text in given {
        let parsed = text.split_once('=').and_then(|(tag, value)| {
            Some((u16::from_str_radix(tag.trim_start_matches("0x"), 16).ok()?, output::unhex(value).ok()?))
        });
        let Some((tag, value)) = parsed else { bail!("{text:?} is not a TLV; write one such as 0411=6e716e") };
        Tlv::append(&mut all, tag, |to| to.extend_from_slice(&value));
    }
    Ok(all)
}

/// The given text, or else standard input.
pub(super) fn input(given: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match given {
        Some(text) => bytes.extend_from_slice(text.as_bytes()),
        None => drop(io::stdin().lock().read_to_end(&mut bytes).context("reading standard input")?),
    }
    Ok(bytes)
}

/// The file in which `alloc` and `import` store what they were granted.
fn record(lease: u128) -> anyhow::Result<PathBuf> {
    Ok(folder("XDG_STATE_HOME", ".local/state")?.join("leases").join(format!("{lease:032x}")))
}

pub(super) fn remember(grant: &Grant) -> anyhow::Result<()> {
    let path = record(grant.lease_id)?;
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, grant.to_bytes()));
    written.with_context(|| format!("the lease is granted, but not remembered: {}", path.display()))
}

pub(super) fn recall(lease: u128) -> anyhow::Result<Grant> {
    let path = record(lease)?;
    let bytes = fs::read(&path).with_context(|| {
        format!("{}: `berth lease alloc` and `import` of this user remember the leases they made", path.display())
    })?;
    Grant::parse(&bytes).with_context(|| format!("{} is damaged", path.display()))
}
