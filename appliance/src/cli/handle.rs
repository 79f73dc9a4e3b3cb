//! `berth lease export | import | relocate`

use anyhow::bail;
use berth_client::Grant;
use berth_identity::NodeId;
use berth_wire::fabric::{Binding, LeaseExport, RelocateMode, Rights, TargetRuntime};
use clap::{Subcommand, ValueEnum};
use serde_json::Value;

use super::{Reach, id, lease::remember, output};

#[derive(Debug, Subcommand)]
pub(super) enum Handles {
    /// Make a handle to a lease, through which another client can access its bytes.
    Export {
        /// The lease's id, as `berth lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        /// The id of the key that may import the handle. Default: anyone.
        #[arg(long, value_name = "ID")]
        to: Option<NodeId>,
        /// What the handle permits.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "read")]
        rights: Vec<Right>,
        /// How long the handle is valid, in seconds; it ends with the lease at the latest.
        #[arg(long, default_value_t = 300)]
        ttl: u32,
        /// The kind of program that the handle is for.
        #[arg(long, value_enum, default_value = "native-service")]
        runtime: Runtime,
        #[command(flatten)]
        node: Reach,
    },
    /// Attach to a lease by its handle. `read` and `write` then take the attachment in place of a lease, over QUIC.
    Import {
        /// The handle, as `berth lease export` printed it.
        #[arg(value_parser = id)]
        handle: u128,
        #[command(flatten)]
        node: Reach,
    },
    /// Copy the bytes of one lease to another of the same holder.
    Relocate {
        /// The id of the lease to copy from.
        #[arg(value_parser = id)]
        src: u128,
        /// The id of the lease to copy to, which must be at least as long.
        #[arg(value_parser = id)]
        dst: u128,
        /// What becomes of the source: `move` ends it.
        #[arg(long, value_enum, default_value = "copy")]
        mode: Mode,
        /// Keep the bytes of a moved source from being leased again for this many seconds.
        #[arg(long, value_name = "SECS")]
        preserve: Option<u64>,
        #[command(flatten)]
        node: Reach,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Right {
    Read,
    Write,
    Append,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Runtime {
    GpuWorker,
    Tasklet,
    NativeService,
    Accelerator,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Mode {
    Copy,
    Move,
    CowSeed,
}

impl Handles {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Export { lease, to, rights, ttl, runtime, node } => {
                let rights = rights.iter().fold(Rights::NONE, |all, right| {
                    all | match right {
                        Right::Read => Rights::READ,
                        Right::Write => Rights::WRITE,
                        Right::Append => Rights::APPEND,
                    }
                });
                let target_runtime_kind = match runtime {
                    Runtime::GpuWorker => TargetRuntime::GpuWorker,
                    Runtime::Tasklet => TargetRuntime::Tasklet,
                    Runtime::NativeService => TargetRuntime::NativeService,
                    Runtime::Accelerator => TargetRuntime::Accelerator,
                };
                let client = node.connect().await?;
                let export = LeaseExport {
                    lease_id: *lease as u64,
                    target_runtime_kind,
                    target_identity: to.map_or(0, |to| to.0),
                    rights,
                    ttl_secs: *ttl,
                };
                let exported = client.lease_export(&export).await?;
                client.close().await;
                output::pairs(
                    node.own.json,
                    &[
                        ("export_handle", format!("{:032x}", exported.export_handle).into()),
                        ("expires_at", exported.expires_at.into()),
                        ("binding", describe(&exported.binding).into()),
                    ],
                );
            }
            Self::Import { handle, node } => {
                if node.udp {
                    bail!("what is imported is used over QUIC: name the node's QUIC address, without --udp");
                }
                let client = node.connect().await?;
                let imported = client.lease_import(*handle).await?;
                client.close().await;
                let grant = Grant::attached(&imported, node.node);
                remember(&grant)?;
                output::pairs(
                    node.own.json,
                    &[
                        ("attachment", format!("{:032x}", grant.lease_id).into()),
                        ("rights", imported.rights.names().map(Value::from).collect()),
                        ("expires_at", imported.expires_at.into()),
                    ],
                );
            }
            Self::Relocate { src, dst, mode, preserve, node } => {
                let mode = match mode {
                    Mode::Copy => RelocateMode::Copy,
                    Mode::Move => RelocateMode::Move,
                    Mode::CowSeed => RelocateMode::CowSeed,
                };
                let until = preserve.map(|secs| output::now_ms().saturating_add(secs.saturating_mul(1000)));
                let client = node.connect().await?;
                let relocated = client.lease_relocate(*src as u64, *dst as u64, mode, until).await?;
                client.close().await;
                if let Some(reason) = relocated.failed {
                    bail!("the node could not do it: {reason}");
                }
                output::pairs(node.own.json, &[("bytes_transferred", relocated.bytes.into())]);
            }
        }
        Ok(())
    }
}

fn describe(binding: &Binding) -> String {
    match binding {
        Binding::PcieBar { bar_base, bar_len } => format!("pcie-bar {bar_base:#x}+{bar_len}"),
        Binding::RdmaRkey { rkey, remote_addr } => format!("rdma-rkey {rkey:#x} at {remote_addr:#x}"),
        Binding::LinuxDmabuf { fd, offset, len } => format!("dmabuf {fd} {offset}+{len}"),
        Binding::VramOffset { vram_offset, len } => format!("vram {vram_offset}+{len}"),
        Binding::FabricPage { page_id, offset, len } => format!("fabric-page {page_id:032x} {offset}+{len}"),
    }
}
