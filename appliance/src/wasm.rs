//! The programs that WASM is compiled and run by.

use std::{env, path::Path};

use anyhow::Context as _;
use berth_wasm::{Compiler, Starter, UNIT};

use crate::config::Executors;

/// The command that compiles a module: this program, shut in. Not by its name, which is another program after an upgrade.
pub(crate) fn compiler() -> Compiler {
    Compiler { program: "/proc/self/exe".into(), args: vec!["compile-wasm".into()] }
}

/// Who starts the processes of tasklets.
pub(crate) fn starter(executors: Executors) -> anyhow::Result<Starter> {
    let unit = match executors {
        Executors::Auto => Path::new(UNIT).exists(),
        Executors::Unit => true,
        Executors::Child => false,
    };
    let this = env::current_exe().context("where this program is")?;
    Ok(if unit { Starter::Unit(UNIT.into()) } else { Starter::Child(this.with_file_name("berth-executor")) })
}
