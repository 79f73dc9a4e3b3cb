//! Syndrome data: shots in Stim's `b8` format, with the true observables and the predictions of `PyMatching`, where it decodes the code.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Shots of one experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shots {
    /// Detectors per shot.
    pub detectors: usize,
    /// Observables per shot.
    pub observables: usize,
    /// Detection events, `ceil(detectors / 8)` bytes a shot, least significant bit first.
    pub events: Vec<u8>,
    /// True observable flips, `ceil(observables / 8)` bytes a shot.
    pub truth: Vec<u8>,
    /// The reference decoder's predicted observable flips, laid out like `truth`; `None` where there is no such file.
    pub reference: Option<Vec<u8>>,
}

/// Why shots could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ShotsError {
    /// A file could not be read.
    #[error("{}: {error}; --shots takes the common prefix of PREFIX.dets.b8, PREFIX.obs.b8 and, if there is one, PREFIX.pymatching.b8", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The files' sizes do not fit together.
    #[error("{prefix}: {problem}")]
    Shape {
        /// The files' common prefix.
        prefix: String,
        /// What does not fit.
        problem: String,
    },
}

impl Shots {
    /// Loads `prefix.dets.b8`, `prefix.obs.b8` and, if there is one, `prefix.pymatching.b8`.
    ///
    /// The files say how many bytes a shot has, not how many bits: `model` is how many detectors and observables there
    /// are. Without it a shot has one observable, and a detector per bit of its bytes.
    pub fn load(prefix: &str, model: Option<(usize, usize)>) -> Result<Self, ShotsError> {
        let read = |suffix: &str| {
            let path = Path::new(&format!("{prefix}.{suffix}.b8")).to_owned();
            fs::read(&path).map_err(|error| ShotsError::Read { path, error })
        };
        let (events, truth) = (read("dets")?, read("obs")?);
        let reference = match read("pymatching") {
            Err(ShotsError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => None,
            reference => Some(reference?),
        };
        Self::new(events, truth, reference, model)
            .map_err(|problem| ShotsError::Shape { prefix: prefix.to_owned(), problem })
    }

    fn new(
        events: Vec<u8>,
        truth: Vec<u8>,
        reference: Option<Vec<u8>>,
        model: Option<(usize, usize)>,
    ) -> Result<Self, String> {
        let (detectors, observables) =
            model.map_or((None, 1), |(detectors, observables)| (Some(detectors), observables));
        let per_shot = observables.div_ceil(8);
        if per_shot == 0 || truth.is_empty() || !truth.len().is_multiple_of(per_shot) {
            return Err(format!("{} bytes of observables are no shots of {observables} observables", truth.len()));
        }
        let shots = truth.len() / per_shot;
        if let Some(predicted) = reference.as_ref().map(Vec::len).filter(|len| *len != truth.len()) {
            return Err(format!(
                "the predictions have {predicted} bytes, the observables {}; they must be of the same shots",
                truth.len()
            ));
        }
        let stride = events.len() / shots;
        if stride == 0 || !events.len().is_multiple_of(shots) {
            return Err(format!("{} bytes of detection events cannot be split into {shots} shots", events.len()));
        }
        let detectors = detectors.unwrap_or(stride * 8);
        if detectors.div_ceil(8) != stride {
            return Err(format!(
                "a shot has {stride} bytes of detection events, {detectors} detectors need another size"
            ));
        }
        Ok(Self { detectors, observables, events, truth, reference })
    }

    /// How many shots.
    pub fn len(&self) -> usize {
        self.truth.len() / self.observables.div_ceil(8)
    }

    /// Whether there is no shot; never true of loaded shots.
    pub fn is_empty(&self) -> bool {
        self.truth.is_empty()
    }

    /// The detection events of each shot, `ceil(detectors / 8)` bytes each.
    pub fn events(&self) -> impl Iterator<Item = &[u8]> {
        self.events.chunks_exact(self.detectors.div_ceil(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_files() {
        let shots = Shots::new(vec![0; 30], vec![0, 1], Some(vec![0, 1]), None).unwrap();
        assert_eq!((shots.len(), shots.detectors), (2, 120));
        let shots = Shots::new(vec![0; 30], vec![0, 1], None, Some((113, 1))).unwrap();
        assert_eq!(shots.detectors, 113);
        assert_eq!(shots.events().count(), 2);
    }

    #[test]
    fn files_that_do_not_fit_together_are_refused() {
        for (events, truth, reference, model) in
            [(31, 2, 2, None), (30, 2, 1, None), (30, 2, 2, Some((112, 1))), (30, 3, 3, Some((80, 9))), (0, 0, 0, None)]
        {
            let zeros = |len: usize| vec![0_u8; len];
            assert!(Shots::new(zeros(events), zeros(truth), Some(zeros(reference)), model).is_err());
        }
        let missing = Shots::load("/nonexistent/d5", None).unwrap_err().to_string();
        assert!(missing.starts_with("/nonexistent/d5.dets.b8: "), "{missing}");
    }
}
