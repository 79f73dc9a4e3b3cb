#![no_main]
//! The configuration parser: any text gives a configuration or mistakes with places inside the text, and no panic.

use std::{io, path::Path};

use berth::config::{Host, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let model = |_: &Path| Ok::<_, io::Error>("error(0.1) D0 L0\n".to_string());
    let host = Host { cpus: vec![0, 1], has_feature: |_| true, is_file: |_| true, is_public: |_| false, read: model };
    if let Err(mistakes) = parse(text, Path::new("berth.toml"), &host) {
        assert!(!mistakes.is_empty());
        let lines = text.matches('\n').count() + 1;
        assert!(mistakes.iter().all(|note| (1..=lines).contains(&note.line) && note.column > 0));
    }
});
