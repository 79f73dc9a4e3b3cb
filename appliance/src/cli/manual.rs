//! `berth manual`: files that packages install beside the program, generated from the command line's definition.

use std::{fs, path::Path};

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

/// Writes a man page for `command` and each of its subcommands into `folder`, and completions for three shells.
pub fn manual(command: Command, folder: &Path) -> anyhow::Result<()> {
    // A page for each would say what the others say.
    let mut command = command.disable_help_subcommand(true);
    let write = |command: &mut Command| {
        fs::create_dir_all(folder)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, command, "berth", folder)?;
        }
        clap_mangen::generate_to(command.clone(), folder)
    };
    write(&mut command).with_context(|| format!("writing into {}", folder.display()))
}
