//! Results as sinter, Stim's tool for statistics, reads them: `sinter combine` and `sinter plot` take the file.

use super::Outcome;

/// A file with one result. `decoder` is a name without commas; results of the same `strong_id` are of one experiment, and
/// sinter adds them up; `metadata` is JSON.
///
/// Shots without an answer are errors, as sinter discards only what its user has declared worthless.
pub fn csv(outcome: &Outcome, decoder: &str, strong_id: &str, metadata: &str) -> String {
    let line = |[shots, errors, discards, seconds]: [&str; 4], rest: [&str; 4]| {
        format!("{shots:>10},{errors:>10},{discards:>10},{seconds:>8},{}\n", rest.join(","))
    };
    let (shots, errors) = (outcome.shots.to_string(), outcome.errors.unwrap_or_default().to_string());
    let seconds = format!("{:.3}", outcome.decoding.as_secs_f64());
    let metadata = format!("\"{}\"", metadata.replace('"', "\"\""));
    line(["shots", "errors", "discards", "seconds"], ["decoder", "strong_id", "json_metadata", "custom_counts"])
        + &line([&shots, &errors, "0", &seconds], [decoder, strong_id, &metadata, ""])
}
