//! The self-contained page.

use super::json::Report;

/// Renders the page.
pub fn render(report: &Report) -> String {
    format!("<!doctype html><title>{}</title>", report.environment.berth)
}
