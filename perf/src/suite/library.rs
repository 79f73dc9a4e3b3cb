//! The suites and baselines that are built in, and those of a folder in their place.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use super::file::{Baseline, Mistakes, Suite};

macro_rules! files {
    ($folder:literal: $($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../", $folder, "/", $name)))),*]
    };
}

/// File name and text of each suite that is built in.
pub const SUITES: &[(&str, &str)] = files!("suites": "smoke.toml", "rpc.toml", "lease.toml", "nvme.toml", "hip.toml", "qec.toml", "overload.toml", "soak.toml");

/// File name and text of each baseline that is built in.
pub const BASELINES: &[(&str, &str)] = files!(
    "baselines": "testpmd.toml", "udp_echo.toml", "uring_echo.toml", "tcp_echo.toml", "hip_sink.toml", "hip_habit.toml",
    "sockperf.toml", "fi_pingpong.toml", "ib_send_lat.toml", "iperf3.toml"
);

/// What baselines and suites need beside the program: name and bytes.
const DATA: &[(&str, &[u8])] = &[
    ("echo.h", include_bytes!("../../baselines/echo.h")),
    ("udp_echo.c", include_bytes!("../../baselines/udp_echo.c")),
    ("tcp_echo.c", include_bytes!("../../baselines/tcp_echo.c")),
    ("hip_sink.c", include_bytes!("../../baselines/hip_sink.c")),
    ("uring_echo.c", include_bytes!("../../baselines/uring_echo.c")),
    ("surface_d7.dem", include_bytes!("../../../config/decoders/surface_d7_p5e-3.dem")),
    ("surface_d7.dets.b8", include_bytes!("../../data/surface_d7_p5e-3.dets.b8")),
    ("surface_d7.obs.b8", include_bytes!("../../data/surface_d7_p5e-3.obs.b8")),
    ("surface_d7.pymatching.b8", include_bytes!("../../data/surface_d7_p5e-3.pymatching.b8")),
    ("surface_d3.dem", include_bytes!("../../../config/decoders/surface_d3_p5e-3.dem")),
    ("surface_d3.dets.b8", include_bytes!("../../data/surface_d3_p5e-3.dets.b8")),
    ("surface_d3.obs.b8", include_bytes!("../../data/surface_d3_p5e-3.obs.b8")),
    ("surface_d3.pymatching.b8", include_bytes!("../../data/surface_d3_p5e-3.pymatching.b8")),
    ("surface_d5.dem", include_bytes!("../../../config/decoders/surface_d5_p5e-3.dem")),
    ("surface_d5.dets.b8", include_bytes!("../../data/surface_d5_p5e-3.dets.b8")),
    ("surface_d5.obs.b8", include_bytes!("../../data/surface_d5_p5e-3.obs.b8")),
    ("surface_d5.pymatching.b8", include_bytes!("../../data/surface_d5_p5e-3.pymatching.b8")),
    ("colour_d3.dem", include_bytes!("../../data/colour_d3_p2e-3.dem")),
    ("colour_d3.dets.b8", include_bytes!("../../data/colour_d3_p2e-3.dets.b8")),
    ("colour_d3.obs.b8", include_bytes!("../../data/colour_d3_p2e-3.obs.b8")),
    ("colour_d5.dem", include_bytes!("../../data/colour_d5_p2e-3.dem")),
    ("colour_d5.dets.b8", include_bytes!("../../data/colour_d5_p2e-3.dets.b8")),
    ("colour_d5.obs.b8", include_bytes!("../../data/colour_d5_p2e-3.obs.b8")),
    ("bicycle_72.dem", include_bytes!("../../data/bicycle_72_p12e-3.dem")),
    ("bicycle_72.dets.b8", include_bytes!("../../data/bicycle_72_p12e-3.dets.b8")),
    ("bicycle_72.obs.b8", include_bytes!("../../data/bicycle_72_p12e-3.obs.b8")),
    ("bicycle_144.dem", include_bytes!("../../data/bicycle_144_p12e-3.dem")),
    ("bicycle_144.dets.b8", include_bytes!("../../data/bicycle_144_p12e-3.dets.b8")),
    ("bicycle_144.obs.b8", include_bytes!("../../data/bicycle_144_p12e-3.obs.b8")),
    ("surface_d3x13.dem", include_bytes!("../../data/surface_d3x13.dem")),
    ("surface_d5x21.dem", include_bytes!("../../data/surface_d5x21.dem")),
    ("surface_d7x29.dem", include_bytes!("../../data/surface_d7x29.dem")),
    ("surface_d9x37.dem", include_bytes!("../../data/surface_d9x37.dem")),
];

/// Where suites come from.
pub(super) struct Library<'a> {
    /// `--from`
    pub(super) folder: Option<&'a Path>,
}

