//! Every counter and histogram in the text form of `OpenMetrics`, which Prometheus reads.

use std::{collections::BTreeMap, fmt};

use hdrhistogram::Histogram;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::{
    Sources,
    catalog::{self, Place},
};

/// Upper bounds of the buckets of a latency, in seconds: three to the decade from 250 ns to 1 s.
const BOUNDS: [f64; 21] = [
    2.5e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2,
    0.5, 1.0,
];

/// Each histogram, as its layer names it, in the order of a request's way, and what it measures. docs/telemetry.md
/// tells more.
pub(super) const HISTOGRAMS: [(&str, &str); 18] = [
    ("wire_time", "from the sender's PTP stamp to the poll that received the request; of sampled stamped requests"),
    ("rx_time", "from the poll until the first frame of its burst is dispatched; of sampled bursts"),
    ("handler_time", "of the first frame of a burst in its service; of sampled bursts"),
    ("kernel_time", "from the poll that received a ring kernel's message until its answer was ready; of sampled ones"),
    ("ring_wait", "from the copy into the ring until the worker turned to the request; of sampled requests"),
    ("worker_time", "for one request at its worker; of sampled turns"),
    ("ring_time", "from the copy into the ring until the answer was found; of the same requests"),
    ("tx_time", "of the transmit call; of sampled bursts"),
    ("service_time", "from the poll that received a frame to the end of its burst's transmission; of each frame"),
    (
        "data_time",
        "from the capsule of an NVMe command until all data that it brings was there; of each that brings some",
    ),
    (
        "access_time",
        "from then, or its capsule, until the last access to blocks had ended; of each NVMe command about blocks",
    ),
    ("answer_time", "from then until the answer was sent; of each NVMe I/O command"),
    ("command_time", "from the capsule of an NVMe I/O command until its answer was sent; of each"),
    ("hip_receive_time", "from the request of a HIP copy or load to the last byte that it brings; of each"),
    ("hip_wait_time", "that a HIP request waited for a launch before it; of each that did"),
    ("hip_device_time", "of a HIP launch, or of another job of a device that was not done at once; of each"),
    ("hip_send_time", "from the answer of a HIP copy to the host to its last byte; of each"),
    ("hiccup", "polls that found nothing and took 10 us or longer: what the host took from a spinning lcore"),
];

/// The exposition, whole.
pub(super) fn exposition(sources: &Sources) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("berth");
    registry.register_collector(Box::new(Exposition(sources.clone())));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Exposition(Sources);

