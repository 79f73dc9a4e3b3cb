#![no_main]
//! Syndrome files: no text panics, and what parses fills a table that answers each of its shots.

use berth_qec::mock::{MockTable, SyndromeFile};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(file) = SyndromeFile::parse(text) else { return };
    let table = MockTable::from_file(&file);
    for (measurements, _) in file.shots() {
        assert!(table.answer(measurements, &mut [0]));
    }
});
