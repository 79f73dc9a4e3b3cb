//! The journal: files of any bytes, and sound frames of any records, which are written back as they were.
#![no_main]

use berth_fabric::{
    Recovered,
    journal::{Record, Replay, encode, frame_header, header},
};
use libfuzzer_sys::fuzz_target;

const ID: u64 = 1;

fn read(file: &[u8]) -> Option<Vec<Record>> {
    Replay::new(file).ok()?.collect::<Result<_, _>>().ok()
}

fuzz_target!(|bytes: &[u8]| {
    let _ = read(bytes);
    let mut file = header(ID).to_vec();
    file.extend(frame_header(ID, 1, bytes));
    file.extend(bytes);
    if let Some(records) = read(&file) {
        let mut again = Vec::new();
        for record in &records {
            encode(record, &mut again);
        }
        assert_eq!(again, bytes);
        let mut state: Recovered = records.into_iter().collect();
        state.forget_lapsed();
        assert_eq!(state.records().collect::<Recovered>(), state);
    }
    // The same bytes behind a sound frame are a torn tail, or damage that is noticed.
    file.truncate(32);
    file.extend(frame_header(ID, 1, &[]));
    file.extend(bytes);
    let _ = read(&file);
});
