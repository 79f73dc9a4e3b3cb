//! Both header forms, both directions: whatever parses is written back as it was.
#![no_main]

use berth_wire::rpc::{HeaderForm, RequestHeader, ResponseHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for form in [HeaderForm::V24, HeaderForm::V16] {
        let mut again = [0; 24];
        if let Ok(header) = RequestHeader::parse(form, bytes) {
            header.write(form, &mut again).expect("24 bytes hold either header");
            assert_eq!(again[..form.len()], bytes[..form.len()]);
        }
        if let Ok(header) = ResponseHeader::parse(form, bytes) {
            header.write(form, &mut again).expect("24 bytes hold either header");
            assert_eq!(again[..form.len()], bytes[..form.len()]);
        }
    }
});
