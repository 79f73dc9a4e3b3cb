//! Instruction sets, by LLVM's target ids: a processor, and features that it has switched on or off.

/// A target id, such as `gfx90a:sramecc+:xnack-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa<'a> {
    processor: &'a str,
    /// `sramecc` and `xnack`: on, off, or either.
    features: [Option<bool>; 2],
}

const FEATURES: [&str; 2] = ["sramecc", "xnack"];

impl<'a> Isa<'a> {
    /// Reads one, as `gcnArchName` has it; `None` if it is none.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(':');
        let processor = parts.next().filter(|name| name.starts_with("gfx"))?;
        let mut features = [None; 2];
        for part in parts {
            let (name, is_on) = match part.strip_suffix('+') {
                Some(name) => (name, true),
                None => (part.strip_suffix('-')?, false),
            };
            let known = FEATURES.iter().position(|known| *known == name)?;
            if features[known].replace(is_on).is_some() {
                return None;
            }
        }
        Some(Self { processor, features })
    }

    /// That of a target: its triple, and behind it the target id. `None` of another architecture.
    pub(crate) fn of_target(target: &'a str) -> Option<Self> {
        let rest = target.strip_prefix("amdgcn-amd-amdhsa-")?;
        Self::parse(&rest[rest.find("gfx")?..])
    }

    /// Whether code that was made for this one runs on a GPU: the processor is the same, and so is each feature that the code
    /// depends on.
    pub fn runs_on(&self, gpu: &Isa<'_>) -> bool {
        let fits = |(code, gpu): (&Option<bool>, &Option<bool>)| code.is_none() || code == gpu;
        self.processor == gpu.processor && self.features.iter().zip(&gpu.features).all(fits)
    }
}
