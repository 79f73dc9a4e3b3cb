//! `berth perf rpc`: its command line.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};
use berth_qec::{dem::DetectorErrorModel, mock::SyndromeFile};
use berth_wire::rpc::{HeaderForm, PtpEncoding};
use clap::{Args, ValueEnum};

use super::{LoadArgs, load::Style};
use crate::{
    functions::{Data, Weighted},
    shots::Shots,
    verify::Protocol,
};

/// Header forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Header {
    /// 24 bytes, with the PTP time
    V24,
    /// 16 bytes, without it
    V16,
}

/// Encodings of the send time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ptp {
    /// Nanoseconds since the PTP epoch
    Ns,
    /// Seconds in the upper, nanoseconds in the lower 32 bits
    #[value(name = "sec_nsec")]
    SecNsec,
    /// 0: unused
    Off,
}

impl Ptp {
    /// The value on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::SecNsec => "sec_nsec",
            Self::Off => "off",
        }
    }
}

/// `berth perf rpc`.
#[derive(Debug, Clone, Args)]
pub struct RpcArgs {
    /// Whom to ask, how fast, how long.
    #[command(flatten)]
    pub load: LoadArgs,

    /// The header form of the server's port
    #[arg(long, value_enum, default_value = "v24")]
    pub header: Header,
    /// How the send time is stamped into the 24-byte header; by default ns, with `--style hsb` in seconds and nanoseconds
    #[arg(long, value_enum)]
    pub ptp: Option<Ptp>,
    /// `rpc_increment`, `mock_decode`, `qec_decode`, `decoding_server` or `vector_add`, with its share of the calls; repeat it for a mix
    #[arg(long = "function", value_name = "NAME[:WEIGHT]", default_value = "rpc_increment")]
    pub functions: Vec<Weighted>,
    /// Payload bytes of `rpc_increment`; each is a case of its own
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',', default_value = "32")]
    pub payloads: Vec<usize>,
    /// Syndrome data: the common prefix of PREFIX.dets.b8, PREFIX.obs.b8 and, to compare with, PREFIX.pymatching.b8
    #[arg(long, value_name = "PREFIX")]
    pub shots: Option<String>,
    /// The shots' detector error model; without it a shot has one observable, and a detector per bit of its bytes
    #[arg(long, value_name = "DEM")]
    pub model: Option<PathBuf>,
    /// Recorded measurements and corrections for `mock_decode`: a syndrome text file
    #[arg(long, value_name = "FILE")]
    pub syndromes: Option<PathBuf>,
    /// The decoder that `decoding_server` addresses, by its place in the server's configuration
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub decoder: u64,
    /// The server sends requests back unchanged (a baseline); verify that
    #[arg(long)]
    pub echo: bool,
}

impl RpcArgs {
    /// What the server's port speaks.
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol::Rpc { header: self.header(), ptp: self.ptp(), echo: self.echo }
    }

    /// The header form on the wire.
    pub(crate) fn header(&self) -> HeaderForm {
        match self.header {
            Header::V24 => HeaderForm::V24,
            Header::V16 => HeaderForm::V16,
        }
    }

    /// How the send time is stamped: as `--ptp` says, else `sec_nsec` of style `hsb` and `ns` of others.
    pub(crate) fn stamp(&self) -> Ptp {
        self.ptp.unwrap_or(match self.load.style {
            Style::Plain => Ptp::Ns,
            Style::Hsb => Ptp::SecNsec,
        })
    }

    /// The encoding of the send time; `None` where it stays 0.
    pub(crate) fn ptp(&self) -> Option<PtpEncoding> {
        match self.stamp() {
            Ptp::Ns => Some(PtpEncoding::Ns),
            Ptp::SecNsec => Some(PtpEncoding::SecNsec),
            Ptp::Off => None,
        }
    }

    /// The payload sizes to sweep: one case each, or a single case where no function of the mix has a choice.
    pub(crate) fn sweep(&self) -> &[usize] {
        let sized = self.functions.iter().any(|weighted| weighted.function.is_sized());
        if sized { &self.payloads } else { &self.payloads[..1] }
    }

    /// What the functions are called with. Every function has the data it needs.
    pub(crate) fn data(&self) -> anyhow::Result<Data> {
        let read = |path: &PathBuf| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let model = match &self.model {
            Some(path) => {
                let model = DetectorErrorModel::parse(&read(path)?).with_context(|| path.display().to_string())?;
                Some((model.num_detectors(), model.num_observables()))
            }
            None => None,
        };
        let shots = self.shots.as_ref().map(|prefix| Shots::load(prefix, model)).transpose()?;
        let syndromes = match &self.syndromes {
            Some(path) => Some(SyndromeFile::parse(&read(path)?).with_context(|| path.display().to_string())?),
            None => None,
        };
        let data = Data { shots, syndromes, decoder_id: self.decoder };
        for Weighted { function, .. } in &self.functions {
            if let (false, Some(option)) = (data.serves(*function), function.needs()) {
                bail!("{} needs {option}", function.name());
            }
        }
        Ok(data)
    }
}