type Labels = Vec<(&'static str, String)>;

/// Samples of one name.
struct Samples {
    help: &'static str,
    is_gauge: bool,
    values: Vec<(Labels, u64)>,
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let sources = &self.0;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder.encode_descriptor("build", "which Berth this is", None, MetricType::Info)?.encode_info(&version)?;
        let mut gauge = |name, help, unit, value: f64| {
            encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
        };
        let (ready, alive) = (sources.health.is_ready(), sources.health.stuck().is_empty());
        gauge("ready", "1 from the ready line until the drain", None, f64::from(u8::from(ready)))?;
        gauge("alive", "1 while every polling thread goes round its loop", None, f64::from(u8::from(alive)))?;
        gauge("uptime", "time since the start", Some(&Unit::Seconds), sources.started.elapsed().as_secs_f64())?;

        let reloads = sources.health.reloads.now();
        let mut metric =
            encoder.encode_descriptor("reloads", "reloads of the configuration", None, MetricType::Counter)?;
        for (result, count) in [("done", reloads.done), ("refused", reloads.refused)] {
            metric.encode_family(&[("result", result)])?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }

        // A metric is described once, whatever number of lcores and ports has it.
        let mut families = BTreeMap::<String, Samples>::new();
        sources.counters(&mut |part, labels, counter, value| {
            let place = catalog::locate(part, counter);
            let (name, help, is_gauge) = match &place {
                Some(Place { family, .. }) => (family.name.to_owned(), family.help, family.is_gauge),
                None => (legal(counter), "a counter without a description", false),
            };
            let labels = labels.iter().cloned().chain(place.into_iter().flat_map(|place| place.labels)).collect();
            let empty = || Samples { help, is_gauge, values: Vec::new() };
            families.entry(format!("{part}_{name}")).or_insert_with(empty).values.push((labels, value));
        });
        for (name, Samples { help, is_gauge, values }) in families {
            // Seconds are the unit of times.
            let (name, unit, scale) = match (name.strip_suffix("_ns"), name.strip_suffix("_bytes")) {
                (Some(name), _) => (name, Some(&Unit::Seconds), 1e-9),
                (None, Some(name)) => (name, Some(&Unit::Bytes), 1.0),
                (None, None) => (&*name, None, 1.0),
            };
            let kind = if is_gauge { MetricType::Gauge } else { MetricType::Counter };
            let mut metric = encoder.encode_descriptor(name, help, unit, kind)?;
            for (labels, value) in values {
                let mut metric = metric.encode_family(&labels)?;
                match (is_gauge, unit) {
                    (true, _) => metric.encode_gauge(&(value as f64))?,
                    (false, Some(Unit::Seconds)) => {
                        metric.encode_counter::<NoLabelSet, _, f64>(&(value as f64 * scale), None)?;
                    }
                    (false, _) => metric.encode_counter::<NoLabelSet, _, f64>(&value, None)?,
                }
            }
        }

        let mut histograms: BTreeMap<&str, Vec<(Labels, Histogram<u64>)>> = BTreeMap::new();
        for timed in sources.telemetry.histograms() {
            let (family, kernel) = family(timed.name);
            let thread = if timed.name == "worker_time" { "worker" } else { "lcore" };
            let port = timed.port.map(|port| ("port", port));
            let kernel = kernel.map(|kernel| ("kernel", kernel.to_owned()));
            let labels = [(thread, timed.thread)].into_iter().chain(port).chain(kernel).collect();
            histograms.entry(family).or_default().push((labels, timed.histogram));
        }
        for (name, values) in histograms {
            let help = HISTOGRAMS.iter().find(|(known, _)| *known == name).map_or("a latency", |(_, help)| help);
            let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
            for (labels, histogram) in values {
                let (sum, buckets) = buckets(&histogram);
                let mut metric = metric.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(sum, histogram.len(), &buckets, None)?;
            }
        }
        Ok(())
    }
}

/// What a histogram is shown as, and the ring kernel whose it is.
pub(crate) fn family(name: &str) -> (&str, Option<&str>) {
    match name.strip_prefix("kernel_time_") {
        Some(kernel) => ("kernel_time", Some(kernel)),
        None => (name, None),
    }
}

/// Only letters, digits and underscores stand in a metric's name.
fn legal(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// The sum in seconds, and how many values lie between each bound and the one before it.
fn buckets(histogram: &Histogram<u64>) -> (f64, Vec<(f64, u64)>) {
    let mut counts = [0; BOUNDS.len() + 1];
    let mut sum = 0.0;
    for step in histogram.iter_recorded() {
        let seconds = histogram.median_equivalent(step.value_iterated_to()) as f64 / 1e9;
        counts[BOUNDS.partition_point(|bound| *bound < seconds)] += step.count_at_value();
        sum += seconds * step.count_at_value() as f64;
    }
    (sum, BOUNDS.into_iter().chain([f64::INFINITY]).zip(counts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_that_holds_it() {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 36, 2).unwrap();
        for nanos in [1, 240, 300, 999_000, 3_000_000_000] {
            histogram.record(nanos).unwrap();
        }
        let (sum, buckets) = buckets(&histogram);
        let filled: Vec<_> = buckets.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(2.5e-7, 2), (5e-7, 1), (1e-3, 1), (f64::INFINITY, 1)]);
        assert!((2.98..3.03).contains(&sum), "{sum}");
    }

    #[test]
    fn names_are_legal() {
        assert_eq!(legal("region_scratch-1_reads"), "region_scratch_1_reads");
    }

    #[test]
    fn every_histogram_has_its_line_in_the_docs() {
        let docs = include_str!("../../../docs/telemetry.md");
        for (name, help) in HISTOGRAMS {
            let line = format!("| `berth_{name}_seconds` | {help} |");
            assert!(docs.contains(&line), "docs/telemetry.md lacks the line\n{line}");
        }
    }
}
