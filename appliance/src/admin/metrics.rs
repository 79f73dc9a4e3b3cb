//! Every counter and histogram in the text form of `OpenMetrics`, which Prometheus reads.

use std::{collections::BTreeMap, fmt};

use hdrhistogram::Histogram;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::Sources;

/// Upper bounds of the buckets of a latency, in seconds: three to the decade from 250 ns to 1 s.
const BOUNDS: [f64; 21] = [
    2.5e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2,
    0.5, 1.0,
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

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Sources { telemetry, control, health, started } = &self.0;
        let mut gauge = |name, help, unit, value: f64| {
            encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
        };
        gauge("ready", "1 from the ready line until the drain", None, f64::from(u8::from(health.is_ready())))?;
        let alive = health.stuck().is_empty();
        gauge("alive", "1 while every polling thread goes round its loop", None, f64::from(u8::from(alive)))?;
        gauge("uptime", "since the start", Some(&Unit::Seconds), started.elapsed().as_secs_f64())?;

        let reloads = health.reloads.now();
        let mut metric = encoder.encode_descriptor("reloads", "of the configuration", None, MetricType::Counter)?;
        for (result, count) in [("done", reloads.done), ("refused", reloads.refused)] {
            metric.encode_family(&[("result", result)])?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }

        // A metric is described once, whatever number of lcores and ports has it.
        let mut counters: BTreeMap<String, Vec<(Labels, u64)>> = BTreeMap::new();
        for lcore in telemetry.snapshot().lcores {
            let labels: Labels = vec![("lcore", lcore.name)];
            for (name, value) in lcore.counters {
                counters.entry(format!("lcore_{name}")).or_default().push((labels.clone(), value));
            }
            for lane in lcore.lanes {
                let labels: Labels = labels.iter().cloned().chain([("port", lane.name)]).collect();
                for (part, all) in [("lane", lane.counters), ("port", lane.port), ("service", lane.service)] {
                    for (name, value) in all {
                        counters.entry(format!("{part}_{name}")).or_default().push((labels.clone(), value));
                    }
                }
            }
        }
        for (name, value) in control.iter().flat_map(berth_control::Monitor::counters) {
            counters.entry(format!("control_{}", legal(&name))).or_default().push((Vec::new(), value));
        }
        for (name, values) in counters {
            // Seconds are the unit of times.
            let (name, seconds) = name.strip_suffix("_ns").map_or((&*name, false), |name| (name, true));
            let unit = seconds.then_some(&Unit::Seconds);
            let mut metric = encoder.encode_descriptor(name, "docs/operate.md", unit, MetricType::Counter)?;
            for (labels, value) in values {
                let mut metric = metric.encode_family(&labels)?;
                if seconds {
                    metric.encode_counter::<NoLabelSet, _, f64>(&(value as f64 * 1e-9), None)?;
                } else {
                    metric.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
                }
            }
        }

        let mut histograms: BTreeMap<&str, Vec<(Labels, Histogram<u64>)>> = BTreeMap::new();
        for (lcore, port, name, histogram) in telemetry.histograms() {
            histograms.entry(name).or_default().push((vec![("lcore", lcore), ("port", port)], histogram));
        }
        for (name, values) in histograms {
            let unit = Some(&Unit::Seconds);
            let mut metric = encoder.encode_descriptor(name, "a latency", unit, MetricType::Histogram)?;
            for (labels, histogram) in values {
                let (sum, buckets) = buckets(&histogram);
                let mut metric = metric.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(sum, histogram.len(), &buckets, None)?;
            }
        }
        Ok(())
    }
}

/// Only letters, digits and underscores stand in a metric's name; names of regions may have others.
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
}
