//! The `HdrHistogram` V2 log: every interval's histograms, for the tools that read it.
//!
//! Values are nanoseconds, the log's own maximum column milliseconds. Histograms are tagged
//! `CASE.FUNCTION` and `CASE.hiccups`, CASE counted from 1; a comment names each case.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag},
};

use super::case::Case;
use crate::tally::Interval;

/// Nanoseconds per unit of the log's maximum column.
pub(crate) const MAX_VALUE_DIVISOR: f64 = 1e6;

/// A log under way.
pub struct Log<'a, W: Write> {
    writer: IntervalLogWriter<'a, 'a, W, V2DeflateSerializer>,
    /// When the interval at hand began: the log's time is that of the cases alone, one after the other.
    elapsed: Duration,
    named: usize,
}

/// Creates the file of a log; what was in it is lost.
pub fn create(path: impl AsRef<Path>) -> anyhow::Result<BufWriter<File>> {
    let path = path.as_ref();
    Ok(BufWriter::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?))
}

impl<'a, W: Write> Log<'a, W> {
    /// Writes the log's head to `file`, with the present time as its start.
    pub fn begin(file: &'a mut W, serializer: &'a mut V2DeflateSerializer) -> io::Result<Self> {
        let mut builder = IntervalLogWriterBuilder::new();
        builder.add_comment(&format!("[Logged with berth {}]", env!("CARGO_PKG_VERSION")));
        builder.with_start_time(SystemTime::now()).with_base_time(SystemTime::now());
        builder.with_max_value_divisor(MAX_VALUE_DIVISOR);
        let writer = builder.begin_log_with(file, serializer)?;
        Ok(Self { writer, elapsed: Duration::ZERO, named: 0 })
    }

    /// Writes one interval of `case`: a histogram for each function, and the hiccups.
    pub fn write(&mut self, case: &Case, interval: &Interval) -> anyhow::Result<()> {
        let number = interval.case + 1;
        if self.named < number {
            self.named = number;
            self.writer.write_comment(&format!("case {number}: {}", case.name))?;
        }
        let length = interval.end - interval.start;
        let functions = case.functions.iter().map(|(name, _)| *name).zip(&interval.latency);
        for (name, histogram) in functions.chain([("hiccups", &interval.hiccups)]) {
            let tag = format!("{number}.{name}");
            let tag = Tag::new(&tag).context("names of functions have no comma")?;
            self.writer
                .write_histogram(histogram, self.elapsed, length, Some(tag))
                .map_err(|error| anyhow::anyhow!("cannot write the histogram log: {error:?}"))?;
        }
        self.elapsed += length;
        Ok(())
    }
}
