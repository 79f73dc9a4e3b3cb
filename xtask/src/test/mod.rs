//! `cargo xtask test`: what CI runs, in the order in which a failure is cheapest.

mod count;
mod fuzz;
mod lint;
pub(crate) mod programs;

use std::{thread, time::Duration};

use anyhow::{Result, bail};

use crate::{
    lab::{Answers, Lab},
    setup, sh,
};
use count::Count;

/// Part of the tests, by its name on the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Format, and lints of all there is.
    Lint,
    /// What needs no device, socket or process: the libraries' own tests, `dataplane`, models.
    Unit,
    /// The other test programs.
    System,
    /// What takes CPUs but looks at no clock: lints of fewer features, the documentation and its examples, models, the build
    /// of fuzz targets. Where the lab runs too, beside it.
    Rest,
    /// The suites of the lab.
    Lab,
    /// Every fuzz target, for seconds.
    Fuzz,
    /// What samples do in the others, at length. CI leaves it out.
    Long,
}

impl Stage {
    const ALL: [Self; 7] = [Self::Lint, Self::Unit, Self::System, Self::Rest, Self::Lab, Self::Fuzz, Self::Long];

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Lint => "lint",
            Self::Unit => "unit",
            Self::System => "system",
            Self::Rest => "rest",
            Self::Lab => "lab",
            Self::Fuzz => "fuzz",
            Self::Long => "long",
        }
    }
}

/// How long each fuzz target runs.
const FUZZ: Duration = Duration::from_secs(5);

/// The same in [`Stage::Long`].
const LONG_FUZZ: Duration = Duration::from_mins(10);

/// How many seeds simulations take, and how often a node is killed.
const SAMPLE: [(&str, &str); 2] = [("BERTH_SIM_SEEDS", "2000"), ("BERTH_CRASHES", "60")];

/// The same in [`Stage::Long`], how many tasklets and messages are mixed with faults, and how many modules two engines run.
const LONG: [(&str, &str); 4] = [
    ("BERTH_SIM_SEEDS", "10000"),
    ("BERTH_CRASHES", "1000"),
    ("BERTH_MIXED", "1000000"),
    ("BERTH_WASM_SEEDS", "20000"),
];

/// The test programs that look at these.
const SAMPLING: [&str; 7] = [
    "dataplane/fabric simulation",
    "dataplane/fabric node",
    "dataplane/lease simulation",
    "dataplane/hip model",
    "appliance crash",
    "appliance tasklet",
    "drivers/wasm wasm",
];

/// Runs the stages of these names, those of CI where there are none.
pub(crate) fn command(names: &[&str]) -> Result<()> {
    let mut stages = Vec::new();
    for name in names {
        let Some(stage) = Stage::of(name) else {
            bail!("{name} is none of {}", Stage::ALL.map(Stage::name).join(", "));
        };
        stages.push(stage);
    }
    if stages.is_empty() {
        stages.extend(Stage::ALL.into_iter().filter(|stage| *stage != Stage::Long));
    }
    setup::test()?;
    let mut count = Count::default();
    for &stage in &stages {
        match stage {
            Stage::Lint => lint::first()?,
            Stage::Unit => {
                if stages.contains(&Stage::System) {
                    // Crates that take long one after the other are built beside many others so.
                    programs::build_all()?;
                }
                count.programs(&programs::unit()?, &SAMPLE)?;
            }
            Stage::System => {
                count.programs(&programs::system()?, &SAMPLE)?;
                count.demo("demo gpu", crate::demo::gpu);
                count.demo("bench gpu quick", crate::bench::gpu_quick);
                count.demo("demo qec", crate::demo::qec::run_all);
                count.demo("demo tasklet", crate::demo::tasklet::run_all);
            }
            Stage::Rest if stages.contains(&Stage::Lab) => continue,
            Stage::Rest => count.rest()?,
            Stage::Lab => count.suites(stages.contains(&Stage::Rest))?,
            Stage::Fuzz => fuzz::run_all(FUZZ, &mut count)?,
            Stage::Long => {
                count.programs(&programs::named(&SAMPLING)?, &LONG)?;
                count.lab(Lab::all(Answers::All)?.run()?);
                fuzz::run_all(LONG_FUZZ, &mut count)?;
                crate::build::berth()?;
                crate::sh::run(&mut crate::sh::cmd("target/release/berth", ["perf", "suite", "soak"]))?;
            }
        }
        count.ended(stage.name())?;
    }
    count.finish()
}

impl Count {
    /// The suites of the lab. The rest takes what these leave idle, a third of both CPUs: guests boot and load one step after
    /// the other.
    fn suites(&mut self, with_rest: bool) -> Result<()> {
        // Cargo lets one build at a time into its folder.
        let lab = Lab::all(Answers::Sample)?;
        let rest = || {
            sh::yield_cpus()?;
            let mut count = Self::default();
            count.rest().map(|()| count)
        };
        thread::scope(|scope| {
            let rest = with_rest.then(|| scope.spawn(rest));
            self.lab(lab.run()?);
            rest.map_or(Ok(()), |rest| rest.join().expect("it does not panic").map(|rest| self.join(rest)))
        })
    }

    fn rest(&mut self) -> Result<()> {
        lint::rest()?;
        fuzz::build()?;
        self.docs()?;
        self.models()
    }

    /// The examples in the documentation. Without those of the C library, which has the name of the crate that it stands on:
    /// `--doc` does not look at its `doctest = false`.
    fn docs(&mut self) -> Result<()> {
        let mut docs = crate::build::all("test");
        self.run("examples of the documentation", docs.args(["--doc", "--exclude", "berth-hip-abi"]))
    }

    /// The models of what is shared without locks, in every order of their steps.
    fn models(&mut self) -> Result<()> {
        self.run("models", &mut crate::build::models())
    }
}
