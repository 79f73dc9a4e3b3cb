//! A client of fabricBIOS nodes.
//!
//! ```no_run
//! # async fn tour() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{path::Path, sync::Arc};
//! use berth_client::{Alloc, Client, Data, Via};
//! use berth_wire::fabric::Perms;
//!
//! let identity = Arc::new(berth_tls::key_file::read(Path::new("key"))?);
//! let client = Client::quic(identity, "127.0.0.1:5701".parse()?, None).await?;
//! let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 60, 0, None).await?;
//! let lease = client.lease_alloc(&token, &Alloc::memory(1 << 20, 60)).await?;
//! let mut data = Data::open(client.identity(), &lease, Via::Quic, None).await?;
//! data.write(0, b"hello").await?;
//! assert_eq!(data.read(0, 5).await?, b"hello");
//! client.lease_free(lease.lease_id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Client`] talks to the control plane, over UDP or QUIC. [`Data`] reads and writes a lease over any of its
//! dataplanes. An answer other than OK becomes an [`Error`] that names the status and explains it.
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown)] // the documents' names of ops

mod client;
mod data;
mod error;
mod gpu;
mod grant;
mod node;
mod nvme;
mod ops;
mod page;
mod quic;
mod rdma;
mod sriov;
mod tasklet;
mod token;
mod udp;

pub use client::Client;
pub use data::{Data, Via};
pub use error::Error;
pub use gpu::{Kernel, KernelRan};
pub use grant::Grant;
pub use node::NodeInfo;
pub use nvme::NvmeBinding;
pub use ops::{Alloc, Exported, Relocated};
pub use rdma::{RdmaBinding, RdmaPeer};
pub use sriov::SriovBinding;
pub use tasklet::{Ran, Tasklet};
pub use token::Token;
