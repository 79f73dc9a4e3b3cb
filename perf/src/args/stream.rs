//! `berth perf stream`: its command line.

use std::path::PathBuf;

use clap::Args;

use super::LoadArgs;

/// `berth perf stream`.
#[derive(Debug, Clone, Args)]
pub struct StreamArgs {
    /// Whom to ask, how fast: --rate rounds a second, or as fast as they are answered with --window under way; --count rounds, by
    /// default those of the model
    #[command(flatten)]
    pub load: LoadArgs,

    /// The decoder's detector error model; longer experiments repeat its middle
    #[arg(long, value_name = "DEM")]
    pub model: PathBuf,
    /// `window` of the decoder, in rounds
    #[arg(long, value_name = "ROUNDS")]
    pub window_rounds: usize,
    /// `commit` of the decoder, in rounds
    #[arg(long, value_name = "ROUNDS")]
    pub commit: usize,
    /// The decoder has `parallel`, on any number of cores
    #[arg(long)]
    pub parallel: bool,
    /// Chooses the errors
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The decoder, by its place in the server's configuration
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub decoder: u64,
}