impl Library<'_> {
    /// The suite of this name, or in this file if it ends in `.toml`; and what it is called in the report.
    pub(super) fn suite(&self, wanted: &str) -> anyhow::Result<(String, Suite)> {
        let path = Path::new(wanted);
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {wanted}"))?;
            let name = path.file_stem().map_or_else(|| wanted.into(), |stem| stem.to_string_lossy().into_owned());
            return Ok((name, Suite::parse(path, &text)?));
        }
        let (path, text) = self.text("suites", wanted, SUITES)?;
        Ok((wanted.to_owned(), Suite::parse(&path, &text)?))
    }

    /// The baseline of this name: that of the folder, else the one that is built in.
    pub(super) fn baseline(&self, name: &str) -> anyhow::Result<Baseline> {
        let (path, text) = self.text("baselines", name, BASELINES)?;
        Ok(Baseline::parse(&path, &text)?)
    }

    fn text(&self, kind: &str, name: &str, built_in: &[(&str, &str)]) -> anyhow::Result<(PathBuf, String)> {
        let file = format!("{name}.toml");
        if let Some(path) = self.folder.map(|folder| folder.join(kind).join(&file)).filter(|path| path.exists()) {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok((path, text));
        }
        let Some((_, text)) = built_in.iter().find(|(known, _)| *known == file) else {
            let names: Vec<_> = built_in.iter().map(|(name, _)| name.trim_end_matches(".toml")).collect();
            bail!("there is no {name} among the {kind}; built in are {}", names.join(", "));
        };
        Ok((Path::new(kind).join(file), (*text).to_owned()))
    }
}

/// Writes what suites and baselines need to a folder.
pub(super) fn unpack(folder: &Path) -> anyhow::Result<()> {
    for (name, bytes) in DATA {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Every suite and baseline that is built in, by name.
#[derive(Debug)]
pub struct BuiltIn {
    /// The suites, without `.toml` in their names, in the order of [`SUITES`].
    pub suites: Vec<(String, Suite)>,
    /// The baselines, likewise in the order of [`BASELINES`].
    pub baselines: Vec<(String, Baseline)>,
}

/// Reads what is built in; a mistake in it is an error.
pub fn built_in() -> Result<BuiltIn, Mistakes> {
    let stem = |file: &str| file.trim_end_matches(".toml").to_owned();
    let suites = SUITES.iter().map(|(file, text)| Ok((stem(file), Suite::parse(Path::new(file), text)?)));
    let baselines = BASELINES.iter().map(|(file, text)| Ok((stem(file), Baseline::parse(Path::new(file), text)?)));
    Ok(BuiltIn { suites: suites.collect::<Result<_, _>>()?, baselines: baselines.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_is_without_mistakes() {
        let BuiltIn { suites, baselines } = built_in().unwrap_or_else(|mistakes| panic!("{mistakes}"));
        for case in suites.iter().flat_map(|(_, suite)| &suite.case) {
            for wanted in &case.baselines {
                assert!(baselines.iter().any(|(name, _)| name == wanted), "{wanted}");
            }
        }
    }
}
